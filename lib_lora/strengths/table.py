"""The strength table: the strengths of the active plan on the host, and one matrix of factors per device and dtype.

The factors `strength * scale` of all rank components are the columns of the matrix, and a layer has a view
of its columns. A change of strength rewrites the matrix, one gather, one product and one copy per device, and touches
no layer. Nothing is written before a layer reads it: a plain call takes its number from the host.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import starmap
from typing import TypeAlias

import torch
from torch import Tensor

from ..adapters.base import Pair, Schedule
from ..compiler import compiling, may_compile, uncompiled
from ..errors import RowsError
from ..tensors import page_locked
from .calls import CallStrengths
from .regions import LatentGrid, RowRegions, TokenLayout, region_on_row, weights_at
from .stack_strengths import StackStrengths, Values
from .strength import Moment

ALIGNMENT = 16
"""Entries. Compiled code loads up to 16 bytes at once, and does not look again where a layer's factors begin."""
FEW = 3
"""A row that at most one of so many ranks acts on has a product of its own ranks; measured on a CPU."""
FactorRanges: TypeAlias = tuple[tuple[int, Pair], ...]
"""For each binding of a layer the strength group of its factors, and their number, scale and schedule."""
Columns: TypeAlias = tuple[int, int]
"""The columns of the matrix that a layer reads as one vector: the first, and how many."""


