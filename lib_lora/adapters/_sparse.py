"""Changes of single entries of a weight."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from .base import At, Proportional, Rows, shape_of


@dataclass(frozen=True, slots=True, eq=False)
class Sparse(Proportional):
    """Values that are added to entries of the weight."""

    places: Tensor  # (n,), in the flattened weight
    values: Tensor  # (n,)
    shape: tuple[int, ...]

    exact: ClassVar[frozenset[str]] = frozenset({"places"})

    def take(self, rows: Rows) -> Self:
        width = math.prod(self.shape[1:])
        places, values, offset = [], [], 0
        for start, stop in rows:
            own = (self.places >= start * width) & (self.places < stop * width)
            places.append(self.places[own] + (offset - start) * width)
            values.append(self.values[own])
            offset += stop - start
        return replace(self, places=torch.cat(places), values=torch.cat(values), shape=shape_of(self.shape, rows))

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        dense = torch.zeros(self.shape, device=at.device, dtype=at.dtype)
        # added up where a place occurs twice, as sparse tensors are
        dense.view(-1).index_put_((self.places.to(at.device),), at.put(self.values), accumulate=True)
        return dense, at.multiplier
