"""Stable Diffusion 3 and 3.5 (medium, large, turbo): joint blocks of 1536 or 2432; CLIP-L, OpenCLIP bigG and T5.

Source: Stability-AI/sd3.5 mmditx.py against diffusers' SD3Transformer2DModel.
"""

from ...files.components import DENOISER
from ._encoders import BIG_G_SIGN
from .base import Alias, Architecture, Names, Variant, layers, linears, named, within
from .flux import OTHERS, T5_INPUT_SIGN

_BLOCK: Names = {
    "x_block.attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "x_block.attn.ln_q": "attn.norm_q",
    "x_block.attn.ln_k": "attn.norm_k",
    "x_block.attn.proj": "attn.to_out.0",
    "x_block.attn2.qkv": ("attn2.to_q", "attn2.to_k", "attn2.to_v"),  # in the first blocks of 3.5 medium
    "x_block.attn2.ln_q": "attn2.norm_q",
    "x_block.attn2.ln_k": "attn2.norm_k",
    "x_block.attn2.proj": "attn2.to_out.0",
    "x_block.mlp.fc1": "ff.net.0.proj",
    "x_block.mlp.fc2": "ff.net.2",
    "x_block.adaLN_modulation.1": "norm1.linear",
    "context_block.attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    "context_block.attn.ln_q": "attn.norm_added_q",
    "context_block.attn.ln_k": "attn.norm_added_k",
    "context_block.attn.proj": "attn.to_add_out",
    "context_block.mlp.fc1": "ff_context.net.0.proj",
    "context_block.mlp.fc2": "ff_context.net.2",
}
_CONTEXT = "joint_blocks.{}.context_block.adaLN_modulation.1", "transformer_blocks.{}.norm1_context.linear"


SD3 = Architecture(
    name="sd3",
    title="Stable Diffusion 3",
    signs=(
        layers(r"joint_blocks_\d+_(x|context)_block_(attn2?_qkv|attn2?_proj|mlp_fc1):(1536|2432)$", 4),
        layers(r"transformer_blocks_\d+_(attn_add_[qkv]_proj|attn_to_add_out):(1536|2432)$", 4),
        layers(r"transformer_blocks_\d+_attn_to_[qkv]:(1536|2432)$", 2),
        layers(r"transformer_blocks_\d+_(ff_context_net_0_proj|norm1_context_linear):(1536|2432)$", 2),
        # Stable Audio has such layers, too
        layers(r"time_text_embed_text_embedder_linear_1:2048$", 4),
        layers(r"transformer_blocks_\d+_(attn2_to_[qkv]|ff_net_0_proj):(1536|2432)$", 1),
        BIG_G_SIGN,
        T5_INPUT_SIGN,
        # sd-scripts gives the name of the variant for the version
        named("sd_?3|(medium|5-medium|5-large)$|stable-diffusion-v?3"),
    ),
    never=OTHERS,
    variants=(
        Variant("Stable Diffusion 3 or 3.5 Medium", width=1536),
        Variant("Stable Diffusion 3.5 Large", width=2432),
        Variant("Stable Diffusion 3.5 Medium", layers=r"_blocks[._]\d+[._](x_block[._])?attn2[._]"),
    ),
    names={
        **within("joint_blocks.{}", "transformer_blocks.{}", _BLOCK),
        "x_embedder.proj": "pos_embed.proj",
        **linears("t_embedder.mlp", "time_text_embed.timestep_embedder"),
        **linears("y_embedder.mlp", "time_text_embed.text_embedder"),
        "final_layer.linear": "proj_out",
    },
    swapped={"final_layer.adaLN_modulation.1": "norm_out.linear"},
    aliases=(
        Alias(DENOISER, *_CONTEXT, times=6),
        # the last block gives no context: only shift and scale, and diffusers has scale first there
        Alias(DENOISER, *_CONTEXT, swapped=True, times=2),
    ),
)
