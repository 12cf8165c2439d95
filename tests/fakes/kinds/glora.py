"""GLoRA: the layout of today, that of 2023, and those that only the date of the training tells apart."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .base import FEW, Sample, Shape, Tensors, randn

Names = tuple[str, str, str, str]
NEW: Names = ("a1.weight", "a2.weight", "b1.weight", "b2.weight")
OLD: Names = ("a2.weight", "a1.weight", "b2.weight", "b1.weight")


def _make(names: Names, rank: int = 3) -> Callable[[Shape, torch.Generator], Tensors]:
    """`names` are those of A's up, A's down, B's up and B's down."""

    def make(shape: Shape, generator: torch.Generator) -> Tensors:
        out, inside, *kernel = shape
        ones = (1,) * len(kernel)
        made = (
            randn(generator, inside, rank, *ones),
            randn(generator, rank, inside, *ones),
            randn(generator, out, rank, *ones),
            randn(generator, rank, inside, *kernel),
        )
        return {**dict(zip(names, made, strict=True)), "alpha": torch.tensor(1.5)}

    return make


def _effective(names: Names) -> Callable[[Tensors, Tensor, float], Tensor]:
    def effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
        a_up, a_down, b_up, b_down = (own[name] for name in names)
        mixed = torch.einsum("oi...,ir,rj->oj...", weight, a_up.flatten(1), a_down.flatten(1))
        added = torch.einsum("or,ri...->oi...", b_up.flatten(1), b_down.reshape(-1, *weight.shape[1:]))
        return weight + multiplier * 1.5 / a_down.shape[0] * (mixed + added)

    return effective


def _make_core(shape: Shape, generator: torch.Generator) -> Tensors:
    out, inside, *kernel = shape
    ones = (1,) * len(kernel)
    return {
        **_make(NEW)(shape, generator),
        "b1.weight": randn(generator, out, 3, *ones),
        "bm.weight": randn(generator, 3, 3, *kernel, size=0.8),
        "b2.weight": randn(generator, 3, inside, *ones),
    }


def _effective_core(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    b1, bm, b2 = own["b1.weight"].flatten(1), own["bm.weight"], own["b2.weight"].flatten(1)
    folded = torch.einsum("ij...,jq->iq...", bm, b2)
    return _effective(NEW)({**own, "b2.weight": folded, "b1.weight": b1}, weight, multiplier)


_LAYERS = frozenset({"linear", "conv", "attention"})
SAMPLES = (
    Sample("glora", "glora", _make(NEW), _effective(NEW), _LAYERS, additive=False),
    Sample("glora of 2023", "glora", _make(OLD), _effective(OLD), FEW - {"conv grouped"}, additive=False),
    Sample(
        "glora core", "glora", _make_core, _effective_core, frozenset({"conv 3x3, stride", "conv 1-d"}), additive=False
    ),
    # as wide as its rank: attention is square, so that either layout fits
    Sample("glora, square", "glora", _make(NEW, 24), _effective(NEW), frozenset({"attention q"}), additive=False),
    Sample(
        "glora of 2023, square",
        "glora",
        _make(OLD, 24),
        _effective(OLD),
        frozenset({"attention q"}),
        metadata={"ss_training_finished_at": "1700000000.5"},
        additive=False,
    ),
)
