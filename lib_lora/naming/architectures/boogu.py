"""Boogu Image: 8 layers of two streams and 32 of one, 3360 wide, of OmniGen 2's kind; Qwen 3 VL.

All programs have the names of boogu-project/Boogu-Image boogu/models/transformers/transformer_boogu.py.
"""

from __future__ import annotations

from ._llm import LLM_ALIASES
from .base import Architecture, Sign, named

BOOGU = Architecture(
    name="boogu",
    title="Boogu Image",
    signs=(
        Sign(r"^(denoiser|\?):(double|single)_stream_layers_\d+_", weight=6),
        Sign(
            r"^(denoiser|\?):(noise|context|ref_image)_refiner_\d+_(attn_to_([qkv]|out_0)|feed_forward_linear_[13]):3360$"
        ),
        named("boogu"),
    ),
    aliases=LLM_ALIASES,
)
