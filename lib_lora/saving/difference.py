"""The change of one weight, apart from any adapter or file: products of factors, a dense rest, a change of the bias.

All numbers are fp64. A product is never multiplied out where its QR factors are smaller. If U = Q1 R1 and D^T = Q2 R2,
the product U D has the singular values of R1 R2^T, a matrix with as many rows and columns as the rank. A dense change
is decomposed by the eigenvectors of the smaller product of its matrix with itself. Where a rank is known that is a
small part of all, they come from the Krylov space of random vectors (https://arxiv.org/abs/1504.05477, algorithm 2),
which grows until the error is near enough to the least one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..adapters import balanced
from ..adapters.base import Factors
from ..tensors import core_of_product, svd_of_product

NOISE = 1e-9
"""Singular values below this share of the largest are taken for the rounding of fp32 sources."""

_GRAM_NOISE = 1e-7
"""The same, of values that are roots of eigenvalues."""
_FEW, _MORE = 10, 8
"""A Krylov space begins with so many more vectors than are asked for; this many times as many are less than all."""
_EXCESS = 2e-3
"""The share of the square of the error by which it may be larger than the least one."""
_ROUNDING = 1e-13
"""The share of the square of a change that is taken for rounding."""
_EXACT = torch.float64


class Magnitude(NamedTuple):
    """The DoRA that a change is: the factors of its LoRA, and the norms of rows or columns of the weight with it."""

    pair: Factors
    norms: Tensor
    """(out, 1, ...) or (1, in, ...)."""

    def lora(self, shape: tuple[int, ...]) -> Difference:
        """Return the change that its LoRA alone would make of a weight."""
        return Difference(shape, (self.pair,))


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """A change of one weight and of the bias beside it."""

    shape: tuple[int, ...]
    """Of the weight: (out, in, *kernel), or (channels,)."""
    pairs: tuple[Factors, ...] = ()
    rest: Tensor | None = None
    """Of the weight's shape."""
    bias: Tensor | None = None
    dora: Magnitude | None = None
    """Where the change of the weight is that of one DoRA; all numbers of it are in `rest`, too."""
    noise: float = 0.0
    """Singular values up to this one may be the rounding of quantized weights."""

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
        norms = None if self.dora is None else self.dora.norms
        sizes = [float(one.norm()) for one in (self.rest, self.bias, norms) if one is not None]
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
        return total if self.rest is None else total.add_(self.rest)

    def joined(self) -> Factors:
        """Return all of it as one pair, in which no side of a component is much larger than the other."""
        up, down = self.factors()
        if self.rest is not None or self.rank > min(self.shape[0], self.inside):
            whole, is_wide = self.dense().flatten(1), self.shape[0] <= self.inside
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
            return self._wide()
        return core_of_product(*self.factors())

    def _wide(self) -> Tensor:
        """Return the matrix, or the transposed one if that has fewer rows."""
        matrix = self.dense().flatten(1)
        return matrix if self.shape[0] <= self.inside else matrix.T

    def spectrum(self, limit: int | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the singular values in falling order, without those that are rounding, and vectors for `cut`.

        With a limit, only the sum of the squares may be right of the values behind it. A dense change has vectors then;
        else they are None.
        """
        if self._is_small:
            return _counted(torch.linalg.svdvals(self._core()), NOISE), None
        if limit is None:
            matrix, vectors = self._wide(), None
            values = _roots(torch.linalg.eigvalsh(matrix @ matrix.T))
        else:
            values, vectors = _decomposed(self._wide(), limit)
        return _counted(values, _GRAM_NOISE), vectors

    def cut(self, rank: int, vectors: Tensor | None = None, limit: int | None = None) -> Difference:
        """Return the nearest change of a rank. If `spectrum` was asked before, `vectors` or its limit make the same."""
        if self._is_small:
            u, values, v = svd_of_product(*self.factors())
            roots = values[:rank].sqrt()
            up, down = u[:, :rank] * roots, v[:rank] * roots.unsqueeze(1)
        else:
            vectors = (_decomposed(self._wide(), limit)[1] if vectors is None else vectors)[:, :rank]
            other = vectors.T @ self._wide()
            up, down = (vectors, other) if self.shape[0] <= self.inside else (other.T, vectors.T)
        pair = Factors(down.reshape(-1, *self.shape[1:]), up)
        return replace(self, pairs=(pair,) if rank else (), rest=None)

    def kronecker(self, first: tuple[int, int]) -> tuple[Tensor, Difference]:
        """Return the nearest Kronecker product of two matrices: the first one, of a shape, of size 1, and the second.

        With the entries of the first one as rows, the product is a matrix of rank 1 (Van Loan and Pitsianis,
        Approximation with Kronecker products, 1993).
        """
        (rows, columns), kernel = first, self.shape[2:]
        inner = (self.shape[0] // rows, self.shape[1] // columns, *kernel)
        parts = self.dense().reshape(rows, inner[0], columns, inner[1], -1).transpose(1, 2)
        pair = Difference((rows * columns, math.prod(inner)), (), parts.flatten(2).flatten(0, 1)).cut(1).pairs[0]
        size = pair.up.norm()
        return (pair.up / size).reshape(first), Difference(inner, (), (pair.down * size).reshape(inner))

    def size(self) -> float:
        """Return the root of the sum of the squares of all entries, of the weight and the bias."""
        of_bias = 0.0 if self.bias is None else float(self.bias.norm())
        return math.hypot(of_bias, float((self._core() if self.is_matrix else self.dense()).norm()))

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return what it makes of inputs (in * kernel, n): (out, n)."""
        up, down = self.factors()
        found = up @ (down @ inputs)
        return found if self.rest is None else found + self.rest.flatten(1) @ inputs

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


def _decomposed(matrix: Tensor, limit: int | None) -> tuple[Tensor, Tensor]:
    """Return the singular values of a matrix and its left singular vectors, so many as a limit says."""
    found = None if limit is None or _FEW * (limit + _MORE) >= len(matrix) else _leading(matrix, limit)
    if found is None:
        squares, every = torch.linalg.eigh(matrix @ matrix.T)
        return _roots(squares), every.flip(1)[:, :limit].clone()  # a view would keep all of them
    values, vectors = found
    left, count = float(matrix.norm()) ** 2 - float(values.square().sum()), len(matrix) - len(values)
    others = torch.full((count,), math.sqrt(max(left, 0.0) / count), dtype=_EXACT)
    return torch.cat([values, others]), vectors


def _leading(matrix: Tensor, count: int) -> tuple[Tensor, Tensor] | None:
    """Return the first singular values of a matrix and its left vectors, always the same ones.

    The squares of the values add up to what they keep of the matrix. Each block after the first one adds about half as
    much as the one before, or less, so that its gain tells how much is left to gain. None if the space
    grows to half of all.
    """
    generator, whole = torch.Generator().manual_seed(0), float(matrix.norm()) ** 2
    block = matrix @ torch.randn(matrix.shape[1], count + _MORE, generator=generator, dtype=_EXACT)
    basis, images = matrix[:, :0], matrix[:0].T
    kept = -math.inf
    while 2 * (basis.shape[1] + count + _MORE) <= len(matrix):
        for _ in range(2):  # once leaves rounding along the former blocks
            block = torch.linalg.qr(block - basis @ (basis.T @ block))[0]
        basis, images = torch.cat([basis, block], 1), torch.cat([images, matrix.T @ block], 1)
        squares, turned = torch.linalg.eigh(images.T @ images)
        former, kept = kept, float(squares[-count:].sum())
        missed, rounding = whole - kept, _ROUNDING * whole
        if missed <= rounding or kept - former <= _EXCESS * missed + rounding:
            return _roots(squares)[:count], basis @ turned.flip(1)[:, :count]
        block = matrix @ images[:, -block.shape[1] :]
    return None


def _roots(squares: Tensor) -> Tensor:
    """Return the roots of eigenvalues, which rise, in falling order."""
    return squares.flip(0).clamp(min=0).sqrt()


def _counted(values: Tensor, noise: float) -> Tensor:
    least = noise * values[0] if len(values) else 0.0
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


def chosen_ranks(
    values: Sequence[Tensor], costs: Sequence[int], limits: Limits, room: int | None, lost: float = 0.0
) -> list[int]:
    """Return the rank of each layer: the components that have most of the change for their bytes, over all layers.

    Args:
        values: the singular values of each layer.
        costs: bytes of one component of each.
        limits: what the file may have at most.
        room: bytes for all components; None for any.
        lost: the sum of the squares that no rank can have.
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
        total = lost + sum([one.square().sum().item() for one in values])
        left = total - squares[order].cumsum(0)
        enough = (left <= limits.error**2 * total).nonzero()
        count = min(count, int(enough[0]) + 1 if len(enough) else count)
    return torch.bincount(owners[order[:count]], minlength=len(values)).tolist()
