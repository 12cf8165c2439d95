"""Strengths that differ from place to place: which region each cell acts in, and its weights where a layer has places.

What a layer is given that is of no place, such as the tokens of the prompt, and layers that have none, have the share
of the picture that the region is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .picture import Grid, Picture
from .region import Region


@dataclass(frozen=True, slots=True)
class Spread:
    """Where the cells of a plan act."""

    regions: tuple[Region, ...] = ()
    of_cells: tuple[tuple[int, ...], ...] = ()
    """For each variant of the stack, the region of each cell: its place among `regions` from 1, 0 is everywhere."""
    cells: frozenset[int] = field(default=frozenset(), init=False)
    """Those that do not act everywhere, in any variant."""

    def __post_init__(self) -> None:
        found = frozenset(i for own in self.of_cells for i, region in enumerate(own) if region)
        object.__setattr__(self, "cells", found)


EVERYWHERE = Spread()


class Masks:
    """The weights of regions at the places of layers, made when they are first asked for."""

    def __init__(self, regions: Sequence[Region]) -> None:
        self._regions = tuple(regions)
        self._weights: dict[Grid, Tensor] = {}
        self._made: dict[tuple[object, ...], Tensor] = {}
        self._picture: Picture | None = None
        self.placed = False
        """Whether any layer had places of the present picture."""

    def at(
        self,
        grid: Grid | None,
        which: tuple[tuple[int, ...], ...],
        device: torch.device,
        dtype: torch.dtype,
        *,
        channels_first: bool,
    ) -> Tensor:
        """The weights of some regions, (rows, places, n), or (rows, n, places) where channels are first.

        Args:
            grid: the places; None is a single one that is none of the picture.
            which: for each row, the regions: their numbers from 1, 0 is everywhere.
            device: where.
            dtype: as what.
            channels_first: see above.
        """
        key = grid, which, device, dtype, channels_first
        found = self._made.get(key)
        if found is None:
            chosen = self._all(grid)[:, torch.tensor(which, dtype=torch.int64, device="cpu")]  # (places, rows, n)
            shaped = chosen.permute(1, 2, 0) if channels_first else chosen.transpose(0, 1)
            self.placed = self.placed or grid is not None
            found = self._made[key] = shaped.to(device=device, dtype=dtype, copy=True).contiguous()
        return found

    def serve(self, picture: Picture) -> None:
        """Be for a picture; as another one has other places, what was made for the one before is forgotten."""
        if picture != self._picture:
            self._picture = picture
            self._weights.clear()
            self._made.clear()
            self.placed = False

    def _all(self, grid: Grid | None) -> Tensor:
        """Of all regions, that of everywhere first, (places, 1 + regions)."""
        if grid is None:
            return torch.tensor([[1.0, *(one.share for one in self._regions)]], dtype=torch.float64, device="cpu")
        found = self._weights.get(grid)
        if found is None:
            columns = [_column(grid, one) for one in self._regions]
            found = self._weights[grid] = torch.stack([torch.ones_like(columns[0]), *columns], 1)
        return found


def _column(grid: Grid, region: Region) -> Tensor:
    frames = region.weights(grid.height, grid.width).flatten().repeat(grid.frames)
    before, behind = (frames.new_full((count,), region.share) for count in (grid.before, grid.behind))
    return torch.cat([before, frames, behind])
