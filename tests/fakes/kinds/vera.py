"""VeRA with its shared matrices, larger than the layer."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    return {
        "base_model.vera_A": randn(generator, 5, shape[1] + 12),
        "base_model.vera_B": randn(generator, shape[0] + 22, 5),
        "vera_lambda_d": randn(generator, 5, size=1.0),
        "vera_lambda_b": randn(generator, shape[0], size=1.0),
    }


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    a = own["base_model.vera_A"][:, : weight.shape[1]]
    b = own["base_model.vera_B"][: weight.shape[0]]
    return weight + multiplier * torch.diag(own["vera_lambda_b"]) @ b @ torch.diag(own["vera_lambda_d"]) @ a


SAMPLES = (
    Sample(
        "vera",
        "vera",
        _make,
        _effective,
        frozenset({"linear"}),
        prefix=PEFT,
        config={"peft_type": "VERA", "r": 5, "save_projection": True},
    ),
)
