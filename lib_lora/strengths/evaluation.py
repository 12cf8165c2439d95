"""The numbers that a stack means at a moment: one for each cell of a plan, for each image and half.

A cell is the layers that one number multiplies: those of one entry, component and block that no rule tells apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from ..errors import MomentError, StackError
from ..files.components import DENOISER, role
from ..naming.blocks import BlockNames, Element, Side, block_of, side_of
from ..naming.index import LayerIndex
from ..naming.places import Target
from .multiplier import (
    AnyMultiplier,
    Multiplier,
    Strength,
    at,
    blocks_of,
    by_noise,
    every_of,
    is_off,
    multipliers_of,
    of_image,
    part_of,
    region_of,
)
from .regions import NO_SPREAD, Region, Spread
from .schedule import Curve, Moment
from .table import Source


@dataclass(frozen=True, slots=True)
class Cell:
    """Layers that one number multiplies, whatever the strength is a function of."""

    entry: int
    component: str
    block: str = ""
    marks: tuple[bool, ...] = ()
    """Which of the entry's `patterns` are for them."""

    @property
    def denoises(self) -> bool:
        """Whether they are called at each step."""
        return role(self.component) == DENOISER

    @property
    def side(self) -> Side | None:
        """Of the denoiser."""
        return side_of(self.block) if self.denoises else None


Wishes: TypeAlias = Sequence[tuple[str, AnyMultiplier]]
"""The name and the multiplier of each entry of a stack."""
_NOWHERE = "its region has no place in the picture"

Variants: TypeAlias = Sequence[tuple[int, bool]]
"""The (image, negative) that may have strengths of their own."""


def patterns(multiplier: AnyMultiplier) -> tuple[Element, ...]:
    """Return the rules for some layers, of all images, whatever their weights are."""
    found = [blocks.elements for one in every_of(multiplier) if (blocks := blocks_of(one)) is not None]
    return tuple(dict.fromkeys(element.unweighted for elements in found for element in elements))


class Sheet:
    """The cells of a plan, and which of them have a number in common before blocks are weighed.

    Made once for a plan: a change of strength is to cost no more than its numbers.
    """

    def __init__(self, cells: Sequence[Cell], model: BlockNames) -> None:
        self.cells = tuple(cells)
        self.model = model
        parts = {(cell.entry, cell.component, cell.side): None for cell in cells}
        self.parts = list(parts)
        """(entry, component, side) of each such number."""
        places = {part: place for place, part in enumerate(self.parts)}
        self.part_of = [places[cell.entry, cell.component, cell.side] for cell in cells]
        """For each cell, which of them it has."""
        self.denoising = frozenset(entry for entry, _, side in self.parts if side is not None)
        """Entries that act on what is called at each step."""


