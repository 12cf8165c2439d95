"""The strength table: all numbers of the active plan on the host, and one vector per device that never moves.

A strength group is the layers that one number multiplies: the layers of one entry, component and block that no rule of
its block weights tells apart. A variant of the stack is one image of the batch, or one half of it where positive and
negative prompts have strengths of their own. The table has a number for each variant and group.

Every rank component of every fused pair is multiplied by `strength * scale` in the forward. All these factors of a plan
are in one flat vector per device and dtype; a layer has a view into it. A change of strength rewrites the vector: one
gather, one product and one copy per device, however many layers there are, and no layer is touched. The vector has the
factors of one variant. While a call has rows of several, a matrix beside it has the factors of each row.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..adapters.base import RankSchedule
from ..compiler import uncompiled
from ..errors import MomentError, StackError
from ..files.components import DENOISER, role
from ..naming.blocks import BlockNames, Element, Side, block_of, side_of
from ..naming.index import LayerIndex
from ..naming.places import Target
from .regions import NO_REGIONS, LatentGrid, Region, RegionWeights, RowRegions, TokenGrid, TokenLayout
from .strength import (
    AnyMultiplier,
    Curve,
    Moment,
    Strength,
    all_multipliers,
    as_strength,
    image_multiplier,
    image_multipliers,
    is_off,
)

KeepVector: TypeAlias = Callable[[str, Tensor], Tensor]
"""Copies a vector into the memory that one of that name had before, and returns it."""
Wishes: TypeAlias = Sequence[tuple[str, AnyMultiplier]]
"""The name and the multiplier of each entry of a stack."""
Variants: TypeAlias = Sequence[tuple[int, bool]]
"""The (image, negative) that may have strengths of their own."""
Values: TypeAlias = Sequence[Sequence[float]]
"""For each variant, the strength of every group."""
Numbers: TypeAlias = Sequence["float | None"]
"""The strength of every group; None where rows or places differ."""
_NOWHERE = "its region has no place in the picture"


def block_rules(multiplier: AnyMultiplier) -> tuple[Element, ...]:
    """Return the rules for some layers in the block weights of all images, without their weights."""
    if isinstance(multiplier, float | int):
        return ()
    blocks = [one.blocks for one in all_multipliers(multiplier) if isinstance(one, Strength)]
    return tuple(dict.fromkeys(element.unweighted for one in blocks if one is not None for element in one.elements))


class StrengthGroup(NamedTuple):
    """Layers that one number multiplies, whatever the strength is a function of."""

    entry: int
    component: str
    block: str
    side: Side | None
    """Of the denoiser; None for layers that are not called at each step."""
    matches: tuple[bool, ...]
    """Which of the entry's `block_rules` match them."""


@lru_cache(maxsize=16384)
def _block_and_side(component: str, path: str) -> tuple[str, Side | None]:
    block = block_of(component, path)
    return block, side_of(block) if role(component) == DENOISER else None


class StrengthGroups:
    """The strength groups of a plan, numbered as they are first needed."""

    def __init__(self, wishes: Wishes, indexes: Sequence[LayerIndex], model: BlockNames) -> None:
        self.model = model
        self.all: list[StrengthGroup] = []
        self.shared: dict[tuple[int, str, Side | None], int] = {}
        """(entry, component, side) of each number before blocks are weighed."""
        self.shared_of: list[int] = []
        """The position in `shared` of each group."""
        self.rules = [block_rules(multiplier) for _, multiplier in wishes]
        """Of each entry; a stack of the same plan has the same."""
        self._indexes = {index.component: index for index in indexes}
        self._numbers: dict[StrengthGroup, int] = {}

    def number(self, entry: int, component: str, target: Target) -> int:
        """Return the id of a layer's group, allocating it if new."""
        block, side = _block_and_side(component, target.path)
        matches: tuple[bool, ...] = ()
        if self.rules[entry]:
            names = self._indexes[component].names_of(target)
            matches = tuple([rule.suits(block, names, self.model) for rule in self.rules[entry]])
        group = StrengthGroup(entry, component, block, side, matches)
        found = self._numbers.get(group)
        if found is None:
            found = self._numbers[group] = len(self.all)
            self.all.append(group)
            self.shared_of.append(self.shared.setdefault((entry, component, side), len(self.shared)))
        return found


