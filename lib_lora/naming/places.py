"""The meaning of a layer's name in a model: rows of one weight, or of several, in some order.

A layer that is one in the file may be several in the model (fused q, k and v), or part of one, or have the halves of
its outputs the other way round. All of that is a list of windows of the model's weights. The aliases of a family
join, cut and swap such lists, see `architectures/_names.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from ..adapters.base import Kind, Rows, Site


@dataclass(frozen=True, slots=True)
class Target:
    """A weight that an adapter can change: a layer's own, or a window of a fused one."""

    path: str
    """Dotted path of the module whose forward is patched."""
    name: str
    """Dotted name adapters use; differs from `path` for a window, and for the parts of an nn.MultiheadAttention."""
    kind: Kind
    param: str
    """Parameter below the module, `weight` or for example `in_proj_weight`."""
    shape: tuple[int, ...]
    """Logical shape of the window: (out, in), (out, in / groups, *kernel), (entries, width) or (channels,).

    The weights of experts are as the module has them: (experts, out, in), or (experts, in, out) where `transposed`.
    """
    rows: tuple[int, int] | None = None
    """Window of output rows inside `param`; None for all of it."""
    groups: int = 1
    bias: str = "bias"
    """Parameter below the module that is added to the output; the module need not have one."""
    bias_rows: tuple[int, int] | None = None
    """Window inside `bias`; None for all of it."""
    takes_bias: bool = True
    """False for norms that never add one."""
    outputs: int = 0
    """Rows of the whole of `param`, of which `rows` is a window; 0 where it is no window."""
    transposed: bool = False

    @property
    def batched_ndim(self) -> int:
        """Return the dimensions of the smallest input of the module that still has a batch."""
        if self.kind == "experts":
            return sys.maxsize  # tokens come in the order of their experts
        return {"embedding": 1, "attention": 3, "norm": len(self.shape) + 1}.get(self.kind, len(self.shape))

    def overlaps(self, other: Target) -> bool:
        """Return whether it has rows in common with another one of the same parameter."""
        if self.rows is None or other.rows is None:
            return True
        return self.rows[0] < other.rows[1] and other.rows[0] < self.rows[1]

    def window(self, start: int, stop: int) -> Target:
        """Return some of its rows."""
        if (start, stop) == (0, self.shape[0]):
            return self
        first, bias_first = (0 if rows is None else rows[0] for rows in (self.rows, self.bias_rows))
        return replace(
            self,
            name=f"{self.name}[{start}:{stop}]",
            shape=(stop - start, *self.shape[1:]),
            rows=(first + start, first + stop),
            bias_rows=(bias_first + start, bias_first + stop),
            outputs=self.outputs or self.shape[0],
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring rows of one weight."""

    target: Target
    start: int
    stop: int

    @property
    def count(self) -> int:
        """Return how many rows it has."""
        return self.stop - self.start


@dataclass(frozen=True)
class Place:
    """Rows of weights, in the order in which a file has them: the meaning of a name."""

    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, target: Target) -> Place:
        """Return the whole of one weight."""
        return cls((Segment(target, 0, target.shape[0]),))

    @cached_property
    def target(self) -> Target | None:
        """Return the weight it is the whole of; None where it is not just one."""
        first = self.segments[0]
        alone = len(self.segments) == 1 and first.count == first.target.shape[0]
        return first.target if alone else None

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the layer as the file has it."""
        return (sum(one.count for one in self.segments), *self.segments[0].target.shape[1:])

    @property
    def kind(self) -> Kind:
        """Return the kind of its weights."""
        return self.segments[0].target.kind

    @property
    def name(self) -> str:
        """Return a name for messages."""
        return "+".join(target.name for target, _ in self.pieces)

    @cached_property
    def site(self) -> Site:
        """Return what an adapter must fit; all segments are of one kind."""
        first = self.segments[0].target
        return Site(self.shape, first.kind, first.groups, first.takes_bias, first.transposed)

    def window(self, start: int, stop: int) -> Place:
        """Return some of its rows."""
        found = []
        for one, offset in self._offsets():
            low, high = max(start - offset, 0), min(stop - offset, one.count)
            if low < high:
                found.append(Segment(one.target, one.start + low, one.start + high))
        return Place(tuple(found))

    def _offsets(self) -> Iterator[tuple[Segment, int]]:
        """Return each segment with the row of the file's layer at which it begins."""
        return zip(self.segments, accumulate([one.count for one in self.segments], initial=0), strict=False)

    def swapped(self) -> Place:
        """Return the same with its two halves the other way round."""
        half = self.shape[0] // 2
        return Place((*self.window(half, 2 * half).segments, *self.window(0, half).segments))

    @cached_property
    def pieces(self) -> tuple[tuple[Target, Rows | None], ...]:
        """Return the windows of weights it consists of, as large as can be, and the file's rows for each.

        Rows are None for the whole of the file's layer in its order.
        """
        if self.target is not None:
            return ((self.target, None),)
        order = list(dict.fromkeys([one.target.name for one in self.segments]))
        runs: list[tuple[Segment, Rows]] = []  # neighbouring segments of one weight, and the file's rows for them
        for one, offset in sorted(self._offsets(), key=lambda part: (order.index(part[0].target.name), part[0].start)):
            rows = (offset, offset + one.count)
            if runs and runs[-1][0].target == one.target and runs[-1][0].stop == one.start:
                before, own = runs.pop()
                runs.append((replace(before, stop=one.stop), (*own, rows)))
            else:
                runs.append((one, (rows,)))
        whole = ((0, self.shape[0]),)
        return tuple((run.target.window(run.start, run.stop), None if own == whole else own) for run, own in runs)

    def rows_of(self, target: Target) -> Iterator[tuple[slice, slice]]:
        """Yield rows of the file's layer that are a target's, and the target's rows for them."""
        first = 0 if target.rows is None else target.rows[0]
        for one, offset in self._offsets():
            if (one.target.path, one.target.param) == (target.path, target.param):
                start = one.start + (one.target.rows or (0,))[0] - first
                low, high = max(start, 0), min(start + one.count, target.shape[0])
                if low < high:
                    yield slice(offset + low - start, offset + high - start), slice(low, high)


def joined(places: Sequence[Place | None]) -> Place | None:
    """Return places one after the other; None where one is missing, or they have unlike inputs."""
    found = [place for place in places if place is not None]
    if len(found) < len(places) or len({place.shape[1:] for place in found}) > 1:
        return None
    return Place(tuple(segment for place in found for segment in place.segments))