@dataclass(eq=False)
class LayerStrengths:
    """The strengths of one layer on a device, in one dtype: its view of the matrix, which later writes show through."""

    table: StrengthTable
    device_dtype: tuple[torch.device, torch.dtype]
    spatial: int
    """Dimensions behind the channels, of convolutions."""
    columns: Sequence[Columns]
    sources: Collection[tuple[int, float]]
    """The group and scale of each component of the first vector, where a number may stand for it."""
    alike: tuple[Tensor, ...] = ()
    """For each vector (n, *ones), with a one for each spatial dimension, or (1,): where all rows and places agree."""
    rows: tuple[Tensor, ...] = ()
    """For each vector (rows, n), of the rows of the latest call whose rows are mixed."""
    known: tuple[Sequence[float] | None, float | None] = (None, None)
    """The numbers of all groups that `number` was asked for last, and its result; both at once for other threads."""

    def view(self, matrix: Tensor) -> None:
        first, rows = matrix[0], matrix[1:]
        alike = tuple(starmap(partial(first.narrow, 0), self.columns))
        # at once, as another thread may read it
        self.alike = tuple([_per_channel(one, self.spatial) for one in alike]) if self.spatial else alike
        self.rows = tuple(starmap(partial(rows.narrow, 1), self.columns)) if len(rows) else ()

    def number(self, numbers: Sequence[float]) -> Tensor | float:
        """Return the first vector at the numbers of all groups; one number, where that is all of its factors."""
        last, number = self.known
        if numbers is not last:
            factors = {numbers[group] * scale for group, scale in self.sources}
            number = factors.pop() if len(factors) == 1 else None
            self.known = numbers, number
        if number is not None:
            return number
        if self.table.stale:
            self.table.rewrite()
        return self.alike[0]

    def present(self) -> tuple[CallStrengths, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the strengths of the present call, `alike` and `rows` at once, as other threads replace them."""
        table = self.table
        if not table.stale and compiling():  # a graph can take no lock
            return table.now, self.alike, self.rows
        with table.lock:
            if table.stale:
                table.rewrite()
            return table.now, self.alike, self.rows

    def at(self, layout: TokenLayout, now: CallStrengths, factors: Sequence[Tensor], *, regional: bool) -> list[Tensor]:
        """Give strengths, (rows, n) each or `alike`, the rows and places of a tensor, with its dimensions."""
        found = []
        for columns, one in zip(self.columns, factors, strict=True):
            if one.numel():
                one = (one if now.mixed else one.view(1, -1)).unsqueeze(2 if layout.channels_first else 1)
                one = one * self.table.weights(now, columns, layout, one) if regional else one
                one = shaped_by_places(one, layout)
                one = _per_channel(one, self.spatial) if one.ndim == 1 else one
            found.append(one)
        return found


def _per_channel(factors: Tensor, spatial: int) -> Tensor:
    return factors.view(-1, *(1,) * spatial) if factors.shape[0] > 1 else factors


def with_change_of_bias(y: Tensor, strengths: Tensor, bias: Tensor, spatial: int) -> Tensor:
    """Return an output with changes of the bias, (n, out), at strengths of a layer, in new memory."""
    channels = -spatial - 1
    if bias.shape[0] == 1:
        return torch.addcmul(y, bias.view(-1, *(1,) * spatial), strengths)
    return y + (strengths.movedim(channels, -1) @ bias).movedim(-1, channels)


class StrengthTable:
    """The strengths of one plan: on each device and in each dtype in which a layer computes, rows x factors.

    The first row has the factors of the variant that is shown. In a call that is mixed, each row of the call has one
    more row. A layer's columns begin at a multiple of `ALIGNMENT` entries. `kept` copies a vector into the memory that
    one of its name had in the plan before; without it each plan has its own.
    """

    def __init__(self, strengths: StackStrengths, kept: Callable[[str, Tensor], Tensor] | None = None) -> None:
        self._kept = kept
        self.lock = threading.RLock()  # a UI's thread writes strengths while the model's thread begins a call
        self.values = strengths.values(None)
        """Of all groups, also if the present prediction lacks them."""
        self.now = CallStrengths(strengths, self.values)
        """Read once for a call of a layer, as another thread may activate meanwhile."""
        self.is_inside: Callable[[], bool] = bool
        """Whether this thread is in a call of a component."""
        self.in_force: object | None = None
        """Another object for each time for which layers have the plan's executors; None while any lacks its own."""
        self._weights: dict[tuple[object, ...], Tensor] = {}  # see `region_weights`
        self._weighed: LatentGrid | None = None  # the latents that these are for
        self._ranks: dict[tuple[Columns, torch.device], tuple[Values, tuple[int, ...], Tensor | None]] = {}
        """By the columns of a layer, for the latest call; see `ranks_of_rows`."""
        self._columns: dict[FactorRanges, Columns] = {}
        self._ranges: dict[Columns, FactorRanges] = {}
        self._groups: list[int] = []  # of each column
        self._scales: list[float] = []  # likewise
        self._gather: tuple[Tensor, Tensor] | None = None  # both as tensors
        self.scheduled: list[tuple[int, Pair, Schedule]] = []
        """The first column of factors that depend on the moment, and what they depend on."""
        self._matrices: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        self.stale = False
        """Whether the matrices lack the latest strengths; who reads one calls `rewrite` before."""
        self._layers: weakref.WeakSet[LayerStrengths] = weakref.WeakSet()

    def register(self, *every: FactorRanges) -> list[Columns]:
        """Reserve columns for factors of a layer that are read together, before the first `for_layer`.

        Equal ranges have the same columns, unless plans share memory: then a layer's addresses depend on no other.
        """
        found = []
        for ranges in every:
            columns = self._columns.get(ranges) if self._kept is None else None
            if columns is None:
                assert not self._matrices, "views must never move"
                start = len(self._groups)
                for group, pair in ranges:
                    if pair.schedule is not None:
                        self.scheduled.append((len(self._groups), pair, pair.schedule))
                    self._groups += [group] * pair.rank
                    self._scales += [pair.scale] * pair.rank
                columns = self._columns[ranges] = start, len(self._groups) - start
                self._ranges[columns] = ranges
                self._groups += [0] * (-len(self._groups) % ALIGNMENT)
                self._scales += [0.0] * (-len(self._scales) % ALIGNMENT)
            found.append(columns)
        return found

    @property
    def by_call(self) -> bool:
        """Return whether anything depends on the moment, the rows or the places of a call."""
        stack = self.now.stack
        return bool(self.scheduled) or stack.varies or stack.has_regions or len(self.now.values) > 1

    def for_layer(
        self, columns: Sequence[Columns], device: torch.device, dtype: torch.dtype, spatial: int
    ) -> LayerStrengths:
        """Return the strengths of a layer, a vector for each of the columns; see `LayerStrengths`."""
        key = device, dtype
        sources, ranges = set[tuple[int, float]](), self._ranges[columns[0]]
        for group, pair in ranges if device.type != "mps" else ():  # which compiles a graph for each new number
            if pair.schedule is not None:
                sources.clear()
                break
            if pair.scale:
                sources.add((group, pair.scale))
        layer = LayerStrengths(self, key, spatial, columns, sources)
        with self.lock:  # or a matrix that is replaced meanwhile would miss the layer
            layer.view(self._matrix(key))
            self._layers.add(layer)
        return layer

    def for_variant(self, columns: Columns, device: torch.device, dtype: torch.dtype, variant: int | None) -> Tensor:
        """Return the factors of a layer for one variant of the present call, (n,); None is the one that is shown."""
        with self.lock:
            rows = self.now.rows  # without the variant where another stack came since the call began
            row = 1 + rows.index(variant) if variant in rows else 0
            return self._matrix((device, dtype))[row].narrow(0, *columns)

    def _matrix(self, key: tuple[torch.device, torch.dtype]) -> Tensor:
        """Return the matrix of a device and dtype with the latest strengths; compiled code reads it without asking."""
        if key not in self._matrices:
            self._write_matrix(key, self._host_factors())
        if self.stale:
            self.rewrite()
        return self._matrices[key]

    def ranks_of_rows(self, now: CallStrengths, columns: Columns, device: torch.device) -> Tensor | None:
        """Return which ranks of a layer act on each row of a mixed call, (rows, R); None where many act on each.

        Rows with fewer than R have others in addition, whose factors are 0 there.
        """
        values, rows, found = self._ranks.get((columns, device), ((), (), None))
        if values is now.values and rows == now.rows:
            return found
        own, ranges = dict[int, tuple[list[int], list[int]]](), self._ranges[columns]
        for variant in dict.fromkeys(now.rows):
            own[variant], first = ([], []), 0
            for group, pair in ranges:
                own[variant][not now.values[variant][group]].extend(range(first, first + pair.rank))
                first += pair.rank
        most, found = max(len(acting) for acting, _ in own.values()), None
        if 0 < most * FEW <= columns[1]:
            places = [acting + idle[: most - len(acting)] for acting, idle in map(own.__getitem__, now.rows)]
            host = torch.tensor(places, device="cpu")
            if device.type != "cpu":
                host = page_locked(host.shape, host.dtype, device).copy_(host)
            found = host.to(device, non_blocking=True)
        self._ranks[columns, device] = now.values, now.rows, found
        return found

    # a graph must not guard rows, regions or cached weights
    @uncompiled
    def weights(self, now: CallStrengths, columns: Columns, layout: TokenLayout, like: Tensor) -> Tensor:
        """Return how far the factors of a layer act at each place; see `region_weights`."""
        parts, ranges = now.parts or (None,), self._ranges[columns]
        variants = now.rows if now.mixed else (now.shown,) * len(parts)
        parts = parts if len(parts) == len(variants) else (None,) * len(variants)
        rows = [
            tuple([region_on_row(now.stack.region(group, variant), layout.grid, part) for group, _ in ranges])
            for variant, part in zip(variants, parts, strict=True)
        ]
        return self.region_weights(layout, tuple(rows), like, tuple([pair.rank for _, pair in ranges]))

    def region_weights(self, layout: TokenLayout, rows: RowRegions, like: Tensor, counts: tuple[int, ...]) -> Tensor:
        """Return the weights of regions, see `weights_at`: (rows, places, n), or (rows, n, places) by the layout."""
        rows, grid = rows[:1] if len(set(rows)) == 1 else rows, layout.grid
        key = grid, rows, counts, like.device, like.dtype, layout.channels_first
        known = self._weights.get(key)
        if known is None:
            weights = weights_at(grid, rows, counts)  # (rows, n, places)
            shaped = weights if layout.channels_first else weights.transpose(1, 2)
            known = self._weights[key] = shaped.to(like, copy=True).contiguous()
        return known

    def write(self, strengths: StackStrengths) -> None:
        """Write every group. Where the number of variants changes, the first is shown."""
        values = strengths.values(None)
        with self.lock:
            now, self.values = self.now, values
            if strengths.regions != now.stack.regions:
                self._weights.clear()
            if len(values) == len(now.values):
                self._set(replace(now, stack=strengths, values=values))
            else:
                self._set(CallStrengths(strengths, values, now.moment, latents=now.latents))

    def set_call(
        self,
        stack: StackStrengths,
        *,
        moment: Moment | None = None,
        rows: tuple[int, ...] = (),
        parts: tuple[int | None, ...] = (),
        latents: LatentGrid | None = None,
        is_unknown: bool = False,
        prediction: int | None = None,
    ) -> bool:
        """Set the strengths to a model call; return False where another stack came since the arguments were read.

        Without a moment it stays. `rows` are variants, of which a single one is for all rows; without any, it stays.
        MomentError leaves all as before. `prediction` leaves out what others have, see `outside`.
        """
        with self.lock:
            now, mixed = self.now, len(set(rows)) > 1
            if stack is not now.stack:
                return False
            values = self.values if moment is None else self._values_at(moment)
            values = values if prediction is None else stack.of_prediction(values, prediction)
            if latents not in (None, self._weighed):
                self._weighed = latents
                self._weights.clear()
            shown = rows[0] if rows and not mixed and rows[0] < len(values) else now.shown
            rows, moment = rows if mixed else now.rows, moment or now.moment
            self._set(CallStrengths(stack, values, moment, shown, mixed, rows, parts, latents, is_unknown))
            return True

    def set_moment(self, moment: Moment) -> None:
        """Have another moment in the present call, or in the next ones; MomentError leaves all as before."""
        with self.lock:
            self._set(replace(self.now, moment=moment, values=self._values_at(moment)))

    def _values_at(self, moment: Moment) -> Values:
        for *_, schedule in self.scheduled:
            schedule.check(moment)
        stack = self.now.stack
        self.values = stack.values(moment) if stack.varies else self.values
        return self.values

    def rest(self, variant: int | None, is_busy: Callable[[], bool] | None = None) -> None:
        """Have one variant in calls that set nothing, unless a model call runs, as `is_busy` tells.

        With None it is unknown for which image such calls are, if images have strengths of their own.
        """
        with self.lock:
            if is_busy is None or not is_busy():
                stack = self.now.stack
                self.set_call(stack, rows=(variant or 0,), is_unknown=variant is None and stack.images > 1)

    @uncompiled
    def refuse_unknown(self, now: CallStrengths, groups: Collection[int]) -> None:
        """Raise RowsError for a layer that other code calls by itself, if images have strengths of their own for it.

        A component's call that began before an activation has the strengths of the first image to its end.
        """
        stack = now.stack
        variants = range(0, len(now.values), 1 + stack.halved)
        own = {tuple([(now.values[one][i], stack.region(i, one)) for i in groups]) for one in variants}
        if len(own) > 1 and not self.is_inside():
            text = "a layer is called outside of a call of its model, and it is unknown for which of the"
            raise RowsError(f"{text} {stack.images} images; choose one by `use_image`")

    def resume(self, before: CallStrengths) -> None:
        """Have the rows, the places and the moment of a call that goes on, after another one inside it."""
        with self.lock:
            now, is_other = self.now, before.stack is not self.now.stack
            rows, values = before.rows if before.mixed else now.rows, now.values if is_other else before.values
            if len(values) == len(before.values):  # perhaps other strengths, for as many images
                self._set(replace(before, stack=now.stack, values=values, rows=rows))

    @property
    def is_placed(self) -> bool:
        """Return whether any layer had tokens with a place in the latents."""
        return any(grid is not None for grid, *_ in list(self._weights))

    def _set(self, now: CallStrengths) -> None:
        """Have other strengths in force; compiled code and CUDA graphs read the matrices without asking."""
        former, self.now = self.now, now
        same = (former.values, former.shown, former.rows) == (now.values, now.shown, now.rows)
        if not same or (self.scheduled and former.moment != now.moment):
            self.stale = True
        elif not self.stale:  # else perhaps since before the compiler was imported
            return
        if may_compile() or any(device.type == "cuda" for device, _ in self._matrices):
            self.rewrite()

    def begin_again(self) -> None:
        """Forget the moment, and take the memory that plans share at the next placement, after another plan had it.

        A matrix that layers still read stays: it is on the CPU, where each plan has its own.
        """
        if self._kept is not None:
            read = {layer.device_dtype for layer in list(self._layers)}
            self._matrices = {key: matrix for key, matrix in self._matrices.items() if key in read}
        with self.lock:
            self._set(replace(self.now, moment=Moment()))

    @uncompiled
    def rewrite(self) -> None:
        """Write the latest strengths into the matrices, without waiting for a device."""
        with self.lock:
            factors = self._host_factors() if self._matrices else torch.empty(0, device="cpu")
            for key, former in list(self._matrices.items()):
                matrix = self._write_matrix(key, factors)
                for layer in list(self._layers) if matrix is not former else ():
                    if layer.device_dtype == key:
                        layer.view(matrix)
            self.stale = False

    def _write_matrix(self, key: tuple[torch.device, torch.dtype], factors: Tensor) -> Tensor:
        """Write the factors into the matrix of a device and dtype, from page-locked memory where that saves waiting."""
        (device, dtype), matrix = key, self._matrices.get(key)
        if matrix is None or matrix.shape != factors.shape:
            with torch.inference_mode(False):  # or it could not be written in other modes
                matrix = torch.empty(factors.shape, device=device, dtype=dtype)
            if self._kept is not None:
                matrix = self._kept(f"{len(factors)} rows", matrix.flatten()).view(factors.shape)
            self._matrices[key] = matrix
        if device.type != "cpu":
            factors = page_locked(factors.shape, dtype, device).copy_(factors)
        return matrix.copy_(factors, non_blocking=device.type != "cpu")

    def _host_factors(self) -> Tensor:
        if self._gather is None:
            groups = torch.tensor(self._groups, dtype=torch.int64, device="cpu")
            self._gather = groups, torch.tensor(self._scales, dtype=torch.float64, device="cpu")
        now = self.now
        values = torch.tensor(now.values, dtype=torch.float64, device="cpu")[[now.shown, *now.rows]]
        factors = values.index_select(1, self._gather[0]).mul_(self._gather[1])
        for start, pair, schedule in self.scheduled:
            schedule.write(factors[:, start : start + pair.rank], now.moment, pair.per_rank)
        return factors


def shaped_by_places(weights: Tensor, layout: TokenLayout) -> Tensor:
    """Give the dimensions of a tensor to numbers (rows, places, n), or (rows, n, places) where its channels are first.

    A single place for all rows gets none: a product with one number is cheaper.
    """
    if layout.repeats > 1 and weights.shape[0] > 1:
        weights = weights.repeat_interleave(layout.repeats, 0)
    if layout.grid is None and weights.shape[0] == 1:
        return weights.flatten()
    if layout.channels_first:
        return weights.view(*weights.shape[:2], *layout.sizes)
    return weights.view(weights.shape[0], *layout.sizes, weights.shape[2])