class StackStrengths:
    """The numbers that a stack means for the strength groups of a plan, at any moment.

    Args:
        wishes: of the stack.
        variants: of the stack.
        groups: of the plan.

    Raises:
        StackError: the model takes no list of block weights as long as an entry's.
    """

    def __init__(self, wishes: Wishes, variants: Variants, groups: StrengthGroups) -> None:
        self._wishes = wishes
        self.groups = groups
        self._variants = [
            [as_strength(image_multiplier(multiplier, image, negative=negative)) for _, multiplier in wishes]
            for image, negative in variants
        ]
        self.varying: set[int] = set()
        """The entries whose strength differs from moment to moment."""
        self.by_noise = False
        """Whether the timestep or the noise makes a difference."""
        denoising = {entry for entry, _, side in groups.shared if side is not None}
        has_blocks = has_regions = False
        for variant in self._variants:
            for entry, one in enumerate(variant):
                has_blocks |= one.blocks is not None
                has_regions |= one.region is not None and entry in denoising
                if one.varies:
                    self.varying.add(entry)
                    self.by_noise |= one.by_noise
        self.varies = not self.varying.isdisjoint(denoising)
        """Whether the moment makes a difference."""
        self._block_weights = [list(self._weigh(variant)) for variant in self._variants] if has_blocks else None
        self.regions = self._find_regions() if has_regions else NO_REGIONS

    @property
    def varying_groups(self) -> frozenset[int]:
        """Return the strength groups whose strength differs from moment to moment."""
        varying = [one.side is not None and one.entry in self.varying for one in self.groups.all]
        return frozenset(i for i, varies in enumerate(varying) if varies)

    def values(self, moment: Moment | None) -> list[list[float]]:
        """Return the strength of every group for each variant; without a moment, at the beginning.

        Raises:
            MomentError: the moment lacks what an entry's strength depends on.
        """
        found = []
        for strengths in self._variants:
            shared = [self._at(strengths, *one, moment) for one in self.groups.shared]
            found.append([shared[i] for i in self.groups.shared_of])
        if self._block_weights is None:
            return found
        return [
            [value * weight for value, weight in zip(values, weights, strict=True)]
            for values, weights in zip(found, self._block_weights, strict=True)
        ]

    def idle(self, acted: Set[int], moments: int) -> tuple[dict[int, str], dict[int, str]]:
        """Return the entries without any effect -> why, and the ones that act on text encoders alone -> where not, why.

        Args:
            acted: groups whose strength was other than 0 at a moment.
            moments: how many moments there were.
        """
        static, idle, partly = self.values(None), dict[int, str](), dict[int, str]()
        for entry, (_, multiplier) in enumerate(self._wishes):
            groups = [i for i, group in enumerate(self.groups.all) if group.entry == entry]
            denoising = [i for i in groups if self.groups.all[i].side is not None]
            varying = denoising if entry in self.varying else []
            outside = denoising if self._has_empty_regions(entry) else []
            wanted_outside = [i for i in outside if self._is_wanted(i)]
            why_never = self._why_never(entry, varying, acted, moments)
            if any(own[i] for own in static for i in groups if i not in varying and i not in outside):
                wanted = [i for i in varying if self._is_wanted(i)]
                if wanted_outside:
                    partly[entry] = f"on the {self._components(wanted_outside)}: {_NOWHERE}"
                elif wanted and why_never:
                    partly[entry] = f"on the {self._components(wanted)}: {why_never}"
            elif wanted_outside:
                idle[entry] = _NOWHERE
            elif varying:
                if why_never:
                    idle[entry] = why_never
            elif not all(map(is_off, image_multipliers(multiplier))):
                layers = self._components(groups)
                idle[entry] = f"its strength is 0 for all layers that it changes, which are in {layers}"
        return idle, partly

    def _has_empty_regions(self, entry: int) -> bool:
        regions = [strengths[entry].region for strengths in self._variants]
        return all(region is not None and not region.share for region in regions)

    def _components(self, groups: Sequence[int]) -> str:
        return ", ".join(dict.fromkeys(self.groups.all[i].component for i in groups))

    def _is_wanted(self, i: int) -> bool:
        """Tell whether a group has a strength at a moment that may come: the user may leave a component alone."""
        group = self.groups.all[i]
        for place, strengths in enumerate(self._variants):
            amount = strengths[group.entry].amount(group.component, group.side)
            wanted = not amount.is_zero if isinstance(amount, Curve) else amount != 0
            if wanted and (self._block_weights is None or self._block_weights[place][i]):
                return True
        return False

    def _why_never(self, entry: int, varying: Sequence[int], acted: Set[int], moments: int) -> str:
        """Return why groups that vary have been 0 at all moments; empty where they have not, or may not be."""
        never = [strengths[entry].during.why_empty for strengths in self._variants]
        if varying and all(never):
            return never[0]
        if varying and moments and acted.isdisjoint(varying):
            return f"its strength was 0 at all {moments} calls of the model"
        return ""

    def _at(
        self, strengths: Sequence[Strength], entry: int, component: str, side: Side | None, moment: Moment | None
    ) -> float:
        now = moment if side is not None and entry in self.varying else None  # only denoisers are called at steps
        try:
            return strengths[entry].at(component, side, now)
        except MomentError as error:
            raise MomentError(f"{self._wishes[entry][0]}: {error}") from error

    def _weigh(self, strengths: Sequence[Strength]) -> Iterator[float]:
        """Yield the block weight of each group."""
        for group in self.groups.all:
            blocks = strengths[group.entry].blocks
            if blocks is None:
                yield 1.0
                continue
            matches = dict(zip(self.groups.rules[group.entry], group.matches, strict=True))
            try:
                yield blocks.weight(group.block, matches, self.groups.model)
            except StackError as error:
                raise StackError(f"{self._wishes[group.entry][0]}: {error}", group.entry) from error

    def _find_regions(self) -> RegionWeights:
        numbers: dict[Region, int] = {}
        by_variant, parts = [], []
        for strengths in self._variants:
            everywhere: tuple[int, int | None] = (0, None)
            entries = [
                everywhere if one.region is None else (numbers.setdefault(one.region, len(numbers) + 1), one.part)
                for one in strengths
            ]
            own = [everywhere if group.side is None else entries[group.entry] for group in self.groups.all]
            by_variant.append(tuple(region for region, _ in own))
            parts.append(tuple(part for _, part in own))
        return RegionWeights(tuple(numbers), tuple(by_variant), tuple(parts))


