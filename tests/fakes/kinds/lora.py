"""LoRA, LoCon and the tucker core."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from .base import Sample, Shape, Tensors, randn


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    return {
        "lora_down.weight": randn(generator, 4, *shape[1:]),
        "lora_up.weight": randn(generator, shape[0], 4, *(1,) * (len(shape) - 2)),
        "alpha": torch.tensor(2.0),
    }


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    delta = own["lora_up.weight"].flatten(1) @ own["lora_down.weight"].flatten(1)
    return weight + multiplier * 2.0 / 4 * delta.reshape(weight.shape)


def _make_tucker(shape: Shape, generator: torch.Generator) -> Tensors:
    ones = (1,) * (len(shape) - 2)
    return {
        "lora_down.weight": randn(generator, 3, shape[1], *ones),
        "lora_mid.weight": randn(generator, 3, 3, *shape[2:]),
        "lora_up.weight": randn(generator, shape[0], 3, *ones),
    }


def _effective_tucker(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    up, down, mid = own["lora_up.weight"], own["lora_down.weight"], own["lora_mid.weight"]
    delta = torch.zeros_like(weight)
    for i, j in itertools.product(range(3), range(3)):
        ones = (1,) * (weight.ndim - 2)
        delta += up[:, i].reshape(-1, 1, *ones) * down[j].reshape(1, -1, *ones) * mid[i, j]
    return weight + multiplier * delta


def _make_bias(shape: Shape, generator: torch.Generator) -> Tensors:
    return {**_make(shape, generator), "lora_up.bias": randn(generator, shape[0])}


SAMPLES = (
    Sample("lora", "lora", _make, _effective, frozenset({"linear", "conv", "grouped", "attention", "embedding"})),
    Sample("lora tucker", "lora", _make_tucker, _effective_tucker, frozenset({"conv", "grouped"})),
    Sample("lora with bias", "lora", _make_bias, _effective, bias=lambda own, m: m * 0.5 * own["lora_up.bias"]),
)