class Evaluation:
    """A stack's strengths, for the cells of a plan.

    Args:
        wishes: what the user wants, entry by entry.
        variants: of the stack.
        sheet: of the plan.

    Raises:
        StackError: the model takes no list of block weights as long as an entry's.
    """

    def __init__(self, wishes: Wishes, variants: Variants, sheet: Sheet) -> None:
        self._wishes = wishes
        self._sheet = sheet
        self._variants = variants
        every = [(i, one) for i, (_, multiplier) in enumerate(wishes) for one in every_of(multiplier)]
        functions = [(i, one) for i, one in every if isinstance(one, Strength)]
        weighed = any(one.blocks is not None for _, one in functions)
        self._weights = [list(_weights(wishes, sheet, variant)) for variant in self._variants] if weighed else None
        self.varying = frozenset(i for i, one in functions if one.varies)
        """The entries whose strength differs from moment to moment."""
        self.regional = frozenset(i for i, one in functions if one.region is not None)
        """The entries that are for a part of the picture."""

    @property
    def source(self) -> Source | None:
        """What the values are at a moment, where that makes a difference."""
        return self if self.varying & self._sheet.denoising else None

    @property
    def spread(self) -> Spread:
        """Where in the picture the cells act."""
        if not self.regional & self._sheet.denoising:
            return NO_SPREAD
        numbers: dict[Region, int] = {}
        of_cells, parts = [], []
        for image, negative in self._variants:
            own = [of_image(multiplier, image, negative=negative) for _, multiplier in self._wishes]
            regions = [region_of(one) for one in own]
            places = [0 if one is None else numbers.setdefault(one, len(numbers) + 1) for one in regions]
            of_cells.append(tuple(places[cell.entry] if cell.denoises else 0 for cell in self._sheet.cells))
            parts.append(tuple(part_of(own[cell.entry]) if cell.denoises else None for cell in self._sheet.cells))
        return Spread(tuple(numbers), tuple(of_cells), tuple(parts))

    @property
    def by_noise(self) -> bool:
        """Whether the timestep or the noise makes a difference."""
        return any(by_noise(one) for i in self.varying for one in every_of(self._wishes[i][1]))

    def idle(self, acted: Set[int], moments: int) -> dict[int, str]:
        """Tell the entries that have no effect on any layer, and why.

        Args:
            acted: cells whose strength was other than 0 at a moment.
            moments: how many moments there were.
        """
        static = self.values(None)
        found = {}
        for number, (_, multiplier) in enumerate(self._wishes):
            cells, varying = self._cells_of(number)
            outside = self._outside(number, cells)
            if any(own[i] for own in static for i in cells if i not in varying and i not in outside):
                continue
            if outside and any(map(self._is_wanted, outside)):
                found[number] = _NOWHERE
            elif varying:
                if why := _why_never(multiplier, varying, acted, moments):
                    found[number] = why
            elif not all(map(is_off, multipliers_of(multiplier))):
                found[number] = f"its strength is 0 for all layers that it changes, which are in {self._named(cells)}"
        return found

    def partly_idle(self, acted: Set[int], moments: int) -> dict[int, str]:
        """Tell the entries that act on text encoders alone though they are for the denoiser, too: where not, and why.

        Args:
            acted: as in `idle`.
            moments: as in `idle`.
        """
        static = self.values(None)
        found = {}
        for number, (_, multiplier) in enumerate(self._wishes):
            cells, varying = self._cells_of(number)
            outside = self._outside(number, cells)
            if not any(own[i] for own in static for i in cells if i not in varying and i not in outside):
                continue  # `idle` tells of it
            if wanted := [i for i in outside if self._is_wanted(i)]:
                found[number] = f"on the {self._named(wanted)}: {_NOWHERE}"
                continue
            wanted = [i for i in varying if self._is_wanted(i)]
            if wanted and (why := _why_never(multiplier, varying, acted, moments)):
                found[number] = f"on the {self._named(wanted)}: {why}"
        return found

    def _cells_of(self, number: int) -> tuple[list[int], list[int]]:
        """Return the cells of an entry, and those of them whose number differs from moment to moment."""
        cells = [i for i, cell in enumerate(self._sheet.cells) if cell.entry == number]
        return cells, [i for i in cells if number in self.varying and self._sheet.cells[i].denoises]

    def _outside(self, number: int, cells: Sequence[int]) -> list[int]:
        """Return the cells of an entry that act on parts of the picture, where these have no place in it."""
        own = [region_of(one) for one in every_of(self._wishes[number][1])]
        nowhere = all(region is not None and not region.share for region in own)
        return [i for i in cells if self._sheet.cells[i].denoises] if nowhere else []

    def _named(self, cells: Sequence[int]) -> str:
        return ", ".join(dict.fromkeys(self._sheet.cells[i].component for i in cells))

    def _is_wanted(self, i: int) -> bool:
        """Tell whether a cell has a strength at a moment that may come: the user may leave a component alone."""
        cell = self._sheet.cells[i]
        multiplier = self._wishes[cell.entry][1]
        for place, (image, negative) in enumerate(self._variants):
            weight = 1.0 if self._weights is None else self._weights[place][i]
            own = of_image(multiplier, image, negative=negative)
            if isinstance(own, Strength):
                amount = own.amount(cell.component, cell.side)
                wanted = not amount.is_zero if isinstance(amount, Curve) else amount != 0
            else:
                wanted = at(own, cell.component, None, None) != 0
            if wanted and weight:
                return True
        return False

    def values(self, moment: Moment | None) -> list[list[float]]:
        """Of each of the stack's variants, the number of each cell; at the beginning, without a moment.

        Raises:
            MomentError: an entry's strength depends on what nothing tells.
        """
        found = []
        for variant in self._variants:
            parts = [self._at(part, variant, moment) for part in self._sheet.parts]
            found.append([parts[part] for part in self._sheet.part_of])
        if self._weights is None:
            return found
        return [
            [value * weight for value, weight in zip(values, weights, strict=True)]
            for values, weights in zip(found, self._weights, strict=True)
        ]

    def _at(self, part: tuple[int, str, Side | None], variant: tuple[int, bool], moment: Moment | None) -> float:
        number, component, side = part
        image, negative = variant
        name, multiplier = self._wishes[number]
        now = moment if side is not None and number in self.varying else None  # only denoisers are called at steps
        try:
            return at(of_image(multiplier, image, negative=negative), component, side, now)
        except MomentError as error:
            raise MomentError(f"{name}: {error}") from error


