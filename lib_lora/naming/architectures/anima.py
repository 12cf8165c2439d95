"""Anima: the transformer of Cosmos-Predict2 2B, Qwen3 0.6B, and an adapter between them that checkpoints keep inside
the transformer, SD.Next beside it as `llm_adapter`, and diffusers as `text_conditioner`.

A file for the transformer alone fits Cosmos-Predict2 2B as well, and nothing tells which it was made for but what its
trainer wrote about itself: it is taken for Anima, which has many more.
Source: kohya-ss/sd-scripts library/anima_models.py; diffusers' AnimaTextConditioner; circlestone-labs/Anima.
"""

from ...files.components import DENOISER
from ._cosmos_blocks import COSMOS_ALIASES, COSMOS_SIGNS
from ._llm import LLM_ALIASES
from .base import Alias, Architecture, Sign, layers, named

_ADAPTER = ("llm_adapter", "text_conditioner")

ANIMA = Architecture(
    name="anima",
    title="Anima",
    before=("cosmos_predict2",),
    signs=(
        layers(r"(net_)?(llm_adapter|text_conditioner)_", 5),
        Sign(r"^(llm_adapter|text_conditioner):", weight=5),
        *COSMOS_SIGNS,
        # Qwen3 0.6B; Stable Diffusion 2 has layers as wide, but not at the root
        Sign(r"^text_encoder[^:]*:(model_)?layers_\d+_(self_attn_[qkv]_proj|mlp_(gate|up)_proj):1024$", weight=4),
        named("anima"),
    ),
    aliases=(
        *COSMOS_ALIASES,
        Alias(DENOISER, "net.llm_adapter", "llm_adapter"),
        Alias(DENOISER, "llm_adapter", "text_conditioner"),
        *(Alias(own, name, "") for own in _ADAPTER for name in (*_ADAPTER, "net.llm_adapter")),
        *LLM_ALIASES,
    ),
)