@dataclass(frozen=True, slots=True)
class FactorShare:
    """One binding's part of a layer's factors."""

    group: int
    """Which strength multiplies it."""
    count: int = 1
    """Number of rank components."""
    scale: float = 1.0
    schedule: RankSchedule | None = None
    """Which of its ranks act at a timestep."""
    per_rank: int = 1
    """Adjacent components that make one rank of the schedule."""
    owner: int = 0
    """The layer that shares these factors with no other; 0 where all layers with equal shares have the same ones."""


FactorShares: TypeAlias = tuple[FactorShare, ...]


@dataclass(eq=False)
class DeviceFactors:
    """All factors of a plan on one device, in one dtype."""

    factors: Tensor  # (n,), of the variant shown
    rows: Tensor | None = None  # of all rows of a call, layer by layer; see `StrengthTable._factors_by_layer`
    views: weakref.WeakSet[StrengthView] = field(default_factory=weakref.WeakSet)

    def write_rows(self, rows: Tensor, kept: KeepVector | None) -> None:
        """Write the factors of the rows of a call: in place while there are as many, as compiled code reads them."""
        if self.rows is not None and self.rows.shape == rows.shape:
            self.rows.copy_(rows)
            return
        own = rows.to(self.factors.device, self.factors.dtype, copy=True)
        self.rows = own if kept is None else kept("rows", own)
        for view in list(self.views):
            view.set_rows(self.rows)


