"""Flux.1 (dev, schnell, Fill, Kontext, Krea, control): 19 double and 38 single blocks, 3072 wide; CLIP-L and T5."""

from ._clip import CLIP_ALIASES
from ._flux_blocks import FLUX_BLOCKS, FLUX_SIGNS, MODULATION_SIGN, OTHERS, T5_INPUT_SIGN, double_blocks
from ._t5 import T5_ALIASES
from .base import Architecture, Variant, linears, named

FLUX = Architecture(
    name="flux",
    title="FLUX.1",
    # which have the same layers: a file of nothing else is likelier for this
    before=(
        "auraflow",
        "bria",
        "bria_fibo",
        "chroma",
        "flux2",
        "flux3",
        "hunyuan_video",
        "longcat_image",
        "motif_video",
        "ovis_image",
    ),
    signs=(*FLUX_SIGNS, MODULATION_SIGN, T5_INPUT_SIGN, named(r"flux(?![._-]?2)|flex\.?1")),
    width=3072,
    never=OTHERS,
    inputs=("x_embedder",),
    variants=(
        Variant("FLUX.1", inputs=64),
        Variant("FLUX.1 Fill", inputs=384),
        Variant("FLUX.1 control (Canny or Depth)", inputs=128),
        Variant("FLUX.1 dev", layers=r"guidance_(in|embedder)"),
    ),
    names={
        "single_blocks.{}.modulation.lin": "single_transformer_blocks.{}.norm.linear",
        **linears("time_in", "time_text_embed.timestep_embedder", ("in_layer", "out_layer")),
        **linears("vector_in", "time_text_embed.text_embedder", ("in_layer", "out_layer")),
        **linears("guidance_in", "time_text_embed.guidance_embedder", ("in_layer", "out_layer")),
    },
    swapped={"final_layer.adaLN_modulation.1": "norm_out.linear"},
    aliases=(
        *FLUX_BLOCKS,
        *double_blocks({"img_mod.lin": "norm1.linear", "txt_mod.lin": "norm1_context.linear"}),
        *CLIP_ALIASES,
        *T5_ALIASES,
    ),
)
