"""LongCat-Image: FLUX.1's double and single blocks, 3072 wide, with Qwen 2.5 VL for the text.

All programs have the names of diffusers' LongCatImageTransformer2DModel. The blocks alone do not tell it from FLUX.1.
"""

from ._flux_blocks import JOINT_ATTENTION_SIGN, SINGLE_ATTENTION_SIGN
from ._llm import LLM_ALIASES
from .base import Architecture, layers, named

LONGCAT_IMAGE = Architecture(
    name="longcat_image",
    title="LongCat-Image",
    signs=(
        SINGLE_ATTENTION_SIGN,
        JOINT_ATTENTION_SIGN,
        layers(r"single_transformer_blocks_\d+_proj_mlp:3072$"),
        layers(r"single_transformer_blocks_\d+_proj_out:15360$", 2),
        layers(r"transformer_blocks_\d+_ff_context_net_2:12288$", 1),
        layers(r"transformer_blocks_\d+_ff_context_net_0_proj:3072$", 2),
        layers(r"(single_)?transformer_blocks_\d+_norm1?(_context)?_linear:3072$"),
        layers(r"(context_embedder:3584|time_embed_timestep_embedder_linear_[12]:(256|3072))$"),
        named("longcat"),
    ),
    # what FLUX.1, Chroma, HunyuanVideo, Ovis-Image, FLUX.3 and BRIA have beside such blocks
    never=layers(
        r"(time_text_embed_|timestep_embedder_|time_guidance_embed_|context_embedder:(?!3584$)"
        r"|context_embedder_|distilled_guidance_|caption_projection_|double_blocks_|early_stream_modulations_"
        r"|(txt_)?mode_blocks_|transformer_blocks_\d+_(attn1_|img_))"
    ),
    inputs=("x_embedder",),
    aliases=LLM_ALIASES,
)
