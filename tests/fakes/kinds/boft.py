"""LyCORIS' BOFT, each factor as a whole matrix with its permutation."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Sample, Shape, Tensors, randn
from .diag_oft import scaled


def _butterfly(width: int, size: int, level: int) -> list[int]:
    """Which channel comes where, before the factor `level` acts on consecutive blocks."""
    apart = 2**level * size // 2
    return [start + half * apart + i for start in range(0, width, 2 * apart) for i in range(apart) for half in (0, 1)]


def _make(blocks: int, factors: int, alpha: float = 0.0, *, rescale: bool = False):
    def make(shape: Shape, generator: torch.Generator) -> Tensors:
        size = shape[0] // blocks
        made = {
            "oft_blocks": randn(generator, factors, blocks, size, size, size=0.15),
            "alpha": torch.tensor(alpha),
        }
        if rescale:
            made["rescale"] = 1 + randn(generator, shape[0], *(1,) * (len(shape) - 1))
        return made

    return make


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    width, limit = weight.shape[0], float(own["alpha"]) * weight.shape[0]
    skew = own["oft_blocks"] - own["oft_blocks"].transpose(-1, -2)
    norm = skew.square().sum() ** 0.5
    if 0 < limit < norm:
        skew = skew * limit / norm
    size = skew.shape[-1]
    eye = torch.eye(size, dtype=weight.dtype)
    rows = weight.flatten(1)
    for level, factor in enumerate(skew):
        turns = [(eye + one) @ torch.linalg.inv(eye - one) for one in factor]
        whole = torch.block_diag(*[multiplier * turn + (1 - multiplier) * eye for turn in turns])
        order = list(range(width)) if size % 2 else _butterfly(width, size, level)
        moved = whole @ rows[order]
        rows = torch.empty_like(moved)
        rows[order] = moved
    return scaled(rows.reshape(weight.shape), own.get("rescale"), multiplier)


SAMPLES = (
    Sample("boft", "boft", _make(4, 3), _effective, additive=False),
    Sample("boft of one factor", "boft", _make(8, 1), _effective, additive=False),
    Sample("boft bounded and rescaled", "boft", _make(4, 2, 0.04, rescale=True), _effective, additive=False),
)
