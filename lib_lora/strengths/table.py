"""The strength table: a few numbers on the host, and one vector per device that never moves.

Every rank component of every fused pair is multiplied by `multiplier * scale` in the forward. All these factors of a
plan lie in one flat vector per device and dtype; a layer's window is a view into it. Changing a strength rewrites the
vector: one gather, one product and one copy per device, however many layers there are, and no layer is touched.

Images of a batch may have strengths of their own, and so may their positive and negative prompts: both are variants of
the stack, see `model_call.RowMap`, and called images here. The vector has the factors of one of them. While a call has
rows of several, a matrix beside it has the factors of each row.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from ..adapters.base import RankSchedule
from ..compiler import uncompiled
from .regions import NO_SPREAD, Masks, Spread, Which
from .schedule import Moment
from .token_grid import Grid, Picture

KeepVector: TypeAlias = Callable[[str, Tensor], Tensor]
"""Gives a vector's numbers in the memory that one of that name had before."""


class Mirror:
    """All factors of a plan on one device, in one dtype."""

    __slots__ = ("_kept", "factors", "rows", "windows")

    def __init__(self, factors: Tensor, kept: KeepVector | None = None) -> None:
        self._kept = kept
        self.factors = factors if kept is None else kept("factors", factors)  # (n,), of the image shown
        self.rows: Tensor | None = None  # those of all rows of a call, layout by layout; see `Strengths._by_layout`
        self.windows: weakref.WeakSet[FactorView] = weakref.WeakSet()

    def write_rows(self, rows: Tensor) -> None:
        """Show the factors of the rows of a call: in place as long as there are as many, as compiled code has them."""
        if self.rows is not None and self.rows.shape == rows.shape:
            self.rows.copy_(rows)
            return
        own = rows.to(self.factors.device, self.factors.dtype, copy=True)
        self.rows = own if self._kept is None else self._kept("rows", own)
        for window in list(self.windows):
            window.look(self.rows)


class FactorView:
    """The live factors of one layer."""

    __slots__ = ("__weakref__", "_of", "_rows", "_start", "factors")

    def __init__(self, factors: Tensor, start: int, of: Strengths) -> None:
        self.factors = factors
        """(sum of ranks,), of the image that is shown; later writes show through."""
        self._start = start
        self._of = of
        self._rows: Tensor | None = None  # an own tensor: graphs know it by its shape, and not by where it begins

    def look(self, rows: Tensor) -> None:
        """See one's own part of the factors of rows."""
        self._rows = rows_of(rows, self._start, self.factors.shape[0], self._of.length)

    def of_rows(self) -> Tensor:
        """(rows, sum of ranks), each row's own. Only while the call is `mixed`."""
        assert self._rows is not None
        return self._rows

    def of_places(self, grid: Grid | None, *, channels_first: bool = False) -> Tensor:
        """Each place's own, (rows, places, sum of ranks), or (rows, sum of ranks, places) where channels are first.

        One row is for all of them alike.

        Args:
            grid: the places; None is a single one that is none of the picture.
            channels_first: see above.
        """
        weights: Tensor = self._of.weights(self._start, self.factors, grid, channels_first=channels_first)
        factors = self.of_rows() if self._of.mixed else self.factors.unsqueeze(0)
        return weights * factors.unsqueeze(2 if channels_first else 1)


def rows_of(rows: Tensor, start: int, count: int, length: int) -> Tensor:
    """The matrix (rows, count) of one layout among those of all, of which the vectors are `length` long."""
    number = rows.shape[0] // length
    return rows.narrow(0, number * start, number * count).view(number, count)


Values: TypeAlias = Sequence[Sequence[float]]
"""Of each image, the strength of every cell."""


class Source(Protocol):
    """What the strengths are at a moment."""

    @property
    def by_noise(self) -> bool:
        """Whether the timestep or the noise makes a difference."""
        ...

    def values(self, moment: Moment) -> Values:
        """Of each image, the strength of every cell."""
        ...


