"""C3A, entry by entry. PEFT tuners/c3a/utils.py, `get_circulant_fast`."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    return {"c3a_kernel": randn(generator, shape[0] // 8, shape[1] // 8, 8, size=5.0)}


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    kernel, made = own["c3a_kernel"], weight.clone()
    size = kernel.shape[2]
    for i in range(weight.shape[0]):
        for j in range(weight.shape[1]):
            value = kernel[i // size, j // size, (j % size - i % size) % size]
            made[i, j] += multiplier * value / weight.shape[1]
    return made


SAMPLES = (Sample("c3a", "c3a", _make, _effective, frozenset({"linear", "attention"}), prefix=PEFT),)
