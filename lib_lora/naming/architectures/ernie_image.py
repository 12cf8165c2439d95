"""ERNIE-Image, with Mistral 3 as text encoder. All programs call its layers as diffusers does.

Source: diffusers' ErnieImageTransformer2DModel and `convert_ernie_image_transformer_checkpoint_to_diffusers`.
"""

from ._llm import LLM_ALIASES
from .base import Architecture, layers, named

ERNIE_IMAGE = Architecture(
    name="ernie_image",
    title="ERNIE-Image",
    signs=(
        layers(r"layers_\d+_self_attention_to_([qkv]|out_0):", 5),
        layers(r"layers_\d+_mlp_linear_fc2:", 5),
        named("ernie"),
    ),
    aliases=LLM_ALIASES,
)
