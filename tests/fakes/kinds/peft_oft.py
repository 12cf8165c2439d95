"""Rotations of the input as PEFT and OneTrainer train them, from triangles of skew matrices."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .base import KOHYA, PEFT, Sample, Shape, Tensors, randn

ONETRAINER = {"ot_branch": "master", "ot_revision": "23df383"}


def _skew(triangles: Tensor, size: int) -> list[Tensor]:
    found = []
    for row in triangles:
        q = torch.zeros(size, size, dtype=triangles.dtype)
        values = iter(row.tolist())
        for i in range(size):
            for j in range(i + 1, size):
                q[i, j] = next(values)
                q[j, i] = -q[i, j]
        found.append(q)
    return found


def _turned(weight: Tensor, turns: list[Tensor], multiplier: float, *, transposed: bool = True) -> Tensor:
    """W R^T or W R, each output's entries as one row."""
    rows = weight.flatten(1)
    size = turns[0].shape[0]
    count = rows.shape[1] // size
    turns = turns * count if len(turns) == 1 else turns
    whole = torch.block_diag(*turns)
    whole = multiplier * whole + (1 - multiplier) * torch.eye(rows.shape[1], dtype=weight.dtype)
    return (rows @ (whole.T if transposed else whole)).reshape(weight.shape)


def _series(q: Tensor) -> Tensor:
    return torch.eye(q.shape[0], dtype=q.dtype) + 2 * q + 2 * q @ q + 2 * q @ q @ q + q @ q @ q @ q


def _size(width: int) -> int:
    """Return a block size."""
    return 6 if width % 6 == 0 else 4


def _make(size: int | None = None, *, shared: bool = False, scaled: bool = False):
    def make(shape: Shape, generator: torch.Generator) -> Tensors:
        block = size or _size(math.prod(shape[1:]))
        count = 1 if shared else math.prod(shape[1:]) // block
        made = {"oft_R.weight": randn(generator, count, block * (block - 1) // 2, size=0.6 if scaled else 0.15)}
        if scaled:
            made["oft_R.scaled_oft"] = torch.tensor(True)
        return made

    return make


def _neumann(size: int | None = None, scale: float = 1.0, *, onetrainer: bool = False):
    def effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
        block = size or _size(weight[0].numel())
        turns = [_series(q * scale) for q in _skew(own["oft_R.weight"], block)]
        return _turned(weight, turns, multiplier, transposed=not onetrainer or weight.ndim == 2)

    return effective


def _exact(size: int, eps: float | None = None):
    def effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
        blocks = _skew(own["oft_R.weight"], size)
        if eps is not None:
            limit = eps / len(blocks) ** 0.5
            blocks = [q * min(1.0, limit / q.square().sum().item() ** 0.5) for q in blocks]
        eye = torch.eye(size, dtype=weight.dtype)
        return _turned(weight, [(eye - q) @ torch.linalg.inv(eye + q) for q in blocks], multiplier)

    return effective


EXACT = {"peft_type": "OFT", "use_cayley_neumann": False, "coft": False}

SAMPLES = (
    Sample("oft of peft", "peft_oft", _make(), _neumann(), prefix=PEFT, additive=False),
    Sample("oft of peft, shared", "peft_oft", _make(3, shared=True), _neumann(3), prefix=PEFT, additive=False),
    Sample("oft of peft, exact", "peft_oft", _make(6), _exact(6), prefix=PEFT, config=EXACT, additive=False),
    Sample(
        "oft of peft, constrained",
        "peft_oft",
        _make(2),
        _exact(2, 0.5),
        prefix=PEFT,
        config=EXACT | {"coft": True, "eps": 0.5},
        additive=False,
    ),
    Sample(
        "oft of onetrainer",
        "peft_oft",
        _make(6),
        _neumann(6, onetrainer=True),
        prefix=KOHYA,
        metadata=ONETRAINER,
        additive=False,
    ),
    Sample(
        "oft of onetrainer, scaled and shared",
        "peft_oft",
        _make(6, shared=True, scaled=True),
        _neumann(6, 1 / (2 * 5**0.5), onetrainer=True),
        prefix=KOHYA,
        additive=False,
    ),
)
