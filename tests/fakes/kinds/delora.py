"""DeLoRA, rank by rank. PEFT tuners/delora/layer.py, `_compute_delta`."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    return {
        "delora_A": randn(generator, 4, shape[1]),
        "delora_B": randn(generator, shape[0], 4),
        "delora_lambda": torch.tensor([9.0]),
        "delora_w_norm": randn(generator, shape[1]).abs() + 0.5,
    }


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    made = weight.clone()
    for i in range(4):
        a, b = own["delora_A"][i], own["delora_B"][:, i]
        made += multiplier * 9.0 / 4 * torch.outer(b / b.norm(), own["delora_w_norm"] * a / a.norm())
    return made


SAMPLES = (Sample("delora", "delora", _make, _effective, frozenset({"linear", "attention"}), prefix=PEFT),)
