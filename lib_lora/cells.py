"""Which layers one number multiplies: those of an entry in one block, and no rule tells them from each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from .blocks import BlockNames, block_of
from .evaluation import Cell, patterns
from .layer import LayerIndex
from .places import Target
from .stack import Stack

_block_of = lru_cache(maxsize=16384)(block_of)


class Cells:
    """Cells of a plan that is being made, numbered as they are asked for."""

    def __init__(self, stack: Stack, indexes: Sequence[LayerIndex], model: BlockNames) -> None:
        self._patterns = [patterns(entry) for entry in stack]
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
