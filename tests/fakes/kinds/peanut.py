"""PEANuT. https://arxiv.org/abs/2410.01870, PEFT tuners/peanut/layer.py."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    return {
        "peanut_A.weight": randn(generator, 4, shape[0]),
        "peanut_encoders.0.weight": randn(generator, 4, 4),
        "peanut_decoders.0.weight": randn(generator, 4, 4),
        "peanut_B.weight": randn(generator, shape[0], 4),
    }


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    first = (weight.T @ own["peanut_A.weight"].T).tanh()
    middle = ((first @ own["peanut_encoders.0.weight"].T).tanh() @ own["peanut_decoders.0.weight"].T).tanh() + first
    return weight + multiplier * 1.5 * (middle @ own["peanut_B.weight"].T).T


SAMPLES = (
    Sample(
        "peanut",
        "peanut",
        _make,
        _effective,
        frozenset({"linear, many tokens"}),
        prefix=PEFT,
        config={"peft_type": "PEANUT", "r": 4, "depth": 1, "act_fn": "tanh", "scaling": 1.5},
        additive=False,
    ),
)
