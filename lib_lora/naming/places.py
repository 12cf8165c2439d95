"""The meaning of a layer's name in a model: rows of one weight, or of several, in some order.

A layer that is one in the file may be several in the model (fused q, k and v), or part of one, or have the halves of
its outputs the other way round. All of that is a list of windows of the model's weights. Joining, cutting and swapping
such lists as the aliases of the families say gives all names of a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate

from ..adapters.base import Kind, Rows, Site
from ..files.components import role
from .architectures.base import Alias, Architecture, clear, fact, ranked


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
    """Logical shape of the window: (out, in), (out, in / groups, *kernel), (entries, width) or (channels,)."""
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

    @property
    def batched_ndim(self) -> int:
        """Return the dimensions of the smallest input of the module that still has a batch."""
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
    def name(self) -> str:
        """Return a name for messages."""
        return "+".join(target.name for target, _ in self.pieces)

    @cached_property
    def site(self) -> Site:
        """Return what an adapter must fit; all segments are of one kind."""
        first = self.segments[0].target
        return Site(self.shape, first.kind, first.groups, first.takes_bias)

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


class AliasTable:
    """The other names of a model's layers, in both directions.

    Args:
        aliases: of all families.
        families: that a model may be of. Aliases count only for families that the signs of the model support: another
            model may have a layer of the same name that is another one, or has its outputs in another order. Where no
            family is supported, the aliases count that only give a layer another name.
    """

    def __init__(self, aliases: Iterable[Alias], families: Iterable[Architecture] = ()) -> None:
        self._families = tuple(families)
        self._aliases = tuple(aliases)

    def places(self, component: str, own: Mapping[str, Place]) -> dict[str, Place]:
        """Return every name of a component's layers and its place, the model's own names first."""
        known = dict(own)
        widths = {name: place.shape[1] if len(place.shape) > 1 else None for name, place in own.items()}
        families = clear(ranked(self._families, [fact(component, name, width) for name, width in widths.items()]))
        tables = [family.aliases for family in families]  # the likeliest family's first
        for aliases in tables or [tuple(one for one in self._aliases if one.only_names or not self._families)]:
            rules = _indexed(aliases)
            queue = list(known)
            # aliases of two families together may make a name longer each time they are used
            most = max(name.count(".") for name in ("", *own)) + max((rule.count(".") for rule in rules), default=0) + 1
            for name in queue:  # which grows
                for other, place in _others(rules, component, name, known, below_all=name in own):
                    if other not in known and other.count(".") <= most:  # a layer's own name beats another's alias
                        known[other] = place
                        queue.append(other)
        return known


@lru_cache(maxsize=32)
def _indexed(aliases: tuple[Alias, ...]) -> Mapping[str, Sequence[_Rule]]:
    """Return both directions of aliases, by the names they match with `#` for numbers."""
    rules: dict[str, list[_Rule]] = {}
    for alias in dict.fromkeys(aliases):
        native = _steps(alias.native)
        parts = tuple(map(_steps, alias.parts))
        for rule in (_Rule(alias, native, parts), *(_Rule(alias, part, (native,), i) for i, part in enumerate(parts))):
            normal = ["#" if step == "{}" or step.isdecimal() else step for step in rule.this]
            rules.setdefault(".".join(normal), []).append(rule)
    return rules


def _others(
    rules: Mapping[str, Sequence[_Rule]], component: str, name: str, known: Mapping[str, Place], *, below_all: bool
) -> Iterator[tuple[str, Place]]:
    """Yield the other names of a layer, and of the whole it is a part of, with their places."""
    steps = name.split(".")
    normal = ["#" if step.isdecimal() else step for step in steps]
    owners = {component, role(component)}
    # what may stand before every name is put before the model's own, or it would be put before itself for ever
    for length in range(len(steps), -1 if below_all else 0, -1):
        for rule in rules.get(".".join(normal[:length]), ()):
            if rule.alias.component in owners:
                numbers = rule.match(steps[:length])
                if numbers is not None:
                    yield from rule.names(numbers, steps[length:], known[name], known)


_Steps = tuple[str, ...]
"""A dotted name, with `{}` for numbers."""


def _steps(text: str) -> _Steps:
    return tuple(text.split(".")) if text else ()


def _filled(name: _Steps, numbers: Iterable[str], rest: Sequence[str] = ()) -> str:
    """Return a name with these numbers, and the rest behind it."""
    given = iter(numbers)
    return ".".join([*[next(given) if step == "{}" else step for step in name], *rest])


@dataclass(frozen=True, slots=True)
class _Rule:
    """One direction of an alias."""

    alias: Alias
    this: _Steps
    others: tuple[_Steps, ...]
    part: int | None = None
    """Which part of the fused layer it is from; None for the other direction."""

    def match(self, steps: Sequence[str]) -> list[str] | None:
        """Return the numbers in a name that is as long and normalised alike; None where it is another."""
        numbers = []
        for own, step in zip(self.this, steps, strict=True):
            if own == "{}":
                numbers.append(step)
            elif own != step:
                return None
        return numbers

    def names(
        self, numbers: Sequence[str], rest: Sequence[str], place: Place, known: Mapping[str, Place]
    ) -> Iterator[tuple[str, Place]]:
        """Yield the names that a layer which matches gives, with their places."""
        alias, shape = self.alias, place.shape
        if alias.times is not None and (len(shape) < 2 or shape[0] != alias.times * shape[1]):
            return
        if isinstance(alias.diffusers, str):
            yield _filled(self.others[0], numbers, rest), place.swapped() if alias.swapped else place
        elif not rest and self.part is None:
            start = 0
            for other, size in zip(self.others, _sizes(alias, shape), strict=False):
                yield _filled(other, numbers), place.window(start, start + size)
                start += size
        elif not rest:
            fused = _filled(self.others[0], numbers)
            if len(alias.parts) > 1:
                yield f"{fused}.{self.part}", place
            whole = joined([known.get(_filled(_steps(part), numbers)) for part in alias.parts])
            if whole is not None:
                yield fused, whole


def _sizes(alias: Alias, shape: Sequence[int]) -> list[int]:
    """Return the rows of each part of a fused weight of this shape; none where it cannot be divided so."""
    if len(shape) < 2:
        return []
    sizes = alias.sizes or ("rest",) * len(alias.parts)
    fixed = sizes.count("in") * shape[1]
    share, left = divmod(shape[0] - fixed, sizes.count("rest") or 1)
    fits = shape[0] >= fixed and left == 0
    return [shape[1] if size == "in" else share for size in sizes] if fits else []