@dataclass(frozen=True, slots=True)
class FactorShare:
    """One binding's part of a layer's factors."""

    cell: int
    """Which strength multiplies it."""
    count: int = 1
    """Number of rank components."""
    scale: float = 1.0
    schedule: RankSchedule | None = None
    """Which of its ranks act at a timestep."""
    per_rank: int = 1
    """Components that make one rank of the schedule; they lie together."""
    owner: int = 0
    """The layer that shares these factors with no other; 0 where all layers of the same layout have the same ones."""


Layout = tuple[FactorShare, ...]


class Strengths:
    """The strengths of one plan.

    A cell is one number that may differ from others: one per entry, component and block, for each image of the batch.

    Args:
        values: of each image, the strength of every cell.
        source: what they are at a moment, where that makes a difference; `values` are those of the beginning then.
        spread: the parts of the picture they are for.
        kept: gives vectors on devices the memory of those of the plan before; None where each plan has its own.
    """

    def __init__(
        self,
        values: Values,
        source: Source | None = None,
        spread: Spread = NO_SPREAD,
        kept: KeepVector | None = None,
    ) -> None:
        self._kept = kept
        self._lock = (
            threading.RLock()
        )  # strengths are written from a UI's thread while the model's thread reads a moment
        self._set(values)
        self.acted: set[int] = set()
        """Cells that were other than 0 at a moment, of the moments since the strengths were written."""
        self.moments = 0
        """How many these are."""
        self.source = source
        """Gives the values at a moment, where that makes a difference."""
        self.spread = spread
        """Where the cells act."""
        self.has_regions = bool(spread.cells)
        """Whether any of them is for a part of the picture; all that a graph is to know of that."""
        self.masks = Masks(spread.regions)
        """The weights of its regions."""
        self._which: dict[tuple[object, bool], Which] = {}  # by factors and rows, and whether there are places
        self._picture: Picture | None = None
        self._parts: tuple[int | None, ...] = ()  # of the prompt, that the rows of the present call are of
        self._offsets: dict[Layout, int] = {}
        self.length = 0
        """Of the vector."""
        self._orders: dict[int, Tensor] = {}
        self._cells: tuple[int, ...] = ()  # of each factor
        self._owner = torch.empty(0, dtype=torch.int64, device="cpu")
        self._scale = torch.empty(0, dtype=torch.float64, device="cpu")
        self._mirrors: dict[tuple[torch.device, torch.dtype], Mirror] = {}
        self._scheduled: list[tuple[int, FactorShare, RankSchedule]] = []
        self.timestep: float | None = None
        """Of the model call that is next; None where nobody said, and all ranks act."""
        self.mixed = False
        """Whether the rows of the present call are of more than one image."""
        self._image = 0  # which the vectors show
        self._rows: tuple[int, ...] = ()  # the image of each row of the matrices; empty if they are out of date

    def owned(self, layout: Layout) -> Layout:
        """The same for one layer alone, where addresses are not to depend on which layers have the same."""
        if self._kept is None:
            return layout
        return tuple(replace(share, owner=len(self._offsets) + 1) for share in layout)

    def register(self, layout: Layout) -> None:
        """Reserve room for a layer's factors; layers of the same layout share it. Before the first `view` only."""
        if layout in self._offsets:
            return
        assert not self._mirrors, "views must never move"
        self._offsets[layout] = self.length
        self.length += sum(share.count for share in layout)

    def seal(self) -> None:
        """Lay out what was registered."""
        shares = [share for layout in self._offsets for share in layout]
        self._cells = tuple(share.cell for share in shares for _ in range(share.count))
        scales = [share.scale for share in shares for _ in range(share.count)]
        self._owner = torch.tensor(self._cells, dtype=torch.int64, device="cpu")
        self._scale = torch.tensor(scales, dtype=torch.float64, device="cpu")
        start = 0
        for share in shares:
            if share.schedule is not None:
                self._scheduled.append((start, share, share.schedule))
            start += share.count

    @property
    def scheduled(self) -> bool:
        """Whether ranks depend on the timestep."""
        return bool(self._scheduled)

    @property
    def varying(self) -> bool:
        """Whether anything depends on the moment."""
        return self.scheduled or self.source is not None

    @property
    def by_noise(self) -> bool:
        """Whether anything depends on the timestep or the noise."""
        return self.scheduled or (self.source is not None and self.source.by_noise)

    def window(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> FactorView:
        """The live factors of one layer."""
        mirror, start = self._mirror(device, dtype), self._offsets[layout]
        window = FactorView(mirror.factors.narrow(0, start, sum(share.count for share in layout)), start, self)
        mirror.windows.add(window)
        if mirror.rows is not None:
            window.look(mirror.rows)
        return window

    def of_image(self, layout: Layout, device: torch.device, dtype: torch.dtype, image: int | None = None) -> Tensor:
        """The factors of one layer for one image of the present call, (sum of ranks,); None is the one shown."""
        mirror, start, count = self._mirror(device, dtype), self._offsets[layout], sum(one.count for one in layout)
        if image is None:
            return mirror.factors.narrow(0, start, count)
        assert mirror.rows is not None  # a call of several images has them
        return rows_of(mirror.rows, start, count, self.length)[self._rows.index(image)]

    @property
    def rows(self) -> tuple[int, ...]:
        """The image of each row of the present call. Only while it is `mixed`."""
        return self._rows

    @property
    def regional(self) -> frozenset[int]:
        """The cells that do not act everywhere."""
        return self.spread.cells

    @property
    def in_parts(self) -> bool:
        """Whether it makes a difference which part of the prompt a row is of."""
        return self.spread.in_parts

    def set_parts(self, parts: tuple[int | None, ...]) -> None:
        """Say which part of the prompt each row of the next model call is of; empty for nobody knows."""
        self._parts = parts if self.in_parts and any(part is not None for part in parts) else ()

    @property
    def parts(self) -> tuple[int | None, ...]:
        """Which part of the prompt each row of the present call is of; empty where that makes no difference."""
        return self._parts

    @property
    def shown(self) -> int:
        """The image that calls are for whose rows are alike."""
        return self._image

    @property
    def picture(self) -> Picture | None:
        """What the present call computes; None where nothing tells."""
        return self._picture

    def set_picture(self, picture: Picture | None) -> None:
        """Say what the next model call computes; None after it."""
        if picture is not None:
            self.masks.serve(picture)
        self._picture = picture

    # which rows and regions there are, and what masks are made already, no graph is to know
    @uncompiled
    def weights(self, start: int, factors: Tensor, grid: Grid | None, *, channels_first: bool) -> Tensor:
        """How far some factors act at each place, in the dtype and on the device of these; see `Masks.at`.

        Args:
            start: of the first of them.
            factors: (n,), of which the number is taken.
            grid: the places.
            channels_first: see `Masks.at`.
        """
        which = self._which_of(start, factors.shape[0], grid)
        return self.masks.at(grid, which, factors.device, factors.dtype, channels_first=channels_first)

    def _which_of(self, start: int, n: int, grid: Grid | None) -> Which:
        parts = self._parts or (None,)
        variants = self._rows if self.mixed else (self._image,) * len(parts)
        parts = parts if len(parts) == len(variants) else (None,) * len(variants)
        place = start, n, variants, parts
        which = self._which.get((place, grid is None))
        if which is None:
            cells, rows = self._cells[start : start + n], zip(variants, parts, strict=True)
            which = tuple(self.spread.which(variant, cells, grid, part) for variant, part in rows)
            which = self._which[place, grid is None] = which[:1] if len(set(which)) == 1 else which
        return which

    def write(self, values: Values, source: Source | None = None, spread: Spread = NO_SPREAD) -> None:
        """Set every cell; shows at once in every view. For another number of variants, the first of them is shown."""
        with self._lock:
            other = len(values) != len(self.values)
            self.source = source
            if spread != self.spread:
                self.spread, self.masks, self._which = spread, Masks(spread.regions), {}
                self.has_regions = bool(spread.cells)
            self._set(values)
            if other:
                self._image, self.mixed = 0, False
            self.acted, self.moments = set(), 0
            self.refresh()

    def show(self, image: int) -> None:
        """Say which image the next calls are for, all rows of them; shows at once in every view."""
        with self._lock:
            self.mixed = False
            if image != self._image:
                self._image = image
                self._refresh_vectors()

    def set_rows(self, rows: tuple[int, ...]) -> None:
        """Say of which image each row of the next model call is; shows at once in every window."""
        with self._lock:
            if max(rows, default=0) >= len(self.values):  # another stack came since the call began
                self.show(0)
                return
            if len(set(rows)) < 2:
                self.show(next(iter(rows), self._image))
                return
            if rows != self._rows:
                self._rows = rows
                self._refresh_rows()
            self.mixed = True

    def set_moment(self, moment: Moment) -> None:
        """Say when the next model call is; shows at once in every view.

        Raises:
            MomentError: a strength depends on what the moment does not tell; all is as before then.
        """
        with self._lock:
            values = None if self.source is None else tuple(map(tuple, self.source.values(moment)))
            stale = bool(self._scheduled) and moment.timestep != self.timestep
            self.timestep = moment.timestep
            if values is not None and (values != self.values or not self.moments):
                self.acted.update(cell for own in values for cell, value in enumerate(own) if value)
            if values is not None:
                self.moments += 1
            if values is not None and values != self.values:
                self._set(values)
                stale = True
            if stale:
                self.refresh()

    def _set(self, values: Values) -> None:
        self.values: tuple[tuple[float, ...], ...] = tuple(map(tuple, values))
        """Of each image, the strength of every cell."""
        self._values = torch.tensor(self.values, dtype=torch.float64, device="cpu")  # (images, cells)

    def _mirror(self, device: torch.device, dtype: torch.dtype) -> Mirror:
        mirror = self._mirrors.get((device, dtype))
        if mirror is None:
            factors = self._factors((self._image,))[0]
            mirror = self._mirrors[device, dtype] = Mirror(
                factors.to(device=device, dtype=dtype, copy=True), self._kept
            )
            if self._rows:
                mirror.write_rows(self._by_layout())
        return mirror

    def leave_devices(self) -> None:
        """Forget the memory on devices, where nothing is placed that reads it; the next has that of now."""
        self._mirrors = {key: mirror for key, mirror in self._mirrors.items() if key[0].type == "cpu"}

    def refresh(self) -> None:
        """Write all factors again, where others have written to their memory."""
        self._refresh_vectors()
        if self.mixed:
            self._refresh_rows()
        else:
            self._rows = ()

    def _refresh_vectors(self) -> None:
        if self._mirrors:
            factors = self._factors((self._image,))[0]
            for mirror in self._mirrors.values():
                mirror.factors.copy_(factors)

    def _refresh_rows(self) -> None:
        if self._mirrors:
            rows = self._by_layout()
            for mirror in self._mirrors.values():
                mirror.write_rows(rows)

    def _by_layout(self) -> Tensor:
        """The factors of all rows of the call, (rows * n,): those of the first layout for each row, then of the next.

        So each layout has a matrix of its own in one piece, whose strides do not depend on the others.
        """
        count = len(self._rows)
        order = self._orders.get(count)
        if order is None:
            ends = [*list(self._offsets.values())[1:], self.length]
            every = torch.arange(count * self.length, device="cpu").view(count, self.length)
            pieces = [every[:, start:end].flatten() for start, end in zip(self._offsets.values(), ends, strict=True)]
            order = self._orders[count] = torch.cat(pieces)
        return self._factors(self._rows).flatten()[order]

    def _factors(self, images: Sequence[int]) -> Tensor:
        """All factors of these images, (images, n)."""
        values = self._values if len(images) == len(self._values) == 1 else self._values[list(images)]
        factors = values.index_select(1, self._owner).mul_(self._scale)
        if self.timestep is not None:
            for start, share, schedule in self._scheduled:
                factors[:, start + share.per_rank * schedule.first(self.timestep) : start + share.count] = 0.0
        return factors
