"""LTX-Video: 2B, 2048 wide, and 13B, 4096 wide; T5-XXL."""

from __future__ import annotations

from ._ltx_blocks import LTX_EMBEDDERS, norms
from ._t5 import T5_ALIASES
from .base import Architecture, Sign

LTX = Architecture(
    name="ltx",
    title="LTX-Video",
    signs=(
        # queries may be as wide in others, but their text is not as wide as they are
        Sign(r"^(denoiser|\?):transformer_blocks_\d+_attn2_to_[kv]:(2048|4096)$"),
        Sign(r"^(denoiser|\?):transformer_blocks_\d+_attn[12]_to_(q|out_0):(2048|4096)$", weight=1),
        Sign(r"^(denoiser|\?):transformer_blocks_\d+_ff_net_0_proj:(2048|4096)$", weight=1),
        Sign(r"^(denoiser|\?):(patchify_proj|proj_in):128$", weight=1),
        Sign(r"^meta:(ss_base_model_version:ltxv?$|modelspec_architecture:(ltxv|ltx-video))", weight=2),
    ),
    aliases=(*LTX_EMBEDDERS, *norms(("attn1", "attn2")), *T5_ALIASES),
)
