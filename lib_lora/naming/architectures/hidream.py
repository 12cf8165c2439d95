"""HiDream-I1: 16 double and 32 single blocks with experts, 2560 wide; two CLIP, T5-XXL and Llama 3.1.

All programs have the names of HiDream-ai/HiDream-I1 hi_diffusers/models/transformers/transformer_hidream_image.py.
"""

from ._clip import BIG_G_SIGN, CLIP_ALIASES, OPEN_CLIP_ALIASES
from ._llm import LLM_ALIASES
from ._t5 import T5_ALIASES
from .base import Architecture, layers, named

HIDREAM = Architecture(
    name="hidream",
    title="HiDream",
    image_first=("HiDreamImageTransformer2DModel",),
    signs=(layers(r"(double|single)_stream_blocks_\d+_block_", 10), BIG_G_SIGN, named("hidream(?!.?o1)")),
    aliases=(*CLIP_ALIASES, *OPEN_CLIP_ALIASES, *T5_ALIASES, *LLM_ALIASES),
)
