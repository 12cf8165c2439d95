"""Mochi 1: 48 blocks, 3072 wide for the video and 1536 for the text; T5.

Source: genmoai/mochi src/genmo/mochi_preview/dit/joint_model/asymm_models_joint.py against diffusers'
MochiTransformer3DModel, as `convert_mochi_transformer_checkpoint_to_diffusers` has it. In the last block only the video
goes on, and diffusers calls the text's modulation otherwise there.
"""

from ...files.components import DENOISER
from .base import Alias, Architecture, Names, layers, linears, named, within
from .others import ATTENTION_3072

_BLOCK: Names = {
    "attn.qkv_x": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
    "attn.qkv_y": ("attn1.add_q_proj", "attn1.add_k_proj", "attn1.add_v_proj"),
    "attn.q_norm_x": "attn1.norm_q",
    "attn.k_norm_x": "attn1.norm_k",
    "attn.q_norm_y": "attn1.norm_added_q",
    "attn.k_norm_y": "attn1.norm_added_k",
    "attn.proj_x": "attn1.to_out.0",
    "attn.proj_y": "attn1.to_add_out",
    "mod_x": "norm1.linear",
    "mlp_x.w2": "ff.net.2",
    "mlp_y.w2": "ff_context.net.2",
}
_OWN = "transformer_blocks.{}."

MOCHI = Architecture(
    name="mochi",
    title="Mochi 1",
    signs=(
        ATTENTION_3072,
        # FLUX.1 and HunyuanVideo have it as well, in fewer blocks
        layers(r"transformer_blocks_\d+_norm1(_context)?_linear:3072$"),
        layers(r"transformer_blocks_[234]\d_norm1(_context)?_linear:3072$", 4),
        layers(r"transformer_blocks_\d+_attn1_(add_[qkv]_proj:1536|to_add_out:3072)$"),
        layers(r"transformer_blocks_\d+_(ff_context_net_(0_proj:1536|2:4096)|norm1_context_linear_1:3072)$"),
        layers(
            r"blocks_\d+_"
            r"(attn_(qkv_x|proj_[xy]):3072|attn_qkv_y:1536|mod_[xy]:3072|mlp_x_w1:3072|mlp_x_w2:8192|mlp_y_w1:1536)$",
            5,
        ),
        named("mochi"),
    ),
    never=layers(r"(single_(transformer_)?|double_)blocks_\d+_"),  # FLUX.1's, and of models made of them
    inputs=("patch_embed.proj",),
    names={
        **within("blocks.{}", "transformer_blocks.{}", _BLOCK),
        "x_embedder.proj": "patch_embed.proj",
        **linears("t_embedder.mlp", "time_embed.timestep_embedder"),
        "t5_y_embedder": "time_embed.pooler",
        "t5_yproj": "time_embed.caption_proj",
        "final_layer.linear": "proj_out",
    },
    swapped={
        "blocks.{}.mlp_x.w1": f"{_OWN}ff.net.0.proj",
        "blocks.{}.mlp_y.w1": f"{_OWN}ff_context.net.0.proj",
        "final_layer.mod": "norm_out.linear",
    },
    aliases=(
        Alias(DENOISER, "blocks.{}.mod_y", f"{_OWN}norm1_context.linear", times=2),
        Alias(DENOISER, "blocks.{}.mod_y", f"{_OWN}norm1_context.linear_1"),
    ),
)
