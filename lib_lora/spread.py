"""Strengths that differ from place to place: which region each cell acts in, and its weights where a layer has places.

What a layer is given that is of no place, such as the tokens of the prompt, and layers that have none, have the share
of the picture that the region is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeAlias

import torch
from torch import Tensor

from .picture import Grid, Picture
from .region import Region
from .tensors import plain_mode

EVERYWHERE, NOWHERE = 0, -1
"""In place of a region's number."""
_GROUPS = 16
"""As many groups at most, or they cost more calls than they save work."""
Runs: TypeAlias = tuple[tuple[int, int], ...]
"""Where factors begin and end that lie together."""
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


@dataclass(frozen=True, slots=True)
class Alike:
    """Places whose weights are the same."""

    count: int
    """Of them, in all rows together."""
    runs: Runs
    """The factors that act there."""
    weights: Tensor
    """Of all factors, (n,)."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """The places of a layer, by what their weights are.

    They are in order: those without weights, groups, those that few others are like, and large groups.
    """

    order: Tensor
    """Where the first place in order lies, the second …, (rows * places,)."""
    back: Tensor
    """In which place of the order each lies, (rows * places,)."""
    none: int
    """Places without weights."""
    alike: tuple[Alike, ...]
    rest_weights: Tensor
    """Of those that few others are like, (r, n)."""
    large: tuple[Alike, ...]

    @property
    def small(self) -> int:
        """Places that are in no large group."""
        return len(self.order) - sum(one.count for one in self.large)


def runs_of(factors: Iterable[object]) -> Runs:
    """Those that are not 0 or False."""
    runs, start = [], 0
    for acts, own in groupby(factors, bool):
        stop = start + sum(1 for _ in own)
        if acts:
            runs.append((start, stop))
        start = stop
    return tuple(runs)


def length(runs: Runs) -> int:
    """How many factors they are."""
    return sum(stop - start for start, stop in runs)


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
        self._grouped: dict[tuple[object, ...], Grouped] = {}
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

    def grouped(
        self, grid: Grid, which: tuple[int, ...], rows: int, large: int, device: torch.device, dtype: torch.dtype
    ) -> Grouped:
        """The places by their weights.

        Args:
            grid: the places.
            which: of which region each factor's weights are; see `at`.
            rows: how often there are these places.
            large: places, of all rows, that make a large group.
            device: where.
            dtype: as what.
        """
        key = grid, which, rows, large, device, dtype
        found = self._grouped.get(key)
        if found is None:
            self.placed = True
            with plain_mode(device):
                found = self._grouped[key] = self._group(grid, which, rows, large, device, dtype)
        return found

    def _group(
        self, grid: Grid, which: tuple[int, ...], rows: int, large: int, device: torch.device, dtype: torch.dtype
    ) -> Grouped:
        numbers = sorted(set(which))
        factor = [numbers.index(one) for one in which]
        own = self._all(grid)[:, torch.tensor(numbers, dtype=torch.int64, device="cpu")]  # (places, distinct regions)
        kinds, kind, counts = torch.unique(own, dim=0, return_inverse=True, return_counts=True)
        least = len(own) / _GROUPS
        none, alike, rest, big = list[int](), list[int](), list[int](), list[int]()
        for i, (weights, count) in enumerate(zip(kinds, counts.tolist(), strict=True)):
            one = none if not weights.any() else big if rows * count >= large else alike if count >= least else rest
            one.append(i)
        places = [_places(kind == i, rows) for i in (*none, *alike)]
        others = torch.isin(kind, torch.tensor(rest, dtype=kind.dtype, device="cpu"))
        places += [_places(others, rows), *(_places(kind == i, rows) for i in big)]
        order = torch.cat(places).to(device)

        def made(i: int) -> Alike:
            weights = kinds[i][factor]
            return Alike(rows * int(counts[i]), runs_of(weights.tolist()), weights.to(device, dtype, copy=True))

        return Grouped(
            order,
            order.argsort(),
            rows * int(counts[none].sum()),
            tuple(map(made, alike)),
            own[others][:, factor].repeat(rows, 1).to(device, dtype, copy=True),
            tuple(map(made, big)),
        )

    def serve(self, picture: Picture) -> None:
        """Be for a picture; as another one has other places, what was made for the one before is forgotten."""
        if picture != self._picture:
            self._picture = picture
            self._weights.clear()
            self._made.clear()
            self._grouped.clear()
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


def _places(chosen: Tensor, rows: int) -> Tensor:
    """The numbers of chosen places in each of some rows, one row after the other, (rows * m,)."""
    return chosen.repeat(rows).nonzero().flatten()


def _column(grid: Grid, region: Region) -> Tensor:
    frames = region.weights(grid.height, grid.width).flatten().repeat(grid.frames)
    before, behind = (frames.new_full((count,), region.share) for count in (grid.before, grid.behind))
    return torch.cat([before, frames, behind])
