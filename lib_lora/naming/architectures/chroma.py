"""Chroma: FLUX.1-schnell's blocks without their modulation, which one small network makes for all of them; T5 alone.

Sources: lodestone-rock/flow src/models/chroma/model.py, as in ComfyUI comfy/ldm/chroma/model.py, against diffusers'
ChromaTransformer2DModel.
"""

from __future__ import annotations

from ...files.components import DENOISER
from ._flux_blocks import FLUX_BLOCKS, FLUX_SIGNS, OTHERS, T5_INPUT_SIGN
from ._t5 import T5_ALIASES
from .base import Architecture, Sign, aliases, named

CHROMA = Architecture(
    name="chroma",
    title="Chroma",
    before=("bria", "bria_fibo", "motif_video", "ovis_image"),
    signs=(
        *FLUX_SIGNS,
        T5_INPUT_SIGN,
        Sign(r"^(denoiser|\?):distilled_guidance_layer_"),
        named("chroma"),
    ),
    never=OTHERS,
    aliases=(
        *FLUX_BLOCKS,
        *aliases(
            DENOISER,
            {
                "distilled_guidance_layer.layers.{}.in_layer": "distilled_guidance_layer.layers.{}.linear_1",
                "distilled_guidance_layer.layers.{}.out_layer": "distilled_guidance_layer.layers.{}.linear_2",
            },
        ),
        *T5_ALIASES,
    ),
)
