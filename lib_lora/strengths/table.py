"""The strength table: all numbers of the active plan on the host, and one matrix per device that never moves.

Every rank component of every fused pair is multiplied by `strength * scale` in the forward. All these factors of a plan
are in one matrix per device and dtype; a layer has a view into it. A change of strength rewrites the matrix: one
gather, one product and one copy per device, however many layers there are, and no layer is touched. Nor is anything
written before a layer reads it: a plain call takes its number from the host.
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
from ..compiler import may_compile, uncompiled
from ..tensors import page_locked
from .regions import LatentGrid, RowRegions, TokenGrid, TokenLayout, region_on_row, weights_at
from .stack_strengths import StackStrengths, Values
from .strength import Moment

ALIGNMENT = 16
"""Entries. Compiled code loads up to 16 bytes at once, and does not look again where a layer's factors begin."""
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
    """The strengths of one layer on a device, in one dtype: a view of the table's matrix for each of its layouts."""

    table: StrengthTable
    device_dtype: tuple[torch.device, torch.dtype]
    spatial: int
    """Dimensions behind the channels, of convolutions."""
    layouts: Sequence[Layout]
    factors: tuple[Tensor, ...] = ()
    """Each (n,), of the variant that is shown; later writes show through."""
    alike: tuple[Tensor, ...] = ()
    """Each (n, *ones), with a one for each spatial dimension, or (1,): where all rows and places have the same."""
    rows: tuple[Tensor, ...] = ()
    """Each (rows, n), of the rows of the latest call whose rows are `mixed`."""

    def view(self, matrix: Tensor, height: int) -> None:
        """Look at this layer's part of the matrix, see `StrengthTable`."""
        # each an own tensor: graphs know it by its shape, and not by where it begins
        if height == 1:
            self.factors, self.rows = tuple(starmap(partial(matrix.narrow, 0), self.layouts)), ()
        else:
            parts = [_part(matrix, height, *layout) for layout in self.layouts]
            self.factors, self.rows = tuple([part[0] for part in parts]), tuple([part[1:] for part in parts])
        self.alike = tuple([_per_channel(one, self.spatial) for one in self.factors]) if self.spatial else self.factors

    def for_rows(self, repeats: int, ndim: int) -> tuple[Tensor, ...]:
        """Return the strengths of each row, (rows, …, n, *ones).

        Args:
            repeats: rows of the layer's input for each row of the model call, one after the other.
            ndim: dimensions of the tensor that is changed.
        """
        middle, behind = (1,) * (ndim - self.spatial - 2), (1,) * self.spatial
        rows = self.rows if repeats == 1 else [one.repeat_interleave(repeats, 0) for one in self.rows]
        return tuple([one.reshape(one.shape[0], *middle, one.shape[1], *behind) for one in rows])

    def for_places(self, layout: TokenLayout) -> tuple[Tensor, ...]:
        """Return the strengths at each place of a tensor, with the dimensions of the tensor, or as `alike`."""
        first, shaped_factors = layout.channels_first, []
        for i, vector in enumerate(self.factors):
            if not vector.shape[0]:
                shaped_factors.append(vector)
                continue
            weights: Tensor = self.table.weights(self.layouts[i][0], vector, layout.grid, channels_first=first)
            factors = self.rows[i] if self.table.mixed else vector.unsqueeze(0)
            shaped = shaped_by_places(weights * factors.unsqueeze(2 if first else 1), layout)
            shaped_factors.append(_per_channel(shaped, self.spatial) if shaped.ndim == 1 else shaped)
        return tuple(shaped_factors)


def _per_channel(factors: Tensor, spatial: int) -> Tensor:
    return factors.view(-1, *(1,) * spatial) if factors.shape[0] > 1 else factors


def with_change_of_bias(y: Tensor, strengths: Tensor, bias: Tensor, spatial: int) -> Tensor:
    """Return an output with changes of the bias, (n, out), at strengths of a layer, in new memory."""
    channels = -spatial - 1
    if bias.shape[0] == 1:
        return torch.addcmul(y, bias.view(-1, *(1,) * spatial), strengths)
    if strengths.ndim == 1:
        return y + (strengths @ bias).view(-1, *(1,) * spatial)
    return y + (strengths.movedim(channels, -1) @ bias).movedim(-1, channels)


