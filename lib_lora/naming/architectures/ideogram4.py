"""Ideogram 4: 34 layers, 4608 wide, which see the text and the picture as one sequence.

Its own code has queries, keys and values as one, and calls the rest as diffusers does. Source: diffusers'
Ideogram4Transformer2DModel and `_convert_non_diffusers_ideogram4_lora_to_diffusers`.
"""

from .base import Architecture, layers, named

_LAYER = "layers.{}.attention."

IDEOGRAM4 = Architecture(
    name="ideogram4",
    title="Ideogram 4",
    signs=(
        layers(r"layers_\d+_attention_(qkv|o|to_([qkv]|out_0)):4608$"),
        layers(r"layers_\d+_feed_forward_w[13]:4608$"),
        layers(r"layers_\d+_adaln_modulation:512$"),
        named("ideogram"),
    ),
    names={f"{_LAYER}qkv": tuple(f"{_LAYER}to_{part}" for part in "qkv"), f"{_LAYER}o": f"{_LAYER}to_out.0"},
)