@dataclass(eq=False)
class StrengthView:
    """The factors of one layer on a device."""

    factors: Tensor
    """(sum of ranks,), of the variant that is shown; later writes show through."""
    start: int
    """Of the layer's factors in the vector."""
    table: StrengthTable
    _rows: Tensor | None = None  # an own tensor: graphs know it by its shape, and not by where it begins

    def set_rows(self, rows: Tensor) -> None:
        """Look at this layer's part of the factors of all rows."""
        self._rows = _layer_rows(rows, self.start, self.factors.shape[0], self.table.length)

    @property
    def rows(self) -> Tensor:
        """Return the factors of each row, (rows, sum of ranks). Only while the rows are `mixed`."""
        assert self._rows is not None
        return self._rows

    def at_places(self, grid: TokenGrid | None, *, channels_first: bool = False) -> Tensor:
        """Return the factors at each place, (rows, places, sum of ranks); one row where all are alike.

        Args:
            grid: of the places; None is a single one outside the picture.
            channels_first: return (rows, sum of ranks, places).
        """
        weights: Tensor = self.table.weights(self.start, self.factors, grid, channels_first=channels_first)
        factors = self.rows if self.table.mixed else self.factors.unsqueeze(0)
        return weights * factors.unsqueeze(2 if channels_first else 1)


