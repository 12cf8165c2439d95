"""OmniGen 2: 32 layers and three refiners, 2520 wide, of Lumina Image 2.0's kind; Qwen 2.5 VL.

All programs have the names of VectorSpaceLab/OmniGen2 omnigen2/models/transformers/transformer_omnigen2.py.
"""

from ._llm import LLM_ALIASES
from .base import Architecture, Sign, named

_ANY = r"^(denoiser|\?):(layers|(noise|context|ref_image)_refiner)_\d+_"

OMNIGEN2 = Architecture(
    name="omnigen2",
    title="OmniGen 2",
    signs=(
        Sign(rf"{_ANY}attn_to_([qkv]|out_0):2520$"),
        Sign(rf"{_ANY}feed_forward_linear_[13]:2520$"),
        Sign(rf"{_ANY}norm1_linear:1024$", weight=1),
        named("omnigen-?2"),
    ),
    aliases=LLM_ALIASES,
)
