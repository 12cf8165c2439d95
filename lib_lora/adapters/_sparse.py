"""Changes of single entries of a weight."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import Self

from ..tensors import TensorFields
from ._rows import shape_of
from .base import Rows


@dataclass(frozen=True, slots=True, eq=False)
class Entries(TensorFields):
    """Values that are added to entries of a weight."""

    places: Tensor  # (n,), in the flattened weight
    values: Tensor  # (n,)
    shape: tuple[int, ...]

    exact = frozenset({"places"})

    def take(self, rows: Rows) -> Self:
        """Return those in some rows."""
        width = math.prod(self.shape[1:])
        places, values, offset = [], [], 0
        for start, stop in rows:
            own = (self.places >= start * width) & (self.places < stop * width)
            places.append(self.places[own] + (offset - start) * width)
            values.append(self.values[own])
            offset += stop - start
        return replace(self, places=torch.cat(places), values=torch.cat(values), shape=shape_of(self.shape, rows))

    def dense(self, device: torch.device, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
        """Return the whole change, times a scale."""
        dense = torch.zeros(self.shape, device=device, dtype=dtype)
        values = self.values.to(device, dtype)
        # added up where a place occurs twice, as sparse tensors are
        dense.view(-1).index_put_(
            (self.places.to(device),), values if scale == 1.0 else values * scale, accumulate=True
        )
        return dense
