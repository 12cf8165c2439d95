"""A matrix as a product of factors: what LoHa multiplies entry by entry, and LoKr by Kronecker.

As LyCORIS has it (functional/general.py): a full matrix, or left (rows, r) @ right (r, columns), or the same with a
core between, M[p, q, k] = sum_ij left[p, i] core[i, j, k] right[j, q]; the core is multiplied with the right one here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import Self

from ..tensors import TensorFields, wide
from ._operation import Operation
from ._rows import taken, unfit
from .base import At, Factors, InputEffect, OutputEffect, ProductEffect, Proportional, Rows, Shapes, Tensors

_BLOCK = 1 << 20
"""Entries of a dense delta that a CPU builds at a time in the forward; a device builds it in one piece."""


@dataclass(frozen=True, slots=True, eq=False)
class Product(TensorFields):
    """A matrix (rows, columns) and its factors."""

    right: Tensor  # (rows, columns), or (r, columns)
    left: Tensor | None = None  # (rows, r)

    @property
    def rows(self) -> int:
        return (self.right if self.left is None else self.left).shape[0]

    @property
    def columns(self) -> int:
        """Return the number of columns, a kernel's places included."""
        return self.right.shape[1]

    @property
    def rank(self) -> int:
        """Return the number of rank-one matrices that sum up to it."""
        return min(self.rows, self.columns) if self.left is None else self.left.shape[1]

    def take(self, rows: Rows) -> Self:
        if self.left is None:
            return replace(self, right=taken(self.right, rows))
        return replace(self, left=taken(self.left, rows))

    def dense(self, device: torch.device, dtype: torch.dtype, rows: slice | Tensor | None = None) -> Tensor:
        """Return the matrix, or the selected rows of it, in that order."""
        first = self.right if self.left is None else self.left
        chosen = (first if rows is None else first[rows]).to(device, dtype)
        return chosen if self.left is None else chosen @ self.right.to(device, dtype)

    def pair(self) -> tuple[Tensor, Tensor]:
        """Return (rows, rank), (rank, columns) in fp32 or better; of a full matrix one is the identity."""
        dtype = wide(self.right.dtype)
        right = self.right.to(dtype)
        if self.left is not None:
            return self.left.to(dtype), right
        ones = torch.eye(self.rank, device=right.device, dtype=dtype)
        return (ones, right) if self.rows <= self.columns else (right, ones)


def product(params: Tensors, name: str, kernel: Sequence[int]) -> Product:
    """Read `w1` or the product of `w1_a` and `w1_b` with the core `t1`; raise ValueError if they do not fit each other.

    Beside a core, which has the layer's kernel, both factors have the rank first, as LyCORIS and PEFT save them.
    """
    left, right, core = (f"{name}_a", f"{name}_b", name.replace("w", "t"))
    for one in (name, left, right, core):
        if one in params and params[one].ndim < 2:
            raise unfit(f"{one} to be a matrix", params[one])
    if name in params:
        return Product(params[name].flatten(1))
    a, b = params[left].flatten(1), params[right].flatten(1)
    if core not in params:
        if a.shape[1] != b.shape[0]:
            raise unfit(f"{left} (rows, r) and {right} (r, columns)", a, b)
        return Product(b, a)
    t = params[core]
    # PEFT's has a dimension of 1 too many on 1-d convolutions
    if t.shape[:2] != (a.shape[0], b.shape[0]) or math.prod(t.shape[2:]) != math.prod(kernel):
        raise unfit(f"{core} ({', '.join(map(str, (a.shape[0], b.shape[0], *kernel)))})", t)
    dtype = wide(t.dtype)  # this product must not cost precision
    return Product(torch.einsum("ijk,jq->iqk", t.reshape(*t.shape[:2], -1).to(dtype), b.to(dtype)).flatten(1), a.t())


def shape_of_product(shapes: Shapes, name: str) -> tuple[int, ...]:
    """Return the shape of the matrix that `product` reads by this name."""
    if name in shapes:
        return shapes[name]
    left, right, core = shapes[f"{name}_a"], shapes[f"{name}_b"], shapes.get(name.replace("w", "t"))
    return (*left[:1], *right[1:]) if core is None else (*left[1:2], *right[1:2], *core[2:])


def balanced(up: Tensor, down: Tensor, shape: Sequence[int], *, above: float = 0.0) -> Factors:
    """Return the pair (out, r), (r, columns) with each rank component spread evenly over its two sides.

    A product of four small numbers on one side would be lost below fp16's 6e-5, though the whole is not small; a large
    one on one side would pass fp16's 65,504. Components are moved by powers of two, which keep all bits.
    Both are in fp32 or better. `down` gets `shape` but for its first entry. Components without an entry larger than
    `above` stay as they are.
    """
    left, right = up.abs().amax(0), down.abs().amax(1)
    ratio = (right / left).sqrt()
    power = ratio / torch.frexp(ratio).mantissa  # exact on every device, unlike its powers
    moved = (left > 0) & (right > 0) & (torch.maximum(left, right) > above)
    power = torch.where(moved, power, torch.ones_like(power))
    return Factors((down / power.unsqueeze(1)).reshape(-1, *shape[1:]), up * power)


@dataclass(frozen=True, slots=True)
class LowRankInput(InputEffect):
    """up (down x), the channels mixed at each place."""

    down: Tensor  # (r, in)
    up: Tensor  # (in, r)

    def delta(self, x: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        return op.pointwise(op.pointwise(x, self.down) * multiplier, self.up)


class Built(Proportional, ProductEffect):
    """An adapter whose dense delta is a product of its own, built in each forward from its small tensors.

    It has a field `shape`, and can give some rows alone.
    """

    shape: tuple[int, ...]
    by_rows = True

    def output_effect(self, device: torch.device, dtype: torch.dtype) -> OutputEffect:
        return self.placed(device)

    def product(self, x: Tensor, op: Operation) -> Tensor:
        dtype = wide(x.dtype)
        rows, inside = self.shape[0], math.prod(self.shape[1:])
        step = max(_BLOCK // inside, 1) if x.device.type == "cpu" else rows
        parts = []
        for start in range(0, rows, step):
            weight = self.delta_weight(At(x.device, dtype, rows=(start, min(start + step, rows)))).to(x.dtype)
            parts.append(op.apply(x, weight.reshape(-1, *self.shape[1:])))
        return parts[0] if len(parts) == 1 else torch.cat(parts, op.channels)
