"""NVIDIA Cosmos-Predict2: 28 blocks of 2048 (2B) or 36 of 5120 (14B), T5. Anima has the transformer of the smaller."""

from __future__ import annotations

from ._cosmos_blocks import COSMOS_ALIASES
from .base import Architecture, Sign

COSMOS_PREDICT2 = Architecture(
    name="cosmos_predict2",
    title="Cosmos-Predict2",
    signs=(
        Sign(r"^(denoiser|\?):(net_)?blocks_\d+_((self|cross)_attn_(q|k|v|output)_proj|mlp_layer[12]):", weight=4),
        Sign(r"^(denoiser|\?):(net_)?blocks_\d+_adaln_modulation_(self_attn|cross_attn|mlp)_[12]:", weight=4),
        Sign(r"^(denoiser|\?):transformer_blocks_\d+_(attn2_to_[kv]:1024|norm[123]_linear_[12]:)", weight=4),
        Sign(
            r"^(denoiser|\?):((net_)?blocks_\d+_(self|cross)_attn_q_proj|transformer_blocks_\d+_attn[12]_to_q):5120$",
            weight=2,
        ),
        Sign(r"^meta:(ss_base_model_version|modelspec_architecture):(?i:cosmos)", weight=6),
    ),
    aliases=COSMOS_ALIASES,
)
