"""LN tuning: another weight of a norm. PEFT tuners/ln_tuning/layer.py."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    return {"ln_tuning_layers.weight": 1 + randn(generator, *shape)}


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    return weight + multiplier * (own["ln_tuning_layers.weight"] - weight)


SAMPLES = (
    Sample(
        "ln tuning",
        "ln_tuning",
        _make,
        _effective,
        frozenset({"norm", "norm without bias", "linear"}),
        prefix=PEFT,
        additive=False,
    ),
)
