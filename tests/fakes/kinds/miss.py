"""MiSS and Bone. PEFT tuners/miss/layer.py, `get_delta_weight_miss`."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(name: str, rank: int, mini: int = 1):
    def make(shape: Shape, generator: torch.Generator) -> Tensors:
        return {name: randn(generator, rank, shape[0] // mini, size=0.4)}

    return make


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    (block,) = own.values()
    made = weight.clone()
    for j in range(weight.shape[1]):
        for i in range(weight.shape[0]):
            made[i, j] += multiplier * block[j % block.shape[0], i % block.shape[1]]
    return made


_LAYERS = frozenset({"linear", "attention"})
SAMPLES = (
    Sample("miss", "miss", _make("miss_block", 4), _effective, _LAYERS, prefix=PEFT),
    Sample("bone, r no divisor", "miss", _make("bone_block", 5), _effective, frozenset({"linear"}), prefix=PEFT),
    Sample("miss, mini", "miss", _make("miss_block", 3, 4), _effective, frozenset({"linear"}), prefix=PEFT),
)
