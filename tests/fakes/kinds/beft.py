"""BEFT: a change of the bias. PEFT tuners/beft/layer.py."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    return {"beft_bias": randn(generator, 1, shape[0])}


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    return weight.clone()


def _bias(own: Tensors, multiplier: float) -> Tensor:
    return multiplier * own["beft_bias"][0]


SAMPLES = (Sample("beft", "beft", _make, _effective, frozenset({"linear, many tokens"}), bias=_bias, prefix=PEFT),)
