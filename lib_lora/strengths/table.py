"""The strength table: all numbers of the active plan on the host, and one vector per device that never moves.

Every rank component of every fused pair is multiplied by `strength * scale` in the forward. All these factors of a plan
are in one flat vector per device and dtype; a layer has a view into it. A change of strength rewrites the vector: one
gather, one product and one copy per device, however many layers there are, and no layer is touched. The vector has the
factors of one variant. While a call has rows of several, a matrix beside it has the factors of each row.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import TypeAlias

import torch
from torch import Tensor

from ..adapters.base import Schedule
from ..compiler import uncompiled
from .regions import LatentGrid, RowRegions, TokenGrid, TokenLayout, region_on_row, weights_at
from .stack_strengths import StackStrengths, Values
from .strength import Moment

KeepVector: TypeAlias = Callable[[str, Tensor], Tensor]
"""Copies a vector into the memory that one of that name had before, and returns it."""


@dataclass(frozen=True, slots=True)
class FactorRange:
    """The factors of one binding in a layer, adjacent in its vector."""

    group: int
    """Which strength multiplies it."""
    count: int = 1
    """Number of rank components."""
    scale: float = 1.0
    schedule: Schedule | None = None
    """Which of its ranks or heads act when."""
    per_rank: int = 1
    """Adjacent components that make one rank of the schedule."""


FactorRanges: TypeAlias = tuple[FactorRange, ...]
Layout: TypeAlias = tuple[int, int]
"""Where the factors of some ranges are in the vector: the first, and how many."""


@dataclass(eq=False)
class LayerStrengths:
    """The strengths of one layer on a device, in one dtype: a vector of factors for each of its layouts."""

    table: StrengthTable
    place: tuple[torch.device, torch.dtype]
    spatial: int
    """Dimensions behind the channels, of convolutions."""
    layouts: Sequence[Layout]
    """Of the vectors in the table's."""
    factors: tuple[Tensor, ...]
    """Each (n,), of the variant that is shown; later writes show through."""
    alike: tuple[Tensor, ...]
    """Each (n, *ones), with a one for each spatial dimension, or (1,): where all rows and places have the same."""
    rows: tuple[Tensor, ...] = ()
    """Each (rows, n), of the rows of the call. Only while these are `mixed`."""

    def set_rows(self, rows: Tensor) -> None:
        """Look at this layer's part of the factors of all rows."""
        # each an own tensor: graphs know it by its shape, and not by where it begins
        self.rows = tuple([_layer_rows(rows, self.table.length, *layout) for layout in self.layouts])

    def for_rows(self, repeats: int, ndim: int) -> tuple[Tensor, ...]:
        """Return the strengths of each row, (rows, …, n, *ones).

        Args:
            repeats: rows of the layer's input for each row of the model call, one after the other.
            ndim: dimensions of the tensor that is changed.
        """
        middle, behind = (1,) * (ndim - self.spatial - 2), (1,) * self.spatial
        rows = self.rows if repeats == 1 else [one.repeat_interleave(repeats, 0) for one in self.rows]
        return tuple([one.view(one.shape[0], *middle, one.shape[1], *behind) for one in rows])

    def for_places(self, layout: TokenLayout) -> tuple[Tensor, ...]:
        """Return the strengths at each place of a tensor, with the dimensions of the tensor, or as `alike`."""
        first, found = layout.channels_first, []
        for i, vector in enumerate(self.factors):
            if not vector.shape[0]:
                found.append(vector)
                continue
            weights: Tensor = self.table.weights(self.layouts[i][0], vector, layout.grid, channels_first=first)
            factors = self.rows[i] if self.table.mixed else vector.unsqueeze(0)
            shaped = shaped_by_places(weights * factors.unsqueeze(2 if first else 1), layout)
            found.append(_per_channel(shaped, self.spatial) if shaped.ndim == 1 else shaped)
        return tuple(found)


def _per_channel(factors: Tensor, spatial: int) -> Tensor:
    return factors.view(-1, *(1,) * spatial) if factors.shape[0] > 1 else factors


def change_of_bias(strengths: Tensor, bias: Tensor, spatial: int) -> Tensor:
    """Return the change of an output by changes of the bias, (n, out), at strengths of a layer."""
    if strengths.ndim == 1:
        return (strengths @ bias).view(-1, *(1,) * spatial)
    channels = -spatial - 1
    return (strengths.movedim(channels, -1) @ bias).movedim(-1, channels)


