"""HunyuanVideo 1.5: 54 double blocks, 2048 wide, with q, k and v apart; Qwen 2.5 VL and ByT5.

Tencent-Hunyuan/HunyuanVideo-1.5 hyvideo/models/transformers/hunyuanvideo_1_5_transformer.py against diffusers'
HunyuanVideo15Transformer3DModel, as huggingface/diffusers scripts/convert_hunyuan_video1_5_to_diffusers.py has it.
ComfyUI has the three as one, and the blocks of `_hunyuan_blocks.py`.
"""

from ._flux_blocks import double_blocks
from ._hunyuan_blocks import HUNYUAN_BLOCKS, embedders
from ._llm import LLM_ALIASES
from .base import Architecture, layers, linears, named

ATTENTION_2048 = layers(r"transformer_blocks_\d+_attn_(to_[qkv]|add_[qkv]_proj|to_out_0|to_add_out):2048$")
"""What MiniMax-Music 3 and Nucleus-Image have in part."""

HUNYUAN_VIDEO15 = Architecture(
    name="hunyuan_video15",
    title="HunyuanVideo 1.5",
    signs=(
        # not the second layer of a feed-forward, which has 2048 inputs in a model that is 512 wide
        layers(r"double_blocks_\d+_(img|txt)_(attn_|mlp_(0|fc[01])|mod_).*:2048$"),
        ATTENTION_2048,
        layers(r"(txt_in_individual_|context_embedder_)token_refiner_.*:2048$"),
        named("hunyuan[_-]video[_-]1[._]5|hunyuanvideo-"),
    ),
    # MiniMax-Music's and Nucleus-Image's
    never=layers(r"transformer_blocks_\d+_(ff_(in|out):|encoder_proj|img_mlp_(shared_)?expert)"),
    names={
        "byt5_in.layernorm": "context_embedder_2.norm",
        **{f"byt5_in.fc{i}": f"context_embedder_2.linear_{i}" for i in (1, 2, 3)},
        "vision_in.proj.0": "image_embedder.norm_in",
        **linears("vision_in.proj", "image_embedder", ("1", "3")),
        "vision_in.proj.4": "image_embedder.norm_out",
        "cond_type_embedding": "cond_type_embed",
    },
    aliases=(
        *HUNYUAN_BLOCKS,
        *double_blocks(
            {
                **{f"img_attn_{part}": f"attn.to_{part}" for part in "qkv"},
                **{f"txt_attn_{part}": f"attn.add_{part}_proj" for part in "qkv"},
            }
        ),
        *embedders({"time_in": "time_embed.timestep_embedder"}),
        *LLM_ALIASES,
    ),
)
