"""Chains of Householder reflections, one after the other."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    return {"hra_u": randn(generator, math.prod(shape[1:]), 4)}


def _make_paired(shape: Shape, generator: torch.Generator) -> Tensors:
    """As it is early in a training: pairs of nearly the same vectors, of which one pair is still as it began."""
    half = randn(generator, math.prod(shape[1:]), 2).repeat_interleave(2, 1)
    half[:, 3] += randn(generator, half.shape[0], size=0.2)
    return {"hra_u": half}


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    rows = weight.flatten(1)
    for vector in own["hra_u"].T:
        unit = vector / vector.square().sum() ** 0.5
        rows = rows - 2 * torch.outer(rows @ unit, unit)
    return weight + multiplier * (rows.reshape(weight.shape) - weight)


def _orthogonal(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    rows, found = weight.flatten(1), []
    for vector in own["hra_u"].T:
        for other in found:
            vector = vector - (other @ vector) * other
        found.append(vector / vector.square().sum() ** 0.5)
    change = sum(-2 * torch.outer(rows @ unit, unit) for unit in found)
    return weight + multiplier * change.reshape(weight.shape)


SAMPLES = (
    Sample("hra", "hra", _make, _effective, prefix=PEFT, additive=False),
    Sample("hra in pairs", "hra", _make_paired, _effective, prefix=PEFT, additive=False),
    Sample("hra, orthogonal", "hra", _make, _orthogonal, prefix=PEFT, config={"apply_GS": True}, additive=False),
)
