"""LoKr: every form of either factor, flattened convolutions, the splits of 2023, LyCORIS' scale and PEFT's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .base import FEW, PEFT, Sample, Shape, Tensors, randn

Make = Callable[[Shape, torch.Generator], Tensors]


def _make(first: str, second: str, *, across: bool = False, alpha: float | None = 2.0) -> Make:
    """w1 and w2 as "full" or "factored", or w2 with a "core", or full with its kernel "flat".

    Args:
        first: form of w1.
        second: form of w2.
        across: divide in * kernel where no channel ends.
        alpha: stored, if any.
    """

    def make(shape: Shape, generator: torch.Generator) -> Tensors:
        out, inside, kernel = shape[0], shape[1], shape[2:]
        places = torch.Size(kernel).numel()
        columns = inside * 3 if across and places % 3 == 0 else 2  # of w1; the first divides no channel
        rest = (inside * places // columns,) if across or second == "flat" else (inside // columns, *kernel)
        own = _matrix(generator, "lokr_w1", first, 4, (columns,), 2)
        own |= _matrix(generator, "lokr_w2", second, out // 4, rest, 3)
        return own if alpha is None else {**own, "alpha": torch.tensor(alpha)}

    return make


def _matrix(generator: torch.Generator, name: str, form: str, rows: int, rest: Shape, rank: int) -> Tensors:
    if form in ("full", "flat"):
        return {name: randn(generator, rows, *rest, size=0.5)}
    if form == "core":
        return {
            f"{name}_a": randn(generator, rank, rows, size=0.7),
            f"{name}_b": randn(generator, rank, rest[0], size=0.7),
            name.replace("w", "t"): randn(generator, rank, rank, *rest[1:], size=0.7),
        }
    return {
        f"{name}_a": randn(generator, rows, rank, size=0.6),
        f"{name}_b": randn(generator, rank, torch.Size(rest).numel(), size=0.6),
    }


def _effective(scale: float) -> Callable[[Tensors, Tensor, float], Tensor]:
    def effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
        first = own.get("lokr_w1")
        if first is None:
            first = own["lokr_w1_a"] @ own["lokr_w1_b"]
        second = own.get("lokr_w2")
        if "lokr_t2" in own:
            second = torch.einsum("ij...,ip,jq->pq...", own["lokr_t2"], own["lokr_w2_a"], own["lokr_w2_b"])
        elif second is None:
            second = own["lokr_w2_a"] @ own["lokr_w2_b"]
        # entry by entry: dW[i c' + k, ...] = w1[i, j] w2[k, l]
        second = second.flatten(1)
        blocks = [torch.cat([entry * second for entry in row], 1) for row in first]
        return weight + multiplier * scale * torch.cat(blocks).reshape(weight.shape)

    return effective


_CONVS = frozenset({"conv", "grouped"})
_CONV = FEW - {"linear", "attention q"}
SAMPLES = (
    Sample("lokr full, full", "lokr", _make("full", "full"), _effective(1.0), FEW),
    Sample("lokr full, factored", "lokr", _make("full", "factored"), _effective(2 / 3)),
    Sample("lokr factored, full", "lokr", _make("factored", "full", alpha=None), _effective(1.0), FEW),
    Sample("lokr factored, factored", "lokr", _make("factored", "factored"), _effective(2 / 3), FEW),
    Sample("lokr full, core", "lokr", _make("full", "core"), _effective(2 / 3), _CONVS),
    Sample("lokr factored, core", "lokr", _make("factored", "core"), _effective(2 / 3), _CONV),
    Sample("lokr full, flat", "lokr", _make("full", "flat"), _effective(1.0), _CONV),
    Sample("lokr across, factored", "lokr", _make("factored", "factored", across=True), _effective(2 / 3), _CONV),
    Sample("lokr across, full", "lokr", _make("full", "full", across=True), _effective(1.0), _CONV),
    Sample(
        "lokr of PEFT, full, full",
        "lokr",
        _make("full", "full", alpha=None),
        _effective(4 / 8),
        frozenset({"linear"}),
        prefix=PEFT,
        config={"peft_type": "LOKR", "r": 8, "alpha": 4},
    ),
)