def _part(matrix: Tensor, height: int, start: int, count: int) -> Tensor:
    """Return one layer's part (height, count) of a matrix, in which it begins at `start` of each row."""
    width = -(-count // ALIGNMENT) * ALIGNMENT
    return matrix.narrow(0, height * start, height * width).view(height, width).narrow(1, 0, count)


class StrengthTable:
    """The strengths of one plan.

    On each device and in each dtype in which a layer computes, they are a matrix of rows x factors. Its first row has
    the factors of the variant that is shown; while rows of a call differ, the further rows have theirs. Each layer's
    part of the matrix is in one piece, so that its strides do not depend on other layers, and begins at a multiple of
    `ALIGNMENT` entries, as compiled code may load several at once.

    Args:
        strengths: of the stack.
        kept: gives matrices on devices the memory of the plan before; None where each plan has its own.
    """

    def __init__(self, strengths: StackStrengths, kept: KeepVector | None = None) -> None:
        self._kept = kept
        self.numbers: Sequence[float] | None
        """The strength of every group in the present call; None where rows or places may differ."""
        self.mixed = False
        """Whether the rows of the present call are of more than one variant."""
        self.shown = 0
        """The variant of calls whose rows are alike."""
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
        self._groups: list[int] = []  # of each factor
        self._scales: list[float] = []  # likewise
        self._gather: tuple[Tensor, Tensor] | None = None  # both as tensors
        self._orders: dict[int, Tensor] = {}
        self._matrices: dict[tuple[torch.device, torch.dtype], Tensor] = {}  # (height * length,), layer by layer
        self._height = 1  # rows of each
        self.stale = False
        """Whether the matrices lack the latest strengths; who reads one calls `refresh` before."""
        self._layers: weakref.WeakSet[LayerStrengths] = weakref.WeakSet()
        self._scheduled: list[tuple[int, FactorRange, Schedule]] = []
        self.moment = Moment()
        """Of the next model call; where its timestep is not known, all ranks act."""
        self.rows: tuple[int, ...] = ()
        """The variant of each row of the latest call whose rows were `mixed`."""

    def register(self, *every: FactorRanges, own: bool = False) -> list[Layout]:
        """Reserve room for a layer's factors, before the first `for_layer`; equal ranges have the same room.

        Args:
            every: each the ranges of factors that are read together.
            own: where plans share memory, give the layer room of its own, so that addresses do not depend on others.
        """
        layouts, shared = [], self._layouts if self._kept is None or not own else {}
        for ranges in every:
            if ranges not in shared:
                assert not self._matrices, "views must never move"
                start = len(self._groups)
                self._starts.append(start)
                for part in ranges:
                    if part.schedule is not None:
                        self._scheduled.append((len(self._groups), part, part.schedule))
                    self._groups += [part.group] * part.count
                    self._scales += [part.scale] * part.count
                count = len(self._groups) - start
                self._groups += [0] * (-count % ALIGNMENT)
                self._scales += [0.0] * (-count % ALIGNMENT)
                shared[ranges] = start, count
            layouts.append(shared[ranges])
        return layouts

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
        layer = LayerStrengths(self, (device, dtype), spatial, layouts)
        layer.view(self._matrix(device, dtype), self._height)
        self._layers.add(layer)
        return layer

    def for_variant(
        self, ranges: FactorRanges, device: torch.device, dtype: torch.dtype, variant: int | None = None
    ) -> Tensor:
        """Return the factors of a layer for one variant of the present call, (sum of ranks,); None is the one shown."""
        matrix = self._matrix(device, dtype)
        self.refresh()
        part = _part(matrix, self._height, *self._layouts[ranges])
        return part[0 if variant is None else 1 + self.rows.index(variant)]

    # a graph must not guard rows, regions or cached weights
    @uncompiled
    def weights(self, start: int, factors: Tensor, grid: TokenGrid | None, *, channels_first: bool) -> Tensor:
        """Return how far the n factors from `start` on act at each place, like `factors`; see `region_weights`."""
        stack, parts = self.stack_strengths, self.parts or (None,)
        variants = self.rows if self.mixed else (self.shown,) * len(parts)
        parts = parts if len(parts) == len(variants) else (None,) * len(variants)
        key = start, factors.shape[0], variants, parts, grid is None
        regions = stack.row_regions.get(key)
        if regions is None:
            rows = []
            for variant, part in zip(variants, parts, strict=True):
                of_groups = stack.group_regions[variant]
                groups = self._groups[start : start + factors.shape[0]]
                rows.append(tuple([region_on_row(of_groups[group], grid, part) for group in groups]))
            regions = stack.row_regions[key] = tuple(rows[:1] if len(set(rows)) == 1 else rows)
        return self.region_weights(grid, regions, factors, channels_first=channels_first)

    def region_weights(
        self, grid: TokenGrid | None, regions: RowRegions, like: Tensor, *, channels_first: bool
    ) -> Tensor:
        """Return the weights of regions, see `weights_at`: (rows, n, places), or (rows, places, n), as `like` is."""
        self.was_placed |= grid is not None
        key = grid, regions, like.device, like.dtype, channels_first
        known = self._weights.get(key)
        if known is None:
            weights = weights_at(grid, regions, list(self.stack_strengths.regions))  # (rows, n, places)
            shaped = weights if channels_first else weights.transpose(1, 2)
            known = self._weights[key] = shaped.to(like, copy=True).contiguous()
        return known

    def write(self, strengths: StackStrengths) -> None:
        """Write every group. Where the number of variants changes, the first is shown."""
        values = strengths.values(None)
        with self._lock:
            former, self.stack_strengths = self.stack_strengths, strengths
            if strengths.group_regions != former.group_regions:
                self._weights.clear()
                self._set_regions()
            if len(values) != len(self.values):
                self.shown, self.mixed, self.rows = 0, False, ()
            self._set_values(values)
            self._changed()

    def set_rows(self, rows: tuple[int, ...], parts: tuple[int | None, ...] = ()) -> None:
        """Set the variant and the part of the prompt of each row of the next calls.

        A single variant is of all rows, however many a call has.
        """
        self.parts = parts if self.has_parts and any(part is not None for part in parts) else ()
        with self._lock:
            if max(rows, default=0) >= len(self.values):  # another stack came since the call began
                rows = (0,)
            former, mixed = (self.shown, self.rows), len(set(rows)) > 1
            if mixed:
                self.rows = rows
            elif rows:
                self.shown = rows[0]
            if former != (self.shown, self.rows):
                self._changed()
            self.mixed = mixed  # last, for threads that read it
            self._set_numbers()

    def set_latents(self, latents: LatentGrid) -> None:
        """Set the latents of the next model call."""
        if latents != self._weighed:
            self._weighed, self.was_placed = latents, False
            self._weights.clear()
        self.latents = latents

    def set_moment(self, moment: Moment) -> None:
        """Set the moment of the next model call.

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
                self._changed()

    def take_memory_again(self) -> None:
        """Let the next placement take the memory that plans share, after another plan had it.

        A matrix that layers still read stays: it is on the CPU, where each plan has its own.
        """
        if self._kept is not None:
            read = {layer.device_dtype for layer in list(self._layers)}
            self._matrices = {key: matrix for key, matrix in self._matrices.items() if key in read}

    def refresh(self) -> None:
        """Write the latest strengths into the matrices, without waiting for a device."""
        if self.stale:
            self.rewrite()

    @uncompiled
    def rewrite(self) -> None:
        """Write all strengths again, where others have written to the memory of the matrices."""
        with self._lock:
            height = 1 + len(self.rows)
            grown, self._height = height != self._height, height
            factors = self._host_factors() if self._matrices else None
            for (device, dtype), matrix in list(self._matrices.items()):
                assert factors is not None
                if not grown:
                    _copy(matrix, factors)
                    continue
                matrix = self._matrices[device, dtype] = self._placed(factors, device, dtype)
                for layer in list(self._layers):
                    if layer.device_dtype == (device, dtype):
                        layer.view(matrix, height)
            self.stale = False

    def _changed(self) -> None:
        """Note that the matrices lack something; compiled code and CUDA graphs read them without asking."""
        self.stale = True
        if may_compile() or any(device.type == "cuda" for device, _ in self._matrices):
            self.refresh()

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

    def _matrix(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return the matrix of a device and dtype, which is made where there is none."""
        matrix = self._matrices.get((device, dtype))
        if matrix is None:
            self.refresh()
            matrix = self._matrices[device, dtype] = self._placed(self._host_factors(), device, dtype)
        return matrix

    def _placed(self, factors: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
        with torch.inference_mode(False):  # or it could not be written in other modes
            matrix = torch.empty(factors.shape, device=device, dtype=dtype)
        _copy(matrix, factors)
        return matrix if self._kept is None else self._kept(f"{self._height} rows", matrix)

    def _host_factors(self) -> Tensor:
        """Return all factors as the matrices have them, in fp64: layer by layer, and in each row by row."""
        if self._gather is None:
            groups = torch.tensor(self._groups, dtype=torch.int64, device="cpu")
            self._gather = groups, torch.tensor(self._scales, dtype=torch.float64, device="cpu")
        groups, scales = self._gather
        variants = [self.shown, *self.rows[: self._height - 1]]
        values = self._values if len(variants) == len(self._values) == 1 else self._values[variants]
        factors = values.index_select(1, groups).mul_(scales)
        for start, part, schedule in self._scheduled:
            schedule.write(factors[:, start : start + part.count], self.moment, part.per_rank)
        return factors.flatten() if len(variants) == 1 else factors.flatten()[self._order(len(variants))]

    def _order(self, height: int) -> Tensor:
        """Return where each entry of a matrix is in the factors row by row."""
        order = self._orders.get(height)
        if order is None:
            length = len(self._groups)
            ends = [*self._starts[1:], length]
            every = torch.arange(height * length, device="cpu").view(height, length)
            pieces = [every[:, start:end].flatten() for start, end in zip(self._starts, ends, strict=True)]
            order = self._orders[height] = torch.cat(pieces)
        return order


def _copy(matrix: Tensor, factors: Tensor) -> None:
    """Copy factors to a device, from page-locked memory where that needs no waiting."""
    if matrix.device.type == "cpu":
        matrix.copy_(factors)
    else:
        matrix.copy_(page_locked(factors.shape, matrix.dtype, matrix.device).copy_(factors), non_blocking=True)


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
