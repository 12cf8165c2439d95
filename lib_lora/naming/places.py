"""The meaning of a layer's name in a model: rows of one weight, or of several, in some order.

A layer that is one in the file may be several in the model (fused q, k and v), or part of one, or have the halves of
its outputs the other way round. All of that is a list of windows of the model's weights. The aliases of a family
join, cut and swap such lists, see `architectures/_names.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

from ..adapters.base import Kind, Rows, Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(Site):
    """A weight that an adapter can change: a layer's own, or a window of one."""

    path: str
    """Dotted path of the module whose forward is patched."""
    name: str
    """Dotted name adapters use; differs from `path` for a window, and for the parts of an nn.MultiheadAttention."""
    param: str = "weight"
    """Parameter below the module, `weight` or for example `in_proj_weight`."""
    rows: tuple[int, int] | None = None
    """Window of output rows inside `param`, and inside `bias`; None for all of it."""
    bias: str = "bias"
    """Parameter below the module that is added to the output; the module need not have one."""
    outputs: int = 0
    """Rows of the whole of `param`, of which `rows` is a window; 0 where it is no window."""
    base: Target | None = field(default=None, compare=False)
    """What it is a window of, if that has a name of its own."""

    @property
    def batched_ndim(self) -> int:
        """Return the dimensions of the smallest input of the module that still has a batch."""
        if self.kind == "experts":
            return sys.maxsize  # tokens come in the order of their experts
        return {"embedding": 1, "attention": 3, "norm": len(self.shape) + 1}.get(self.kind, len(self.shape))

    @property
    def first(self) -> int:
        return 0 if self.rows is None else self.rows[0]

    @property
    def slice(self) -> slice:
        """Return its rows inside `param`, as an index."""
        return slice(None) if self.rows is None else slice(*self.rows)

    def overlaps(self, other: Target) -> bool:
        """Return whether it has rows in common with another one of the same parameter."""
        mine, its = self.rows, other.rows
        return mine is None or its is None or (mine[0] < its[1] and its[0] < mine[1])

    def window(self, start: int, stop: int) -> Target:
        """Return some of its rows."""
        if (start, stop) == (0, self.shape[0]):
            return self
        if self.base is not None:
            first = self.first - self.base.first
            return self.base.window(first + start, first + stop)
        return replace(
            self,
            name=f"{self.name}[{start}:{stop}]",
            shape=(stop - start, *self.shape[1:]),
            rows=(self.first + start, self.first + stop),
            outputs=self.outputs or self.shape[0],
            base=self,
        )


@dataclass(frozen=True)
class Place:
    """Windows of weights of one kind, in the order in which a file has them as one layer: the meaning of a name."""

    windows: tuple[Target, ...]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the layer as the file has it."""
        return (sum([window.shape[0] for window in self.windows]), *self.windows[0].shape[1:])

    @property
    def kind(self) -> Kind:
        return self.windows[0].kind

    @property
    def name(self) -> str:
        """Return a name for messages."""
        return "+".join([target.name for target, _ in self.pieces])

    @cached_property
    def turn(self) -> int:
        """Return which of a file's layers act where two change the same rows: 0 comes first.

        A file may have a fused layer and its parts, too: SimpleTuner's are empty then, others say the same twice.
        """
        if len({window.path for window in self.windows}) > 1:
            return 0
        return 1 if self.windows[0].rows is None else 2

    @cached_property
    def site(self) -> Site:
        """Return what an adapter must fit."""
        first = self.windows[0]
        return Site(self.shape, first.kind, first.groups, first.takes_bias, first.transposed)

    def window(self, start: int, stop: int) -> Place:
        """Return some of its rows."""
        found, first = [], 0
        for window in self.windows:
            low, high = max(start - first, 0), min(stop - first, window.shape[0])
            if low < high:
                found.append(window.window(low, high))
            first += window.shape[0]
        return Place(tuple(found))

    def swapped(self) -> Place:
        """Return the same with its two halves the other way round."""
        half = self.shape[0] // 2
        return Place((*self.window(half, 2 * half).windows, *self.window(0, half).windows))

    @cached_property
    def pieces(self) -> tuple[tuple[Target, Rows | None], ...]:
        """Return its windows, neighbours as one, weight by weight, and the file's rows for each; None for all."""
        if len(self.windows) == 1:
            return ((self.windows[0], None),)
        order = list(dict.fromkeys([(window.base or window).name for window in self.windows]))
        stops = accumulate([window.shape[0] for window in self.windows])
        parts = [(window.base or window, window, stop) for window, stop in zip(self.windows, stops, strict=True)]
        runs: list[tuple[Target, int, int, Rows]] = []  # a weight, its first and last row, the file's rows for them
        for base, window, stop in sorted(parts, key=lambda part: (order.index(part[0].name), part[1].first)):
            low, count = window.first - base.first, window.shape[0]
            high = low + count
            rows: Rows = ((stop - count, stop),)
            if runs and runs[-1][0] == base and runs[-1][2] == low:
                _, low, _, before = runs.pop()
                rows = (*before, *rows)
            runs.append((base, low, high, rows))
        return tuple([(base.window(low, high), rows) for base, low, high, rows in runs])


def joined(places: Sequence[Place | None]) -> Place | None:
    """Return places one after the other; None where one is missing, or they have unlike inputs."""
    found = [place for place in places if place is not None]
    if len(found) < len(places) or len({place.shape[1:] for place in found}) > 1:
        return None
    return Place(tuple([window for place in found for window in place.windows]))
