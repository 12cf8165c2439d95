"""Whole biases and norms that PEFT saves, alone and beside a LoRA."""

from __future__ import annotations

import torch

from .base import PEFT, Sample, Shape, Tensors, randn
from .moslora import effective, make


def _factor(own: Tensors, multiplier: float) -> torch.Tensor:
    return torch.tensor(1.0 - multiplier, dtype=torch.float64)


def _make_beside(shape: Shape, generator: torch.Generator) -> Tensors:
    made = make("mixer")(shape, generator)
    del made["mixer"]
    return {**made, "bias": randn(generator, shape[0])}


SAMPLES = (
    Sample(
        "whole bias alone",
        "set_weight",
        lambda shape, generator: {"bias": randn(generator, shape[0])},
        lambda own, weight, m: weight,
        frozenset({"linear", "conv", "layer norm", "attention out"}),
        bias=lambda own, m: m * own["bias"],
        bias_factor=_factor,
        prefix=PEFT,
        additive=False,
    ),
    Sample(
        "whole norm alone",
        "set_weight",
        lambda shape, generator: {"weight": 1 + randn(generator, *shape), "bias": randn(generator, *shape)},
        lambda own, weight, m: weight + m * (own["weight"] - weight),
        frozenset({"norm"}),
        bias=lambda own, m: m * own["bias"],
        bias_factor=_factor,
        prefix=PEFT,
        additive=False,
    ),
    Sample(
        "lora beside a whole bias",
        "lora+whole_bias",
        _make_beside,
        lambda own, weight, m: effective("mixer")({**own, "mixer": torch.eye(4, dtype=torch.float64)}, weight, m),
        frozenset({"linear", "conv", "attention"}),
        bias=lambda own, m: m * own["bias"],
        bias_factor=_factor,
        prefix=PEFT,
        config={"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "all"},
        additive=False,
    ),
)
