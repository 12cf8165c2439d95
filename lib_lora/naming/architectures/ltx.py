"""LTX-Video: 2B, 2048 wide, and 13B, 4096 wide; T5-XXL."""

from ._ltx_blocks import LTX_EMBEDDERS, LTX_SIGNS, norms
from ._t5 import CAPTION_SIGN, T5_ALIASES
from .base import Architecture, Variant, layers, named

LTX = Architecture(
    name="ltx",
    title="LTX-Video",
    signs=(
        *LTX_SIGNS,
        layers(r"transformer_blocks_\d+_attn2_to_[kv]:2048$"),
        layers(r"transformer_blocks_\d+_(attn[12]_to_(q|out_0)|ff_net_0_proj):2048$", 1),
        CAPTION_SIGN,
        named("ltx(v|-?video)?($|[_/-](?!2(?!b)))"),
    ),
    variants=(Variant("LTX-Video 2B", width=2048), Variant("LTX-Video 13B", width=4096)),
    aliases=(*LTX_EMBEDDERS, *norms(("attn1", "attn2")), *T5_ALIASES),
)