def _layer_rows(rows: Tensor, length: int, start: int, count: int) -> Tensor:
    """Return one layer's matrix (rows, count) out of the rows of all layers, which are `length` long."""
    number = rows.shape[0] // length
    return rows.narrow(0, number * start, number * count).view(number, count)


class StrengthTable:
    """The strengths of one plan.

    Args:
        strengths: of the stack.
        kept: gives vectors on devices the memory of the plan before; None where each plan has its own.
    """

    def __init__(self, strengths: StackStrengths, kept: KeepVector | None = None) -> None:
        self._kept = kept
        self.numbers: Sequence[float] | None
        """The strength of every group in the present call; None where rows or places may differ."""
        self.mixed = False
        """Whether the rows of the present call are of more than one variant."""
        self.shown = 0
        """The variant of calls whose rows are alike; the vectors have its factors."""
        # a UI's thread writes strengths while the model's thread sets a moment
        self._lock = threading.RLock()
        self.stack_strengths = strengths
        """Of the stack that was written last."""
        self._set_regions()
        self._set_values(strengths.values(None))
        self.latents: LatentGrid | None = None
        """Of the present call; None where they are not known."""
        self.was_placed = False
        """Whether any layer had tokens with a place in the latents."""
        self._weights: dict[tuple[object, ...], Tensor] = {}  # see `region_weights`
        self._weighed: LatentGrid | None = None  # the latents that these are for
        self.parts: tuple[int | None, ...] = ()
        """The part of the prompt of each row of the present call; empty where that makes no difference."""
        self._layouts: dict[FactorRanges, Layout] = {}  # of ranges whose room layers share
        self._starts: list[int] = []  # of all
        self.length = 0
        """Of the vector."""
        self._orders: dict[int, Tensor] = {}
        self._groups: list[int] = []  # of each factor
        self._scales: list[float] = []  # likewise
        self._gather: tuple[Tensor, Tensor] | None = None  # both as tensors
        self._vectors: dict[tuple[torch.device, torch.dtype], Tensor] = {}  # (n,), of the variant that is shown
        self._matrices: dict[tuple[torch.device, torch.dtype], Tensor] = {}  # see `_factors_by_layer`
        self._layers: weakref.WeakSet[LayerStrengths] = weakref.WeakSet()
        self._scheduled: list[tuple[int, FactorRange, Schedule]] = []
        self.moment = Moment()
        """Of the next model call; where its timestep is not known, all ranks act."""
        self.rows: tuple[int, ...] = ()
        """The variant of each row of the present call. Only while it is `mixed`."""

    def register(self, *every: FactorRanges, own: bool = False) -> list[Layout]:
        """Reserve room for a layer's factors, before the first `for_layer`; equal ranges have the same room.

        Args:
            every: each the ranges of factors that are read together.
            own: where plans share memory, give the layer room of its own, so that addresses do not depend on others.
        """
        found, shared = [], self._layouts if self._kept is None or not own else {}
        for ranges in every:
            if ranges not in shared:
                assert not self._vectors, "views must never move"
                start = self.length
                self._starts.append(start)
                for one in ranges:
                    if one.schedule is not None:
                        self._scheduled.append((self.length, one, one.schedule))
                    self._groups += [one.group] * one.count
                    self._scales += [one.scale] * one.count
                    self.length += one.count
                shared[ranges] = start, self.length - start
            found.append(shared[ranges])
        return found

    @property
    def varying(self) -> bool:
        """Return whether anything depends on the moment."""
        return bool(self._scheduled) or self.stack_strengths.varies

    @property
    def by_noise(self) -> bool:
        """Return whether anything depends on the timestep or the noise."""
        return bool(self._scheduled) or self.stack_strengths.by_noise

    def for_layer(
        self, layouts: Sequence[Layout], device: torch.device, dtype: torch.dtype, spatial: int
    ) -> LayerStrengths:
        """Return the strengths of a layer, a vector for each of the layouts; see `LayerStrengths`."""
        place = device, dtype
        every = self._vectors[place] if place in self._vectors else self._make_vector(place)
        vectors = tuple(starmap(partial(every.narrow, 0), layouts))
        alike = tuple([_per_channel(one, spatial) for one in vectors]) if spatial else vectors
        found = LayerStrengths(self, place, spatial, layouts, vectors, alike)
        self._layers.add(found)
        if place in self._matrices:
            found.set_rows(self._matrices[place])
        return found

    def for_variant(
        self, ranges: FactorRanges, device: torch.device, dtype: torch.dtype, variant: int | None = None
    ) -> Tensor:
        """Return the factors of a layer for one variant of the present call, (sum of ranks,); None is the one shown."""
        place = device, dtype
        start, count = self._layouts[ranges]
        every = self._vectors[place] if place in self._vectors else self._make_vector(place)
        if variant is None:
            return every.narrow(0, start, count)
        return _layer_rows(self._matrices[place], self.length, start, count)[self.rows.index(variant)]

    # a graph must not guard rows, regions or cached weights
    @uncompiled
    def weights(self, start: int, factors: Tensor, grid: TokenGrid | None, *, channels_first: bool) -> Tensor:
        """Return how far the n factors from `start` on act at each place, like `factors`; see `region_weights`."""
        stack, parts = self.stack_strengths, self.parts or (None,)
        variants = self.rows if self.mixed else (self.shown,) * len(parts)
        parts = parts if len(parts) == len(variants) else (None,) * len(variants)
        key = start, factors.shape[0], variants, parts, grid is None
        found = stack.row_regions.get(key)
        if found is None:
            rows = []
            for variant, part in zip(variants, parts, strict=True):
                own = stack.group_regions[variant]
                groups = self._groups[start : start + factors.shape[0]]
                rows.append(tuple([region_on_row(own[group], grid, part) for group in groups]))
            found = stack.row_regions[key] = tuple(rows[:1] if len(set(rows)) == 1 else rows)
        return self.region_weights(grid, found, factors, channels_first=channels_first)

    def region_weights(
        self, grid: TokenGrid | None, regions: RowRegions, like: Tensor, *, channels_first: bool
    ) -> Tensor:
        """Return the weights of regions, see `weights_at`: (rows, n, places), or (rows, places, n), as `like` is."""
        self.was_placed |= grid is not None
        key = grid, regions, like.device, like.dtype, channels_first
        found = self._weights.get(key)
        if found is None:
            weights = weights_at(grid, regions, list(self.stack_strengths.regions))  # (rows, n, places)
            shaped = weights if channels_first else weights.transpose(1, 2)
            found = self._weights[key] = shaped.to(like, copy=True).contiguous()
        return found

    def write(self, strengths: StackStrengths) -> None:
        """Write every group; shows at once in every view. Where the number of variants changes, the first is shown."""
        values = strengths.values(None)
        with self._lock:
            former, self.stack_strengths = self.stack_strengths, strengths
            if strengths.group_regions != former.group_regions:
                self._weights.clear()
                self._set_regions()
            if len(values) != len(self.values):
                self.shown, self.mixed = 0, False
            self._set_values(values)
            self.refresh()

    def set_rows(self, rows: tuple[int, ...], parts: tuple[int | None, ...] = ()) -> None:
        """Set the variant and the part of the prompt of each row of the next calls; shows at once in every view.

        A single variant is of all rows, however many a call has.
        """
        self.parts = parts if self.has_parts and any(part is not None for part in parts) else ()
        with self._lock:
            if max(rows, default=0) >= len(self.values):  # another stack came since the call began
                rows = (0,)
            former, self.mixed = self.shown, len(set(rows)) > 1
            if not self.mixed:
                self.shown = rows[0] if rows else former
                if self.shown != former:
                    self._write_vectors()
            elif rows != self.rows:
                self.rows = rows
                self._write_rows()
            self._set_numbers()

    def set_latents(self, latents: LatentGrid) -> None:
        """Set the latents of the next model call."""
        if latents != self._weighed:
            self._weighed, self.was_placed = latents, False
            self._weights.clear()
        self.latents = latents

    def set_moment(self, moment: Moment) -> None:
        """Set the moment of the next model call; shows at once in every view.

        Raises:
            MomentError: the moment lacks what a strength depends on; all is as before then.
        """
        with self._lock:
            for *_, schedule in self._scheduled:
                schedule.check(moment)
            values = self.stack_strengths.values(moment) if self.stack_strengths.varies else self.values
            changed, later = values != self.values, bool(self._scheduled) and moment != self.moment
            self.moment = moment
            if changed:
                self._set_values(values)
            if changed or later:
                self.refresh()

    def drop_devices(self) -> None:
        """Forget the memory on devices but the CPU, where no placed layer reads it any more."""
        self._vectors = {place: one for place, one in self._vectors.items() if place[0].type == "cpu"}
        self._matrices = {place: one for place, one in self._matrices.items() if place[0].type == "cpu"}

    def refresh(self) -> None:
        """Write all factors again, where others have written to their memory."""
        self._write_vectors()
        if self.mixed:
            self._write_rows()
        else:
            self.rows = ()

    def _set_values(self, values: Values) -> None:
        self.values = values
        """For each variant, the strength of every group."""
        self._values = torch.tensor(values, dtype=torch.float64, device="cpu")  # (variants, groups)
        self._set_numbers()

    def _set_numbers(self) -> None:
        self.numbers = None if self.mixed or self.has_regions else self.values[self.shown]

    def _set_regions(self) -> None:
        regions = self.stack_strengths.group_regions
        self.regional_groups = frozenset([i for own in regions for i, (region, _) in enumerate(own) if region])
        """The strength groups that have a region, in any variant."""
        self.has_regions = bool(self.regional_groups)
        """Whether there are any; a graph knows nothing else of regions."""
        self.has_parts = bool({part for own in regions for _, part in own} - {None})
        """Whether the part of the prompt that a row is of makes a difference."""

    def _make_vector(self, place: tuple[torch.device, torch.dtype]) -> Tensor:
        """Place the factors of the variant that is shown on a device, (n,), and the factors of the call's rows."""
        factors = self._factors((self.shown,))[0].to(*place, copy=True)
        vector = self._vectors[place] = factors if self._kept is None else self._kept("factors", factors)
        if self.rows:
            self._write_matrix(place, self._factors_by_layer())
        return vector

    def _write_vectors(self) -> None:
        if self._vectors:
            factors = self._factors((self.shown,))[0]
            for vector in self._vectors.values():
                vector.copy_(factors)

    def _write_rows(self) -> None:
        if self._vectors:
            rows = self._factors_by_layer()
            for place in self._vectors:
                self._write_matrix(place, rows)

    def _write_matrix(self, place: tuple[torch.device, torch.dtype], rows: Tensor) -> None:
        """Write the factors of all rows on a device: in place while there are as many, as compiled code reads them."""
        found = self._matrices.get(place)
        if found is not None and found.shape == rows.shape:
            found.copy_(rows)
            return
        own = rows.to(*place, copy=True)
        own = self._matrices[place] = own if self._kept is None else self._kept("rows", own)
        for layer in list(self._layers):
            if layer.place == place:
                layer.set_rows(own)

    def _factors_by_layer(self) -> Tensor:
        """Return the factors of all rows of the call, (rows * n,): the first layer's for each row, then the next one's.

        So each layer has a matrix of its own in one piece, whose strides do not depend on the others.
        """
        count = len(self.rows)
        order = self._orders.get(count)
        if order is None:
            ends = [*self._starts[1:], self.length]
            every = torch.arange(count * self.length, device="cpu").view(count, self.length)
            pieces = [every[:, start:end].flatten() for start, end in zip(self._starts, ends, strict=True)]
            order = self._orders[count] = torch.cat(pieces)
        return self._factors(self.rows).flatten()[order]

    def _factors(self, variants: Sequence[int]) -> Tensor:
        """Return all factors of these variants, (variants, n)."""
        if self._gather is None:
            groups = torch.tensor(self._groups, dtype=torch.int64, device="cpu")
            self._gather = groups, torch.tensor(self._scales, dtype=torch.float64, device="cpu")
        groups, scales = self._gather
        values = self._values if len(variants) == len(self._values) == 1 else self._values[list(variants)]
        factors = values.index_select(1, groups).mul_(scales)
        for start, own, schedule in self._scheduled:
            schedule.write(factors[:, start : start + own.count], self.moment, own.per_rank)
        return factors


def shaped_by_places(weights: Tensor, layout: TokenLayout) -> Tensor:
    """Give numbers for the rows of a call and the places of a tensor the dimensions of the tensor.

    A single place for all rows gets none: a product with one number is cheaper.

    Args:
        weights: (rows, places, n), or (rows, n, places) where channels are first.
        layout: of the tensor.
    """
    if layout.repeats > 1 and weights.shape[0] > 1:
        weights = weights.repeat_interleave(layout.repeats, 0)
    if layout.grid is None and weights.shape[0] == 1:
        return weights.flatten()
    if layout.channels_first:
        return weights.view(*weights.shape[:2], *layout.sizes)
    return weights.view(weights.shape[0], *layout.sizes, weights.shape[2])
