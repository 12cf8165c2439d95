"""PVeRA, of which the mean acts. PEFT tuners/pvera/layer.py."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    return {
        "base_model.pvera_A": randn(generator, 10, shape[1] + 12),
        "base_model.pvera_B": randn(generator, shape[0] + 22, 5),
        "pvera_lambda_d": randn(generator, 10, size=1.0),
        "pvera_lambda_b": randn(generator, shape[0], size=1.0),
    }


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    a = own["base_model.pvera_A"][:5, : weight.shape[1]]
    b = own["base_model.pvera_B"][: weight.shape[0]]
    return weight + multiplier * torch.diag(own["pvera_lambda_b"]) @ b @ torch.diag(own["pvera_lambda_d"][:5]) @ a


SAMPLES = (
    Sample(
        "pvera",
        "pvera",
        _make,
        _effective,
        frozenset({"linear, many tokens"}),
        prefix=PEFT,
        config={"peft_type": "PVERA", "r": 5, "save_projection": True, "sample_at_inference": False},
    ),
)
