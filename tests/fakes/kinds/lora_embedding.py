"""LoRA on an embedding in PEFT's spelling."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    entries, width = shape
    return {"lora_embedding_A": randn(generator, 3, entries), "lora_embedding_B": randn(generator, width, 3)}


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    return weight + multiplier * 6 / 3 * (own["lora_embedding_B"] @ own["lora_embedding_A"]).t()


SAMPLES = (
    Sample(
        "lora of peft on an embedding",
        "lora_embedding",
        _make,
        _effective,
        frozenset({"embedding"}),
        prefix=PEFT,
        config={"peft_type": "LORA", "r": 3, "lora_alpha": 6},
    ),
)
