"""HunyuanImage 2.1: 20 double and 40 single blocks of Flux's kind, 3584 wide; Qwen 2.5 VL and ByT5.

Tencent-Hunyuan/HunyuanImage-2.1 hyimage/models/hunyuan/modules/hunyuanimage_dit.py against diffusers'
HunyuanImageTransformer2DModel, as huggingface/diffusers scripts/convert_hunyuan_image_to_diffusers.py has it. Its own
code has queries, keys and values apart, checkpoints and ComfyUI have them as one.
"""

from ._flux_blocks import double_blocks
from ._hunyuan_blocks import HUNYUAN_BLOCKS, embedders
from ._llm import LLM_ALIASES
from .base import Architecture, layers, named

_SINGLE = "single_transformer_blocks.{}."

HUNYUAN_IMAGE = Architecture(
    name="hunyuan_image",
    title="HunyuanImage 2.1",
    signs=(
        layers(r"double_blocks_\d+_(img|txt)_(attn_|mlp_|mod_).*:3584$"),
        layers(r"single_blocks_\d+_(linear1|modulation_).*:3584$"),
        layers(r"single_transformer_blocks_\d+_(attn_to_[qkv]|norm_linear|proj_mlp):3584$"),
        layers(r"single_(transformer_)?blocks_\d+_(proj_out|linear2(_fc)?):17920$"),
        layers(r"transformer_blocks_\d+_attn_(to_[qkv]|add_[qkv]_proj|to_out_0|to_add_out):3584$"),
        layers(r"transformer_blocks_\d+_(norm1(_context)?_linear|ff(_context)?_net_0_proj):3584$"),
        layers(r"(txt_in_individual_|context_embedder_)token_refiner_.*:3584$"),
        named("hunyuan[_-]?image"),
    ),
    inputs=("x_embedder.proj",),
    names={
        **{f"single_blocks.{{}}.linear1_{part}": f"{_SINGLE}attn.to_{part}" for part in "qkv"},
        "single_blocks.{}.linear1_mlp": f"{_SINGLE}proj_mlp",
        "single_blocks.{}.linear2.fc": (f"{_SINGLE}proj_out",),
        "single_blocks.{}.modulation.linear": f"{_SINGLE}norm.linear",
        "single_blocks.{}.modulation.lin": f"{_SINGLE}norm.linear",
        "single_blocks.{}.q_norm": f"{_SINGLE}attn.norm_q",
        "single_blocks.{}.k_norm": f"{_SINGLE}attn.norm_k",
        "byt5_in.layernorm": "context_embedder_2.norm",
        **{f"byt5_in.fc{i}": f"context_embedder_2.linear_{i}" for i in (1, 2, 3)},
    },
    aliases=(
        *HUNYUAN_BLOCKS,
        *double_blocks(
            {
                **{f"img_attn_{part}": f"attn.to_{part}" for part in "qkv"},
                **{f"txt_attn_{part}": f"attn.add_{part}_proj" for part in "qkv"},
                "img_attn_qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
                "txt_attn_qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
            }
        ),
        *embedders(
            {
                "time_in": "time_guidance_embed.timestep_embedder",
                "time_r_in": "time_guidance_embed.timestep_embedder_r",
                "guidance_in": "time_guidance_embed.guidance_embedder",
            }
        ),
        *LLM_ALIASES,
    ),
)
