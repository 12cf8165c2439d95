"""CogView 4: 28 blocks, 4096 wide, which see text and picture as one sequence; GLM 4.

Trainers have the names of diffusers' CogView4Transformer2DModel.
"""

from ._llm import LLM_ALIASES
from .base import Architecture, layers, named
from .cogvideox import MODULATION_512

COGVIEW4 = Architecture(
    name="cogview4",
    title="CogView 4",
    before=("cogview3",),
    signs=(
        MODULATION_512,
        layers(r"transformer_blocks_\d+_(attn1_to_([qkv]|out_0)|ff_net_0_proj):(2560|4096)$", 1),
        layers(r"patch_embed_text_proj:4096$", 2),
        layers(r"time_condition_embed_(timestep|condition)_embedder_", 4),
        named("cogview-?4"),
    ),
    never=layers(r"(image|glyph|prior)_projector_"),  # GLM-Image's
    aliases=LLM_ALIASES,
)
