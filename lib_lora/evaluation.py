"""The numbers that a stack means at a moment: of each image and half, one for each cell of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .blocks import BlockNames, Element, Side, side_of
from .components import DENOISER, role
from .errors import MomentError, StackError
from .multiplier import at, blocks_of, by_noise, varies
from .schedule import Moment
from .stack import Entry, Stack
from .strength import Source


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


def patterns(entry: Entry) -> tuple[Element, ...]:
    """The rules for some layers, of all images, whatever their weights are."""
    found = [blocks.elements for one in entry.every if (blocks := blocks_of(one)) is not None]
    return tuple(dict.fromkeys(element.unweighted for elements in found for element in elements))


class Evaluation:
    """A stack's strengths, for the cells of a plan.

    Args:
        stack: what the user wants.
        cells: whose numbers are asked for.
        model: its blocks.

    Raises:
        StackError: the model takes no list of block weights as long as an entry's.
    """

    def __init__(self, stack: Stack, cells: Sequence[Cell], model: BlockNames) -> None:
        self._stack = stack
        self._variants = stack.variants
        self._parts = list(dict.fromkeys((cell.entry, cell.component, cell.side) for cell in cells))
        places = {part: i for i, part in enumerate(self._parts)}
        self._part_of = [places[cell.entry, cell.component, cell.side] for cell in cells]
        self._weights = [list(_weights(stack, cells, model, variant)) for variant in self._variants]
        self.varying = frozenset(i for i, entry in enumerate(stack) if any(map(varies, entry.every)))
        """The entries whose strength differs from moment to moment."""

    @property
    def source(self) -> Source | None:
        """What the values are at a moment, where that makes a difference."""
        return self if any(side is not None for i, _, side in self._parts if i in self.varying) else None

    @property
    def by_noise(self) -> bool:
        """Whether the timestep or the noise makes a difference."""
        return any(by_noise(one) for i in self.varying for one in self._stack.entries[i].every)

    def values(self, moment: Moment | None) -> list[list[float]]:
        """Of each of the stack's variants, the number of each cell; at the beginning, without a moment.

        Raises:
            MomentError: an entry's strength depends on what nothing tells.
        """
        found = []
        for variant, weights in zip(self._variants, self._weights, strict=True):
            parts = [self._at(part, variant, moment) for part in self._parts]
            found.append([parts[part] * weight for part, weight in zip(self._part_of, weights, strict=True)])
        return found

    def _at(self, part: tuple[int, str, Side | None], variant: tuple[int, bool], moment: Moment | None) -> float:
        number, component, side = part
        image, negative = variant
        entry = self._stack.entries[number]
        now = moment if number in self.varying and role(component) == DENOISER else None
        try:
            return at(entry.of_image(image, negative=negative), component, side, now)
        except MomentError as error:
            raise MomentError(f"{entry.name}: {error}") from error


def _weights(stack: Stack, cells: Iterable[Cell], model: BlockNames, variant: tuple[int, bool]) -> Iterable[float]:
    found: dict[Cell, float] = {}
    image, negative = variant
    for cell in cells:
        entry = stack.entries[cell.entry]
        blocks = blocks_of(entry.of_image(image, negative=negative))
        if blocks is None:
            found[cell] = 1.0
            continue
        suits = dict(zip(patterns(entry), cell.marks, strict=True))
        try:
            found[cell] = blocks.weight(cell.block, suits, model)
        except StackError as error:
            raise StackError(f"{entry.name}: {error}", cell.entry) from error
    return found.values()