def _layer_rows(rows: Tensor, start: int, count: int, length: int) -> Tensor:
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
        self.numbers: Numbers = ()
        """Of the present call, for executors whose product takes a number of the host."""
        self.mixed = False
        """Whether the rows of the present call are of more than one variant."""
        self.shown = 0
        """The variant of calls whose rows are alike; the vectors have its factors."""
        # a UI's thread writes strengths while the model's thread sets a moment
        self._lock = threading.RLock()
        self.stack_strengths = strengths
        """Of the stack that was written last."""
        self._set_values(strengths.values(None))
        self._set_regions(strengths.regions)
        self._set_numbers()
        self.acted: set[int] = set()
        """Groups that were other than 0 at a moment, of the moments since the strengths were written."""
        self.moments = 0
        """How many moments there were."""
        self.latents: LatentGrid | None = None
        """Of the present call; None where they are not known."""
        self.parts: tuple[int | None, ...] = ()
        """The part of the prompt of each row of the present call; empty where that makes no difference."""
        self._starts: dict[FactorShares, int] = {}
        self.length = 0
        """Of the vector."""
        self._orders: dict[int, Tensor] = {}
        self._groups: list[int] = []  # of each factor
        self._scales: list[float] = []  # likewise
        self._gather: tuple[Tensor, Tensor] | None = None  # both as tensors
        self._devices: dict[tuple[torch.device, torch.dtype], DeviceFactors] = {}
        self._scheduled: list[tuple[int, FactorShare, RankSchedule]] = []
        self.timestep: float | None = None
        """Of the next model call; None where it is not known, and all ranks act."""
        self.rows: tuple[int, ...] = ()
        """The variant of each row of the present call. Only while it is `mixed`."""

    def register(self, *layouts: FactorShares, own: bool = False) -> list[FactorShares]:
        """Reserve room for a layer's factors, before the first of `views`; layers with equal shares have the same room.

        Args:
            layouts: shares of factors that are read together.
            own: where plans share memory, give the layer room of its own, so that addresses do not depend on others.

        Returns:
            The shares to call `views` and `for_variant` with.
        """
        found = []
        for shares in layouts:
            if own and self._kept is not None:
                shares = tuple(replace(share, owner=len(self._starts) + 1) for share in shares)
            found.append(shares)
            if shares in self._starts:
                continue
            assert not self._devices, "views must never move"
            self._starts[shares] = self.length
            for share in shares:
                if share.schedule is not None:
                    self._scheduled.append((self.length, share, share.schedule))
                self._groups += [share.group] * share.count
                self._scales += [share.scale] * share.count
                self.length += share.count
        return found

    @property
    def varying(self) -> bool:
        """Return whether anything depends on the moment."""
        return bool(self._scheduled) or self.stack_strengths.varies

    @property
    def by_noise(self) -> bool:
        """Return whether anything depends on the timestep or the noise."""
        return bool(self._scheduled) or (self.stack_strengths.varies and self.stack_strengths.by_noise)

    def views(self, layouts: Sequence[FactorShares], device: torch.device, dtype: torch.dtype) -> list[StrengthView]:
        """Return the factors of a layer, a view for each of the layouts."""
        placed = self._devices.get((device, dtype)) or self._place(device, dtype)
        found = []
        for shares in layouts:
            start, count = self._starts[shares], 0
            for share in shares:
                count += share.count
            view = StrengthView(placed.factors.narrow(0, start, count), start, self)
            placed.views.add(view)
            if placed.rows is not None:
                view.set_rows(placed.rows)
            found.append(view)
        return found

    def for_variant(
        self, shares: FactorShares, device: torch.device, dtype: torch.dtype, variant: int | None = None
    ) -> Tensor:
        """Return the factors of a layer for one variant of the present call, (sum of ranks,); None is the one shown."""
        placed = self._devices.get((device, dtype)) or self._place(device, dtype)
        start, count = self._starts[shares], sum([one.count for one in shares])
        if variant is None:
            return placed.factors.narrow(0, start, count)
        assert placed.rows is not None  # a call of several variants has them
        return _layer_rows(placed.rows, start, count, self.length)[self.rows.index(variant)]

    # which rows and regions there are, and what weights are made already, no graph is to know
    @uncompiled
    def weights(self, start: int, factors: Tensor, grid: TokenGrid | None, *, channels_first: bool) -> Tensor:
        """Return how far the n factors from `start` on act at each place, like `factors`; see `RegionWeights.at`."""
        regions = self._regions_of_rows(start, factors.shape[0], grid)
        return self.regions.at(grid, regions, factors.device, factors.dtype, channels_first=channels_first)

    def _regions_of_rows(self, start: int, n: int, grid: TokenGrid | None) -> RowRegions:
        parts = self.parts or (None,)
        variants = self.rows if self.mixed else (self.shown,) * len(parts)
        parts = parts if len(parts) == len(variants) else (None,) * len(variants)
        key = start, n, variants, parts, grid is None
        found = self._row_regions.get(key)
        if found is None:
            groups, rows = self._groups[start : start + n], zip(variants, parts, strict=True)
            found = tuple(self.regions.for_row(variant, groups, grid, part) for variant, part in rows)
            found = self._row_regions[key] = found[:1] if len(set(found)) == 1 else found
        return found

    def write(self, strengths: StackStrengths) -> None:
        """Write every group; shows at once in every view. Where the number of variants changes, the first is shown."""
        values = strengths.values(None)
        with self._lock:
            other = len(values) != len(self.values)
            self.stack_strengths = strengths
            if strengths.regions is not self.regions and strengths.regions != self.regions:
                self._set_regions(strengths.regions)
            self._set_values(values)
            if other:
                self.shown, self.mixed = 0, False
            self._set_numbers()
            self.acted, self.moments = set(), 0
            self.refresh()

    def show(self, variant: int) -> None:
        """Set the variant of all rows of the next calls; shows at once in every view."""
        with self._lock:
            if self.mixed or variant != self.shown:
                other, self.mixed, self.shown = variant != self.shown, False, variant
                self._set_numbers()
                if other:
                    self._write_vectors()

    def set_rows(self, rows: tuple[int, ...], parts: tuple[int | None, ...] = ()) -> None:
        """Set the variant and the part of the prompt of each row of the next model call, as `show` does."""
        self.parts = parts if self.regions.has_parts and any(part is not None for part in parts) else ()
        with self._lock:
            if max(rows, default=0) >= len(self.values):  # another stack came since the call began
                self.show(0)
                return
            if len(set(rows)) < 2:
                self.show(next(iter(rows), self.shown))
                return
            if rows != self.rows:
                self.rows = rows
                self._write_rows()
            self.mixed = True
            self._set_numbers()

    def set_latents(self, latents: LatentGrid) -> None:
        """Set the latents of the next model call."""
        self.regions.set_latents(latents)
        self.latents = latents

    def end_call(self, variant: int) -> None:
        """Forget the latents and the parts of a call; the next calls are of one variant."""
        self.show(variant)
        self.latents, self.parts = None, ()

    def set_moment(self, moment: Moment) -> None:
        """Set the moment of the next model call; shows at once in every view.

        Raises:
            MomentError: the moment lacks what a strength depends on; all is as before then.
        """
        with self._lock:
            stale = bool(self._scheduled) and moment.timestep != self.timestep
            if self.stack_strengths.varies:
                values = tuple(map(tuple, self.stack_strengths.values(moment)))
                if values != self.values or not self.moments:
                    self.acted.update(group for own in values for group, value in enumerate(own) if value)
                self.moments += 1
                if values != self.values:
                    self._set_values(values)
                    self._set_numbers()
                    stale = True
            self.timestep = moment.timestep
            if stale:
                self.refresh()

    def idle(self) -> tuple[dict[int, str], dict[int, str]]:
        """Return the entries without effect so far, see `StackStrengths.idle`."""
        return self.stack_strengths.idle(self.acted, self.moments)

    def drop_devices(self) -> None:
        """Forget the memory on devices but the CPU, where no placed layer reads it any more."""
        self._devices = {key: placed for key, placed in self._devices.items() if key[0].type == "cpu"}

    def refresh(self) -> None:
        """Write all factors again, where others have written to their memory."""
        self._write_vectors()
        if self.mixed:
            self._write_rows()
        else:
            self.rows = ()

    def _set_values(self, values: Values) -> None:
        self.values: tuple[tuple[float, ...], ...] = tuple(map(tuple, values))
        """For each variant, the strength of every group."""
        self._values = torch.tensor(self.values, dtype=torch.float64, device="cpu")  # (variants, groups)

    def _set_numbers(self) -> None:
        values = self.values[self.shown]
        if self.mixed:
            self.numbers = (None,) * len(values)
        elif self.has_regions:
            self.numbers = [None if i in self.regional_groups else value for i, value in enumerate(values)]
        else:
            self.numbers = values

    def _set_regions(self, regions: RegionWeights) -> None:
        self.regions = regions
        self.regional_groups = regions.groups
        self.has_regions = bool(regions.groups)
        """Whether there are any; a graph knows nothing else of regions."""
        self._row_regions: dict[tuple[object, ...], RowRegions] = {}  # by factors, rows, and whether there are places

    def _place(self, device: torch.device, dtype: torch.dtype) -> DeviceFactors:
        factors = self._factors((self.shown,))[0].to(device=device, dtype=dtype, copy=True)
        factors = factors if self._kept is None else self._kept("factors", factors)
        placed = self._devices[device, dtype] = DeviceFactors(factors)
        if self.rows:
            placed.write_rows(self._factors_by_layer(), self._kept)
        return placed

    def _write_vectors(self) -> None:
        if self._devices:
            factors = self._factors((self.shown,))[0]
            for placed in self._devices.values():
                placed.factors.copy_(factors)

    def _write_rows(self) -> None:
        if self._devices:
            rows = self._factors_by_layer()
            for placed in self._devices.values():
                placed.write_rows(rows, self._kept)

    def _factors_by_layer(self) -> Tensor:
        """Return the factors of all rows of the call, (rows * n,): the first layer's for each row, then the next one's.

        So each layer has a matrix of its own in one piece, whose strides do not depend on the others.
        """
        count = len(self.rows)
        order = self._orders.get(count)
        if order is None:
            ends = [*list(self._starts.values())[1:], self.length]
            every = torch.arange(count * self.length, device="cpu").view(count, self.length)
            pieces = [every[:, start:end].flatten() for start, end in zip(self._starts.values(), ends, strict=True)]
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
        if self.timestep is not None:
            for start, share, schedule in self._scheduled:
                factors[:, start + share.per_rank * schedule.first(self.timestep) : start + share.count] = 0.0
        return factors


