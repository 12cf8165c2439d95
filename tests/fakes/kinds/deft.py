"""DEFT. https://arxiv.org/abs/2512.01563, PEFT tuners/deft/layer.py."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    return {"deft_P": randn(generator, shape[0], 3), "deft_R": randn(generator, 3, shape[1])}


def _relu(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    p = own["deft_P"]
    return weight + multiplier * (2.0 * p @ own["deft_R"] - p @ p.clamp_min(0).T @ weight)


def _qr(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    q = torch.linalg.qr(own["deft_P"])[0]
    return weight - multiplier * q @ q.T @ weight


_CONFIG = {"peft_type": "DEFT", "r": 3}
SAMPLES = (
    Sample(
        "deft",
        "deft",
        _make,
        _relu,
        frozenset({"linear"}),
        prefix=PEFT,
        config={**_CONFIG, "alpha": 6, "decomposition_method": "relu"},
        additive=False,
    ),
    Sample(
        "deft of removal alone",
        "deft",
        lambda shape, generator: {"deft_P": randn(generator, shape[0], 3)},
        _qr,
        frozenset({"linear without bias, one row"}),
        prefix=PEFT,
        config={**_CONFIG, "decomposition_method": "qr"},
        additive=False,
    ),
)
