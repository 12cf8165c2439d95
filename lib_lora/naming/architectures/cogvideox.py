"""CogVideoX (2B, 5B and 1.5): 30 or 42 blocks, 1920 or 3072 wide, which see text and video as one sequence; T5.

Trainers have the names of diffusers' CogVideoXTransformer3DModel.
"""

from ._t5 import T5_ALIASES
from .base import Architecture, Variant, layers, named

ATTENTION_3072 = layers(r"transformer_blocks_\d+_attn1_to_([qkv]|out_0):3072$")
"""What Mochi has as well."""
MODULATION_512 = layers(r"transformer_blocks_\d+_norm1_linear:512$")
"""What CogView 4 has as well."""

COGVIDEOX = Architecture(
    name="cogvideox",
    title="CogVideoX",
    signs=(
        layers(r"transformer_blocks_\d+_(attn1_to_([qkv]|out_0)|ff_net_0_proj):1920$"),
        ATTENTION_3072,
        MODULATION_512,
        layers(r"transformer_blocks_\d+_norm2_linear:512$"),
        named("cogvideo"),
    ),
    inputs=("patch_embed.proj",),
    flow=False,
    variants=(
        Variant("CogVideoX 2B", width=1920),
        Variant("CogVideoX 5B", width=3072),
        Variant("CogVideoX for text to video", inputs=16),
        Variant("CogVideoX for image to video", inputs=32),
    ),
    aliases=T5_ALIASES,
)