class CallStrengths(NamedTuple):
    """The strengths of a layer's adapters in one call: of one variant, or of each row of the batch and each place."""

    pair: Tensor  # (R, *ones), or (rows, …, R, *ones); as many ones as a kernel has dimensions, or its places
    inputs: tuple[Tensor, ...]  # each (1,), or (rows, …) with the dimensions of the input
    outputs: tuple[Tensor, ...]  # likewise
    bias: Tensor  # (n,), or (rows, …, n)
    layout: TokenLayout | None = None
    """Of the output, where places differ."""

    def change_of_bias(self, bias: Tensor, spatial: int) -> Tensor:
        """Return the change of an output by changes of the bias, (n, out)."""
        change = self.bias @ bias
        if self.layout is not None and self.layout.channels_first:
            return change.transpose(1, 2).reshape(change.shape[0], -1, *self.layout.sizes)
        return _with_ones(change, spatial)


class LayerStrengths(NamedTuple):
    """Views of the strengths of a layer's adapters."""

    pair: StrengthView
    inputs: tuple[StrengthView, ...]
    outputs: tuple[StrengthView, ...]
    bias: StrengthView

    def for_all(self, spatial: int) -> CallStrengths:
        """Return the strengths of the variant that is shown; later writes show through."""
        factors = attrgetter("factors")
        pair = _with_ones(self.pair.factors, spatial) if spatial else self.pair.factors
        return CallStrengths(
            pair, tuple(map(factors, self.inputs)), tuple(map(factors, self.outputs)), self.bias.factors
        )

    def for_rows(self, repeats: int, ndim: int, spatial: int) -> CallStrengths:
        """Return the strengths of each row.

        Args:
            repeats: rows of the layer's input for each row of the model call, one after the other.
            ndim: dimensions of the output.
            spatial: how many of them are behind the channels.
        """
        ones = (1,) * (ndim - spatial - 2)

        def shaped(view: StrengthView) -> Tensor:
            rows = _repeated(view.rows, repeats)
            return rows.view(rows.shape[0], *ones, rows.shape[1])

        return CallStrengths(
            _with_ones(shaped(self.pair), spatial),
            tuple(_with_ones(shaped(one), spatial) for one in self.inputs),
            tuple(_with_ones(shaped(one), spatial) for one in self.outputs),
            shaped(self.bias),
        )

    def for_places(self, layout: TokenLayout) -> CallStrengths:
        """Return the strengths at each place of an output; see `inputs_for_places` for changes of the input."""
        spatial = len(layout.sizes) if layout.channels_first else 0
        pair = _at_places(self.pair, layout)
        by_row = layout.channels_first
        return CallStrengths(
            _with_ones(pair, spatial) if pair.ndim == 1 else pair,
            (),
            tuple(_at_places(one, layout) for one in self.outputs),
            _repeated(self.bias.at_places(layout.grid), layout.repeats) if by_row else _at_places(self.bias, layout),
            layout,
        )

    def inputs_for_places(self, layout: TokenLayout) -> tuple[Tensor, ...]:
        """Return the strengths of changes of the input, at each place of it."""
        return tuple(_at_places(one, layout) for one in self.inputs)


def _at_places(view: StrengthView, layout: TokenLayout) -> Tensor:
    return shaped_by_places(view.at_places(layout.grid, channels_first=layout.channels_first), layout)


def shaped_by_places(weights: Tensor, layout: TokenLayout) -> Tensor:
    """Give numbers for the rows of a call and the places of a tensor the dimensions of the tensor.

    A single place for all rows gets none: a product with one number is cheaper.

    Args:
        weights: (rows, places, n), or (rows, n, places) where channels are first.
        layout: of the tensor.
    """
    weights = _repeated(weights, layout.repeats)
    if layout.grid is None and weights.shape[0] == 1:
        return weights.flatten()
    if layout.channels_first:
        return weights.view(*weights.shape[:2], *layout.sizes)
    return weights.view(weights.shape[0], *layout.sizes, weights.shape[2])


def _with_ones(tensor: Tensor, ones: int) -> Tensor:
    return tensor.view(*tensor.shape, *(1,) * ones)


def _repeated(rows: Tensor, repeats: int) -> Tensor:
    """Repeat each row, if there are several."""
    if repeats == 1 or rows.shape[0] == 1:
        return rows
    return rows.repeat_interleave(repeats, 0)
