"""Super-tuning, with a pair beside the entries. PEFT tuners/supertuning/layer.py."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    return {
        "supertuning_values": randn(generator, 40, size=1.0),
        "supertuning_indices": torch.randperm(shape[0] * shape[1], generator=generator)[:40].int(),
        "supertuning_lora_A.weight": randn(generator, 4, shape[1]),
        "supertuning_lora_B.weight": randn(generator, shape[0], 4),
    }


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    delta = torch.zeros_like(weight).flatten()
    for place, value in zip(own["supertuning_indices"].long(), own["supertuning_values"], strict=True):
        delta[place] = value
    pair = own["supertuning_lora_B.weight"] @ own["supertuning_lora_A.weight"]
    return weight + multiplier * (delta.view_as(weight) + 2.0 * pair)


SAMPLES = (
    Sample(
        "supertuning",
        "supertuning",
        _make,
        _effective,
        frozenset({"linear, many tokens"}),
        prefix=PEFT,
        config={"peft_type": "SUPERTUNING", "r": 4, "lora_alpha": 8},
    ),
)
