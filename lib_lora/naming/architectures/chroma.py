"""Chroma: FLUX.1-schnell's blocks without their modulation, which one small network makes for all of them; T5 alone.

Sources: lodestone-rock/flow src/models/chroma/model.py, as in ComfyUI comfy/ldm/chroma/model.py, against diffusers'
ChromaTransformer2DModel.
"""

from ._flux_blocks import FLUX_BLOCKS, FLUX_SIGNS, OTHERS, T5_INPUT_SIGN
from ._t5 import T5_ALIASES
from .base import Architecture, layers, linears, named

CHROMA = Architecture(
    name="chroma",
    title="Chroma",
    before=("bria", "bria_fibo", "motif_video", "ovis_image"),
    signs=(*FLUX_SIGNS, T5_INPUT_SIGN, layers(r"distilled_guidance_layer_"), named("chroma")),
    never=OTHERS,
    names={
        **linears("distilled_guidance_layer.layers.{}", "distilled_guidance_layer.layers.{}", ("in_layer", "out_layer"))
    },
    aliases=(*FLUX_BLOCKS, *T5_ALIASES),
)
