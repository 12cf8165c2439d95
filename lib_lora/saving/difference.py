"""The change of one weight, apart from any adapter or file: products of factors, a dense rest, a change of the bias.

All numbers are fp64. A product is never multiplied out where its QR factors are smaller. If U = Q1 R1 and D^T = Q2 R2,
the product U D has the singular values of R1 R2^T, a matrix with as many rows and columns as the rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from ..adapters import balanced
from ..adapters.base import Factors
from ..tensors import core_of_product, svd_of_product

NOISE = 1e-9
"""Singular values below this share of the largest are taken for the rounding of fp32 sources."""

Triplets: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""U (out, r), the singular values (r,) in falling order, and V^T (r, in * kernel)."""


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """A change of one weight and of the bias beside it."""

    shape: tuple[int, ...]
    """Of the weight: (out, in, *kernel), or (channels,)."""
    pairs: tuple[Factors, ...] = ()
    rest: Tensor | None = None
    """Of the weight's shape."""
    bias: Tensor | None = None

    @property
    def rank(self) -> int:
        """Return how many components the pairs have together."""
        return sum([pair.up.shape[1] for pair in self.pairs])

    @property
    def is_matrix(self) -> bool:
        return len(self.shape) > 1

    @property
    def inside(self) -> int:
        return math.prod(self.shape[1:])

    @property
    def rank_of_pair(self) -> int | None:
        """Return the rank of a pair that is all of it, not more than that of a matrix; None where there is a rest."""
        return None if self.rest is not None or not self.pairs else min(self.rank, self.shape[0], self.inside)

    @property
    def parts(self) -> float:
        """Return the sum of the sizes of its parts, of which some may cancel each other."""
        sizes = [float(one.norm()) for one in (self.rest, self.bias) if one is not None]
        return sum([*sizes, *[float(pair.up.norm()) * float(pair.down.norm()) for pair in self.pairs]])

    def factors(self) -> tuple[Tensor, Tensor]:
        """Return all pairs as one: (out, r) and (r, in * kernel)."""
        ups = [pair.up for pair in self.pairs] or [torch.zeros(self.shape[0], 0, dtype=torch.float64)]
        downs = [pair.down.flatten(1) for pair in self.pairs]
        return torch.cat(ups, 1), torch.cat(downs or [torch.zeros(0, self.inside, dtype=torch.float64)])

    def dense(self) -> Tensor:
        """Return the whole change of the weight, in its shape."""
        if not self.pairs:
            return torch.zeros(self.shape, dtype=torch.float64) if self.rest is None else self.rest
        up, down = self.factors()
        total = (up @ down).reshape(self.shape)
        return total if self.rest is None else total + self.rest

    def joined(self) -> Factors:
        """Return all pairs as one, in which no side of a component is much larger than the other."""
        up, down = self.factors()
        if self.rank > min(self.shape[0], self.inside):
            whole, is_wide = up @ down, self.shape[0] <= self.inside
            ones = torch.eye(min(whole.shape), dtype=torch.float64)
            up, down = (ones, whole) if is_wide else (whole, ones)
        return balanced(up, down, (0, *self.shape[1:]))

    @property
    def _is_small(self) -> bool:
        """Return whether it is a product that is smaller than its matrix."""
        return self.rest is None and self.rank < min(self.shape[0], self.inside)

    def _core(self) -> Tensor:
        """Return a matrix that has its singular values, as small as there is one at hand."""
        if not self._is_small:
            return self.dense().flatten(1)
        return core_of_product(*self.factors())

    def singular_values(self) -> Tensor:
        """Return its singular values in falling order, without those that are rounding."""
        return _counted(torch.linalg.svdvals(self._core()))

    def triplets(self) -> Triplets:
        """Return its singular triplets, without those that are rounding."""
        if self._is_small:
            u, values, v = svd_of_product(*self.factors())
        else:
            u, values, v = torch.linalg.svd(self.dense().flatten(1), full_matrices=False)
        count = len(_counted(values))
        return u[:, :count], values[:count], v[:count]

    def cut(self, rank: int) -> Difference:
        """Return the nearest change of a rank: the first triplets, each spread evenly over its two sides."""
        u, values, v = self.triplets()
        roots = values[:rank].sqrt()
        pair = Factors((v[:rank] * roots.unsqueeze(1)).reshape(-1, *self.shape[1:]), u[:, :rank] * roots)
        return replace(self, pairs=(pair,) if len(roots) else (), rest=None)

    def size(self) -> float:
        """Return the root of the sum of the squares of all entries, of the weight and the bias."""
        of_bias = 0.0 if self.bias is None else float(self.bias.norm())
        return math.hypot(of_bias, float((self._core() if self.is_matrix else self.dense()).norm()))

    def inner(self, other: Difference) -> float:
        """Return the sum of the products of all entries of two changes of a weight."""
        if self.rest is not None or other.rest is not None:
            return float((self.dense() * other.dense()).sum())
        (up, down), (other_up, other_down) = self.factors(), other.factors()
        return float(((up.T @ other_up) * (down @ other_down.T)).sum())

    def minus(self, other: Difference) -> Difference:
        """Return what is to be added to another change to make this one."""
        pairs = (*self.pairs, *[Factors(pair.down, -pair.up) for pair in other.pairs])
        return Difference(self.shape, pairs, _less(self.rest, other.rest), _less(self.bias, other.bias))


def _less(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if second is None:
        return first
    return -second if first is None else first - second


def _counted(values: Tensor) -> Tensor:
    least = NOISE * values[0] if len(values) else 0.0
    return values[values > least]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a file may have at most; None stands for no limit."""

    rank: int | None = None
    """Of each layer."""
    size: int | None = None
    """Bytes of the file."""
    error: float | None = None
    """The error of all layers together, as a share of the whole change. It says how little is enough."""

    @property
    def approximates(self) -> bool:
        return (self.rank, self.size, self.error) != (None, None, None)


def chosen_ranks(values: Sequence[Tensor], costs: Sequence[int], limits: Limits, room: int | None) -> list[int]:
    """Return the rank of each layer: the components that have most of the change for their bytes, over all layers.

    Args:
        values: the singular values of each layer.
        costs: bytes of one component of each.
        limits: what the file may have at most.
        room: bytes for all components; None for any.
    """
    within = [one[: limits.rank] for one in values]
    if not sum(map(len, within)):
        return [0] * len(values)
    squares = torch.cat([one.square() for one in within])
    owners = torch.cat([torch.full((len(one),), i) for i, one in enumerate(within)])
    bytes_each = torch.tensor(costs, dtype=torch.float64)[owners]
    order = torch.argsort(squares / bytes_each, descending=True, stable=True)  # first ones of a layer come first
    count = len(order)
    if room is not None:
        count = int((bytes_each[order].cumsum(0) <= room).sum())
    if limits.error is not None:
        total = sum([one.square().sum().item() for one in values])
        left = total - squares[order].cumsum(0)
        enough = (left <= limits.error**2 * total).nonzero()
        count = min(count, int(enough[0]) + 1 if len(enough) else count)
    return torch.bincount(owners[order[:count]], minlength=len(values)).tolist()
