"""Boogu Image: 8 layers of two streams and 32 of one, 3360 wide, of OmniGen 2's kind; Qwen 3 VL.

All programs have the names of boogu-project/Boogu-Image boogu/models/transformers/transformer_boogu.py.
"""

from ._llm import LLM_ALIASES
from .base import Architecture, layers, named

BOOGU = Architecture(
    name="boogu",
    title="Boogu Image",
    signs=(
        layers(r"(double|single)_stream_layers_\d+_", 6),
        layers(r"(noise|context|ref_image)_refiner_\d+_(attn_to_([qkv]|out_0)|feed_forward_linear_[13]):3360$"),
        named("boogu"),
    ),
    aliases=LLM_ALIASES,
)
