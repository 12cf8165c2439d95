"""FourierFT. PEFT tuners/fourierft/layer.py, `get_delta_weight`, with the transform written as two matrices."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    return {"fourierft_spectrum": randn(generator, 60, size=1.0)}


def _inverse(size: int) -> Tensor:
    turns = torch.outer(torch.arange(size), torch.arange(size)).double() / size
    return torch.polar(torch.ones_like(turns), 2 * math.pi * turns) / size


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    spectrum = torch.zeros(weight.numel(), dtype=weight.dtype)
    spectrum[torch.randperm(weight.numel(), generator=torch.Generator().manual_seed(777))[:60]] = own[
        "fourierft_spectrum"
    ]
    spectrum = spectrum.reshape(weight.shape).to(torch.complex128)
    made = _inverse(weight.shape[0]) @ spectrum @ _inverse(weight.shape[1])
    return weight + multiplier * 150.0 * made.real


SAMPLES = (
    Sample(
        "fourierft",
        "fourierft",
        _make,
        _effective,
        frozenset({"linear", "attention"}),
        prefix=PEFT,
        config={"peft_type": "FOURIERFT", "random_loc_seed": 777, "scaling": 150.0},
    ),
)
