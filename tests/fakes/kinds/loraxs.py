"""LoRA-XS, https://arxiv.org/abs/2405.17604: with the adapter's name before the middle factor."""

from __future__ import annotations

from .base import FEW
from .moslora import sample

SAMPLES = (
    sample(
        "loraxs",
        "loraxs",
        "default_lora_latent_mapping.weight",
        FEW - {"conv grouped"},
        {"peft_type": "LORA", "r": 4, "lora_alpha": 8},
    ),
)
