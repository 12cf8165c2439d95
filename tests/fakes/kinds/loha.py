"""LoHa: plain, with tucker cores, LyCORIS' and PEFT's; ranks below and above the break-even."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .base import FEW, PEFT, Sample, Shape, Tensors, randn


def _make(rank: int, alpha: bool = True) -> Callable[[Shape, torch.Generator], Tensors]:
    def make(shape: Shape, generator: torch.Generator) -> Tensors:
        inside = torch.Size(shape[1:]).numel()
        own = {
            "hada_w1_a": randn(generator, shape[0], rank),
            "hada_w1_b": randn(generator, rank, inside),
            "hada_w2_a": randn(generator, shape[0], rank),
            "hada_w2_b": randn(generator, rank, inside),
        }
        return {**own, "alpha": torch.tensor(1.0)} if alpha else own

    return make


def _effective(scale: float) -> Callable[[Tensors, Tensor, float], Tensor]:
    def effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
        halves = own["hada_w1_a"] @ own["hada_w1_b"], own["hada_w2_a"] @ own["hada_w2_b"]
        return weight + multiplier * scale * (halves[0] * halves[1]).reshape(weight.shape)

    return effective


def _make_tucker(rank: int) -> Callable[[Shape, torch.Generator], Tensors]:
    def make(shape: Shape, generator: torch.Generator) -> Tensors:
        own = {}
        for i in (1, 2):
            own[f"hada_t{i}"] = randn(generator, rank, rank, *shape[2:], size=0.8)
            own[f"hada_w{i}_a"] = randn(generator, rank, shape[0], size=0.8)
            own[f"hada_w{i}_b"] = randn(generator, rank, shape[1], size=0.8)
        return {**own, "alpha": torch.tensor(1.0)}

    return make


def _effective_tucker(rank: int) -> Callable[[Tensors, Tensor, float], Tensor]:
    def half(own: Tensors, i: int, weight: Tensor) -> Tensor:
        total = torch.zeros_like(weight)
        up, down, core = own[f"hada_w{i}_a"], own[f"hada_w{i}_b"], own[f"hada_t{i}"]
        ones = (1,) * (weight.ndim - 2)
        for p in range(rank):
            for q in range(rank):
                total += up[p].reshape(-1, 1, *ones) * down[q].reshape(1, -1, *ones) * core[p, q]
        return total

    return lambda own, weight, m: weight + m / rank * half(own, 1, weight) * half(own, 2, weight)


SAMPLES = (
    Sample("loha", "loha", _make(2), _effective(1 / 2)),
    Sample("loha, many ranks", "loha", _make(9), _effective(1 / 9), FEW),
    Sample("loha tucker", "loha", _make_tucker(2), _effective_tucker(2), frozenset({"conv", "grouped"})),
    Sample("loha tucker, many ranks", "loha", _make_tucker(7), _effective_tucker(7), frozenset({"conv 3x3, stride"})),
    Sample(
        "loha of PEFT",
        "loha",
        _make(3, alpha=False),
        _effective(6 / 3),
        frozenset({"linear"}),
        prefix=PEFT,
        config={"peft_type": "LOHA", "r": 3, "alpha": 6},
    ),
)
