"""The change of one weight as a matrix in fp64, in the smallest form that the adapter's own formulas give.

A convolution's weight (out, in, *kernel) is the matrix (out, in * kernel). Singular values come from the factors: of a
pair by QR of both sides and the SVD of the small product, of a Kronecker product as the products of the values of its
two matrices. Kinds without factors, and pairs that are larger than the matrix itself, are dense: their values are roots
of the eigenvalues of the smaller Gram matrix, so those below a hundred-millionth of the largest are not exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..adapters import Modifier
from ..adapters.base import Adapter, At
from ..adapters.lokr import LoKr
from ..tensors import core_of_product, svd_of_product

_EXACT = torch.float64
_ROUNDED = 1e-12
_CPU = torch.device("cpu")


class Base(Protocol):
    """The weight that an adapter changes."""

    def read(self) -> Tensor:
        """Return the weight."""

    def read_whole(self) -> Tensor:
        """Return the weight of the file's layer, of which the adapter's may be some rows."""


class Delta(ABC):
    """The change of one weight, (rows, columns)."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Return its rows and columns."""

    @abstractmethod
    def times(self, right: Tensor) -> Tensor:
        """Multiply by a matrix (columns, n)."""

    @abstractmethod
    def singular_values(self) -> Tensor:
        """Return the singular values, the largest first."""

    @abstractmethod
    def principal(self, share: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return all singular values, and the vectors of the largest that have a share of the energy.

        The vectors are (rows, n) and (columns, n).
        """

    @abstractmethod
    def dense(self) -> Tensor:
        """Return the matrix itself."""

    def inner(self, other: Delta) -> float:
        """Return the sum of the products of all entries of two changes of one weight."""
        if isinstance(other, LowRankDelta):
            return float((self.times(other.down.T) * other.up).sum())
        if isinstance(self, LowRankDelta):
            return other.inner(self)
        if isinstance(self, KroneckerDelta) and isinstance(other, KroneckerDelta) and self.splits_as(other):
            return float((self.first * other.first).sum() * (self.second * other.second).sum())
        return float((self.dense() * other.dense()).sum())


@dataclass(frozen=True, slots=True, eq=False)
class LowRankDelta(Delta):
    """A product of two thin matrices."""

    up: Tensor  # (rows, rank)
    down: Tensor  # (rank, columns)

    @property
    def shape(self) -> tuple[int, int]:
        return self.up.shape[0], self.down.shape[1]

    def times(self, right: Tensor) -> Tensor:
        return self.up @ (self.down @ right)

    def singular_values(self) -> Tensor:
        values: Tensor = torch.linalg.svdvals(core_of_product(self.up, self.down))
        return values

    def principal(self, share: float) -> tuple[Tensor, Tensor, Tensor]:
        left, values, right = svd_of_product(self.up, self.down)
        count = count_of(values, share)
        return values, left[:, :count], right[:count].T

    def dense(self) -> Tensor:
        return self.up @ self.down


@dataclass(frozen=True, slots=True, eq=False)
class KroneckerDelta(Delta):
    """A Kronecker product of two matrices."""

    first: Tensor  # (a, b)
    second: Tensor  # (c, d)

    @property
    def shape(self) -> tuple[int, int]:
        (a, b), (c, d) = self.first.shape, self.second.shape
        return a * c, b * d

    def splits_as(self, other: KroneckerDelta) -> bool:
        """Return whether the factors have the same shapes."""
        return self.first.shape == other.first.shape and self.second.shape == other.second.shape

    def times(self, right: Tensor) -> Tensor:
        split = right.reshape(self.first.shape[1], self.second.shape[1], -1)
        return torch.einsum("ab,cd,bdn->acn", self.first, self.second, split).flatten(0, 1)

    def singular_values(self) -> Tensor:
        products = torch.outer(torch.linalg.svdvals(self.first), torch.linalg.svdvals(self.second))
        return products.flatten().sort(descending=True).values

    def principal(self, share: float) -> tuple[Tensor, Tensor, Tensor]:
        (u1, s1, v1), (u2, s2, v2) = (torch.linalg.svd(one, full_matrices=False) for one in (self.first, self.second))
        values, order = torch.outer(s1, s2).flatten().sort(descending=True)
        largest = order[: count_of(values, share)]
        i, j = largest // len(s2), largest % len(s2)
        left = u1[:, i].unsqueeze(1) * u2[:, j].unsqueeze(0)
        right = v1[i].T.unsqueeze(1) * v2[j].T.unsqueeze(0)
        return values, left.flatten(0, 1), right.flatten(0, 1)

    def dense(self) -> Tensor:
        return torch.kron(self.first.contiguous(), self.second.contiguous())


@dataclass(frozen=True, slots=True, eq=False)
class DenseDelta(Delta):
    """A matrix that has no factors."""

    matrix: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.matrix.shape
        return rows, columns

    def times(self, right: Tensor) -> Tensor:
        return self.matrix @ right

    def singular_values(self) -> Tensor:
        squares: Tensor = torch.linalg.eigvalsh(self._gram())
        return squares.clamp_min(0.0).sqrt().flip(0)

    def principal(self, share: float) -> tuple[Tensor, Tensor, Tensor]:
        squares, vectors = torch.linalg.eigh(self._gram())
        values = squares.clamp_min(0.0).sqrt().flip(0)
        vectors = vectors.flip(1)[:, : count_of(values, share)]
        others = (self.matrix.T if self._is_flat else self.matrix) @ vectors
        others = others / others.norm(dim=0).clamp_min(torch.finfo(_EXACT).tiny)
        return (values, vectors, others) if self._is_flat else (values, others, vectors)

    def dense(self) -> Tensor:
        return self.matrix

    @property
    def _is_flat(self) -> bool:
        return self.matrix.shape[0] <= self.matrix.shape[1]

    def _gram(self) -> Tensor:
        return self.matrix @ self.matrix.T if self._is_flat else self.matrix.T @ self.matrix


def count_of(values: Tensor, share: float) -> int:
    """Return how many of the singular values, the largest first, have a share of the energy; one of zeros."""
    total = values.square().cumsum(0)
    return int((total < share * (1 - _ROUNDED) * total[-1]).sum()) + 1


def delta_of(
    adapter: Adapter, base: Base | None = None, *, stacked: bool = False, rank: int | None = None
) -> Delta | None:
    """Return the change that an adapter makes at strength 1.

    Without the base weight, a modifier that needs it, such as DoRA's magnitude, is left out.

    Args:
        adapter: with its tensors in memory.
        base: the weight that it changes; None where that is not known.
        stacked: whether the weight is one for each expert, (experts, rows, columns). Their rows are put together.
        rank: how many rank components are used, if not all.

    Returns:
        None where the change depends on the base weight, and this is not known.

    Raises:
        ComponentError: the base weight cannot be read.
    """
    while base is None and isinstance(adapter, Modifier) and adapter.reads_base:
        adapter = adapter.inner
    weight = None
    if adapter.reads_base:
        if base is None:
            return None
        weight = base.read()
        adapter = adapter.on(base.read_whole if adapter.reads_whole else lambda: weight, rank)
    if isinstance(adapter, LoKr) and adapter.rows is None:
        first, second = (half.dense(_CPU, _EXACT) for half in (adapter.first, adapter.second))
        return KroneckerDelta(first * adapter.scale, second)
    at = At(_CPU, _EXACT, rank=rank, weight=None if weight is None else weight.to(_CPU, _EXACT))
    factors = adapter.as_factors(lambda: at.base, rank)
    if factors is not None:
        up, down = factors.up, factors.down.flatten(1)
        return LowRankDelta(up, down) if up.shape[1] < min(up.shape[0], down.shape[1]) else DenseDelta(up @ down)
    matrix = adapter.delta_weight(at)
    return DenseDelta(matrix.reshape(-1, matrix.shape[-1]) if stacked else matrix.reshape(matrix.shape[0], -1))
