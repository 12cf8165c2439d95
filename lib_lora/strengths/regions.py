"""Regions: parts of the picture as grids of weights, and the weights that each layer's places have.

A grid of weights is stretched over the picture, whatever size that has and whatever resolution a layer works in, so one
region serves the first pass and a larger second one alike. Input that lies nowhere in the picture, such as the tokens
of the prompt, and layers without places have the region's share of the picture as their weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor

from ..errors import StackError
from .token_grid import Grid, Picture

SIZE = 64
"""Cells along each side of a region that is given in words: as many as most attention of a picture has at most."""
_MOST = 1024
_FULL = 255
_INVERTED = bytes(range(_FULL, -1, -1))


@dataclass(frozen=True, slots=True)
class Region:
    """Weights on a grid over the picture, from 0 to 1.

    Args:
        width: cells from left to right.
        height: cells from top to bottom.
        cells: row by row from the top, a byte for each; 255 is 1.

    Raises:
        StackError: no such size, or not as many cells.
    """

    width: int
    height: int
    cells: bytes

    def __post_init__(self) -> None:
        if not (0 < self.width <= _MOST and 0 < self.height <= _MOST):
            raise StackError(f"a region of {self.width} x {self.height} cells; each may be from 1 to {_MOST}")
        if len(self.cells) != self.width * self.height:
            raise StackError(f"a region of {self.width} x {self.height} cells with {len(self.cells)} weights")

    @classmethod
    def rectangle(cls, left: float, top: float, right: float, bottom: float) -> Region:
        """A rectangle; cells that it covers in part have that part for a weight.

        Args:
            left: in shares of the picture, as all four; 0 is its left edge, 1 its right one.
            top: 0 is the upper edge.
            right: more than `left`.
            bottom: more than `top`.

        Raises:
            StackError: a number is not between 0 and 1, or they are in the wrong order.
        """
        edges = left, top, right, bottom
        if not all(math.isfinite(edge) and 0 <= edge <= 1 for edge in edges) or left >= right or top >= bottom:
            text = ", ".join(f"{edge:g}" for edge in edges)
            raise StackError(f"a rectangle is left, top, right and bottom, in shares of the picture, not {text}")
        return _rectangle(*edges)

    @classmethod
    def _of(cls, weights: Tensor) -> Region:
        cells = (weights * _FULL).round().clamp(0, _FULL).to(torch.uint8)
        return cls(weights.shape[1], weights.shape[0], bytes(cells.flatten().tolist()))

    def weights(self, height: int, width: int) -> Tensor:
        """The weights of a picture of this many places, (height, width), in fp64; each is the mean over its area."""
        return _resized(self, height, width)

    @property
    def share(self) -> float:
        """How much of the picture it is."""
        return sum(self.cells) / (_FULL * len(self.cells))

    def feathered(self, width: float) -> Region:
        """The same with edges that fade over a part of the picture; not at the picture's own edge.

        Args:
            width: of the fading, in shares of the picture; 0 is none.

        Raises:
            StackError: it is not between 0 and 1.
        """
        if not 0 <= width <= 1:
            raise StackError(f"a region's edge can fade over 0 to 1 of the picture, not {width:g}")
        return self if width == 0 else _feathered(self, width)

    def __or__(self, other: Region) -> Region:
        """What is in one of them: of both weights the larger one."""
        height, width = max(self.height, other.height), max(self.width, other.width)
        return Region._of(torch.maximum(self.weights(height, width), other.weights(height, width)))

    def inverted(self) -> Region:
        """All but this."""
        return Region(self.width, self.height, self.cells.translate(_INVERTED))


# tags are read anew for every picture
@lru_cache(maxsize=256)
def _rectangle(left: float, top: float, right: float, bottom: float) -> Region:
    return Region._of(torch.outer(_covered(top, bottom), _covered(left, right)))


@lru_cache(maxsize=256)
def _feathered(region: Region, width: float) -> Region:
    weights = region.weights(max(region.height, SIZE), max(region.width, SIZE))
    for dim in (0, 1):
        weights = _faded(weights, width * weights.shape[dim], dim)
    return Region._of(weights)


def _covered(start: float, stop: float) -> Tensor:
    """How much of each cell is between two places, (SIZE,)."""
    edges = torch.arange(SIZE + 1, dtype=torch.float64, device="cpu") / SIZE
    return (edges[1:].clamp(max=stop) - edges[:-1].clamp(min=start)).clamp(min=0) * SIZE


@lru_cache(maxsize=256)
def _resized(region: Region, height: int, width: int) -> Tensor:
    own = torch.tensor(list(region.cells), dtype=torch.float64, device="cpu").view(region.height, region.width)
    return _averaging(height, region.height) @ (own / _FULL) @ _averaging(width, region.width).t()


def _averaging(places: int, cells: int) -> Tensor:
    """How much of each place is in each cell, (places, cells); rows add up to 1."""
    place = torch.arange(places + 1, dtype=torch.float64, device="cpu") / places
    cell = torch.arange(cells + 1, dtype=torch.float64, device="cpu") / cells
    last = torch.minimum(place[1:, None], cell[None, 1:])
    first = torch.maximum(place[:-1, None], cell[None, :-1])
    return (last - first).clamp(min=0) * places


def _faded(weights: Tensor, cells: float, dim: int) -> Tensor:
    """The mean over so many cells along a dimension; behind the picture's edge all is as at the edge."""
    reach = math.ceil(max(cells - 1, 0) / 2)
    if reach == 0:
        return weights
    box = torch.ones(2 * reach + 1, dtype=torch.float64, device="cpu")
    box[0] = box[-1] = (cells - (2 * reach - 1)) / 2  # the outer ones in part, so that any width is one
    lines = weights.movedim(dim, -1)
    padded = F.pad(lines.unsqueeze(0), (reach, reach), mode="replicate").squeeze(0)
    return F.conv1d(padded.unsqueeze(1), (box / box.sum()).view(1, 1, -1)).squeeze(1).movedim(-1, dim)


