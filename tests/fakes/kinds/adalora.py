"""AdaLoRA as PEFT saves it: pruned, so that only the configuration tells the rank it is divided by."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    return {
        "lora_A": randn(generator, 3, torch.Size(shape[1:]).numel(), size=0.7),
        "lora_B": randn(generator, shape[0], 3, size=0.7),
        "lora_E": randn(generator, 3, 1, size=1.0),
    }


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    delta = own["lora_B"] @ torch.diag(own["lora_E"].flatten()) @ own["lora_A"]
    return weight + multiplier * 6 / (4 + 1e-5) * delta.reshape(weight.shape)


SAMPLES = (
    Sample(
        "adalora",
        "adalora",
        _make,
        _effective,
        frozenset({"linear", "conv"}),
        prefix=PEFT,
        config={"peft_type": "ADALORA", "init_r": 4, "target_r": 3, "lora_alpha": 6},
    ),
)
