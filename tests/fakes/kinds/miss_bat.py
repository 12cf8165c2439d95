"""MiSS with blocks that read the weight. PEFT tuners/miss/layer.py, `get_delta_weight`."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    size = next(size for size in (6, 4, 2, 1) if shape[0] % size == shape[1] % size == 0)
    return {"miss_block": randn(generator, shape[0] // size, size, size)}


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    made, size = weight.clone(), own["miss_block"].shape[-1]
    for a, block in enumerate(own["miss_block"]):
        for b in range(weight.shape[1] // size):
            at = slice(a * size, a * size + size), slice(b * size, b * size + size)
            made[at] += multiplier * (weight[at] @ block + block)
    return made


SAMPLES = (
    Sample("miss, bat", "miss_bat", _make, _effective, frozenset({"linear", "attention"}), prefix=PEFT, additive=False),
)
