"""RandLoRA with its shared matrices, larger than the layer. PEFT tuners/randlora/layer.py, `get_scaled_bases`."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    least, most = sorted(shape)
    bases = -(-least // 5)
    return {
        "base_model.randlora_A": randn(generator, 5, 1, least + 7, size=1.0),
        "base_model.randlora_B": randn(generator, most + 9, bases + 2, 5, size=1.0),
        "randlora_lambda": randn(generator, 5, bases, size=1.0),
        "randlora_gamma": randn(generator, bases, least, size=0.1),
    }


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    rank, bases = own["randlora_lambda"].shape
    least, most = sorted(weight.shape)
    small = torch.stack(
        [
            own["randlora_lambda"][r, n] * own["base_model.randlora_A"][r, 0, :least] * own["randlora_gamma"][n]
            for r in range(rank)
            for n in range(bases)
        ]
    )
    large = own["base_model.randlora_B"][:most, :bases].reshape(most, -1)
    delta = large @ small
    return weight + multiplier * 20 / 5 * (delta.T if weight.shape[1] > weight.shape[0] else delta)


SAMPLES = (
    Sample(
        "randlora",
        "randlora",
        _make,
        _effective,
        frozenset({"linear", "attention"}),
        prefix=PEFT,
        config={"peft_type": "RANDLORA", "r": 5, "randlora_alpha": 20},
    ),
)