def _why_never(multiplier: AnyMultiplier, varying: Sequence[int], acted: Set[int], moments: int) -> str:
    """Tell why what differs from moment to moment has been 0 at all of them; empty where it has not, or may not be."""
    never = [_never(one) for one in every_of(multiplier)]
    if varying and all(never):
        return never[0]
    if varying and moments and acted.isdisjoint(varying):
        return f"its strength was 0 at all {moments} calls of the model"
    return ""


def _never(multiplier: Multiplier) -> str:
    """Tell why a multiplier is 0 at every moment by its window alone; empty where it is not."""
    if not isinstance(multiplier, Strength):
        return ""
    start, stop, high, low = (getattr(multiplier.during, name) for name in ("start", "stop", "high", "low"))
    if start is not None and stop is not None and (start < 1) == (stop < 1) and start >= stop:
        return f"it stops at step {stop:g} and starts at step {start:g} only"
    if high is not None and low is not None and low > high:
        return f"it stops below sigma {low:g} and starts at sigma {high:g} only"
    return ""


def _weights(wishes: Wishes, sheet: Sheet, variant: tuple[int, bool]) -> Iterator[float]:
    image, negative = variant
    blocks = [blocks_of(of_image(multiplier, image, negative=negative)) for _, multiplier in wishes]
    rules = [patterns(multiplier) for _, multiplier in wishes]
    for cell in sheet.cells:
        own = blocks[cell.entry]
        if own is None:
            yield 1.0
            continue
        suits = dict(zip(rules[cell.entry], cell.marks, strict=True))
        try:
            yield own.weight(cell.block, suits, sheet.model)
        except StackError as error:
            raise StackError(f"{wishes[cell.entry][0]}: {error}", cell.entry) from error


_block_of = lru_cache(maxsize=16384)(block_of)


class Cells:
    """Cells of a plan that is being made, numbered as they are asked for."""

    def __init__(self, wishes: Wishes, indexes: Sequence[LayerIndex], model: BlockNames) -> None:
        self._patterns = [patterns(multiplier) for _, multiplier in wishes]
        self._indexes = {index.component: index for index in indexes}
        self._model = model
        self._numbers: dict[Cell, int] = {}

    @property
    def all(self) -> tuple[Cell, ...]:
        """Those that were asked for, by their numbers."""
        return tuple(self._numbers)

    def number(self, entry: int, component: str, target: Target) -> int:
        """That of a layer."""
        block = _block_of(component, target.path)
        marks: tuple[bool, ...] = ()
        if self._patterns[entry]:
            names = self._indexes[component].names_of(target)
            marks = tuple(one.suits(block, names, self._model) for one in self._patterns[entry])
        return self._numbers.setdefault(Cell(entry, component, block, marks), len(self._numbers))

    def numbers(self, suits: Callable[[Cell], bool]) -> frozenset[int]:
        """Those of some."""
        return frozenset(number for cell, number in self._numbers.items() if suits(cell))
