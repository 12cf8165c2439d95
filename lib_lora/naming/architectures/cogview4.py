"""CogView 4: 28 blocks, 4096 wide, which see text and picture as one sequence; GLM 4.

Trainers have the names of diffusers' CogView4Transformer2DModel.
"""

from __future__ import annotations

from ._llm import LLM_ALIASES
from .base import Architecture, Sign, named
from .cogvideox import MODULATION_512

COGVIEW4 = Architecture(
    name="cogview4",
    title="CogView 4",
    before=("cogview3",),
    signs=(
        MODULATION_512,
        Sign(r"^(denoiser|\?):transformer_blocks_\d+_(attn1_to_([qkv]|out_0)|ff_net_0_proj):(2560|4096)$", weight=1),
        Sign(r"^(denoiser|\?):patch_embed_text_proj:4096$", weight=2),
        Sign(r"^(denoiser|\?):time_condition_embed_(timestep|condition)_embedder_", weight=4),
        named("cogview-?4"),
    ),
    never=Sign(r"^(denoiser|\?):(image|glyph|prior)_projector_"),  # GLM-Image's
    aliases=LLM_ALIASES,
)