EVERYWHERE, NOWHERE = 0, -1
"""In place of a region's number."""
Which: TypeAlias = tuple[tuple[int, ...], ...]
"""For each row, the regions of some factors."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Where the cells of a plan act."""

    regions: tuple[Region, ...] = ()
    of_cells: tuple[tuple[int, ...], ...] = ()
    """For each variant of the stack, the region of each cell: its place among `regions` from 1, 0 is everywhere."""
    parts: tuple[tuple[int | None, ...], ...] = ()
    """Likewise the part of the prompt that tells of each cell's region."""
    cells: frozenset[int] = field(default=frozenset(), init=False)
    """Those that do not act everywhere, in any variant."""

    @property
    def in_parts(self) -> bool:
        """Whether it makes a difference which part of the prompt a row is of."""
        return any(part is not None for own in self.parts for part in own)

    def which(self, variant: int, cells: Sequence[int], grid: Grid | None, part: int | None) -> tuple[int, ...]:
        """Which weights some cells have on a row: a region's, those of everywhere, or none; see `Masks.at`.

        Args:
            variant: of the row.
            cells: their numbers.
            grid: the places; None is where a layer is given none of the picture, but the prompt.
            part: of the prompt that the row is of.
        """
        regions, told = self.of_cells[variant], self.parts[variant]
        return tuple(by_part(regions[cell], told[cell], grid, part) for cell in cells)

    def __post_init__(self) -> None:
        found = frozenset(i for own in self.of_cells for i, region in enumerate(own) if region)
        object.__setattr__(self, "cells", found)


NO_SPREAD = Spread()


def by_part(region: int, told: int | None, grid: Grid | None, part: int | None) -> int:
    """Which weight there is on a row: a region's, or by the parts of the prompt where a layer is given that.

    Args:
        region: the region's number.
        told: the part of the prompt that tells of it; None where none does.
        grid: the places; None is none of the picture.
        part: of the prompt that the row is of; None where nobody knows, as for a negative one.
    """
    if grid is not None or told is None or part is None:
        return region
    return EVERYWHERE if told == part else NOWHERE


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
        which: Which,
        device: torch.device,
        dtype: torch.dtype,
        *,
        channels_first: bool,
    ) -> Tensor:
        """The weights of some regions, (rows, places, n), or (rows, n, places) where channels are first.

        Args:
            grid: the places; None is a single one that is none of the picture.
            which: for each row, the regions: their numbers from 1, `EVERYWHERE` or `NOWHERE`.
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
        """Of all regions, that of everywhere first and that of nowhere last, (places, 1 + regions + 1)."""
        if grid is None:
            shares = [one.share for one in self._regions]
            return torch.tensor([[1.0, *shares, 0.0]], dtype=torch.float64, device="cpu")
        found = self._weights.get(grid)
        if found is None:
            columns = [_column(grid, one) for one in self._regions]
            everywhere, nowhere = torch.ones_like(columns[0]), torch.zeros_like(columns[0])
            found = self._weights[grid] = torch.stack([everywhere, *columns, nowhere], 1)
        return found


def _column(grid: Grid, region: Region) -> Tensor:
    frames = region.weights(grid.height, grid.width).flatten().repeat(grid.frames)
    before, behind = (frames.new_full((count,), region.share) for count in (grid.before, grid.behind))
    return torch.cat([before, frames, behind])
