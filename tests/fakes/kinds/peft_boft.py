"""PEFT's BOFT, each factor as a whole matrix with its permutation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _permutation(width: int, size: int, level: int) -> Tensor:
    """P[i, order[i]] = 1: in each stretch of 2^level blocks the even half blocks first, then the odd ones."""
    half, stretch = size // 2, size * 2**level
    order: list[int] = []
    for start in range(0, width, stretch):
        pieces = [list(range(at, at + half)) for at in range(start, start + stretch, half)]
        order += [i for piece in pieces[0::2] + pieces[1::2] for i in piece]
    return torch.eye(width, dtype=torch.float64)[order]


def _make(factors: int):
    def make(shape: Shape, generator: torch.Generator) -> Tensors:
        inside = math.prod(shape[1:])
        blocks = 2 ** (factors - 1) if factors > 1 else 3 if inside % 3 == 0 else 4
        size = inside // blocks
        ones = shape[:1] if len(shape) == 2 else ()
        return {
            "boft_R": randn(generator, factors, blocks, size, size, size=0.3 / size**0.5),
            "boft_s": 1 + randn(generator, *ones, 1, *(shape[:1] if not ones else ())),
        }

    return make


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    rows, factors = weight.flatten(1), own["boft_R"]
    size, width = factors.shape[-1], rows.shape[1]
    eye = torch.eye(size, dtype=weight.dtype)
    turn = torch.eye(width, dtype=weight.dtype)
    for level, factor in enumerate(factors):
        skew = [0.5 * (block - block.T) for block in factor]
        whole = torch.block_diag(*[(eye - s) @ torch.linalg.inv(eye + s) for s in skew])
        if len(factors) > 1:
            order = _permutation(width, size, level)
            whole = order @ whole @ order.T
        turn = whole @ turn
    done = (turn @ rows.T).T * own["boft_s"].reshape(-1, 1)
    return weight + multiplier * (done.reshape(weight.shape) - weight)


SAMPLES = (
    Sample("boft of peft, one factor", "peft_boft", _make(1), _effective, prefix=PEFT, additive=False),
    Sample(
        "boft of peft, two factors",
        "peft_boft",
        _make(2),
        _effective,
        frozenset({"linear", "conv", "attention"}),
        prefix=PEFT,
        additive=False,
    ),
    Sample(
        "boft of peft, three factors",
        "peft_boft",
        _make(3),
        _effective,
        frozenset({"linear", "attention"}),
        prefix=PEFT,
        additive=False,
    ),
)
