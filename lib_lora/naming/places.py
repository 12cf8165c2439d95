"""What a layer's name means in a model: rows of one weight, or of several, in some order.

A layer that is one in the file may be several in the model (fused q, k and v), or part of one, or have the halves of
its outputs the other way round. All of that is a list of windows of the model's weights. All names of a model are found
by joining, cutting and swapping such lists as the aliases of the families say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

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
        """The dimensions of the smallest input of the module that still has a batch."""
        return {"embedding": 1, "attention": 3, "norm": len(self.shape) + 1}.get(self.kind, len(self.shape))

    @property
    def site(self) -> Site:
        """What an adapter must fit."""
        return Site(self.shape, self.kind, self.groups, self.takes_bias)

    def overlaps(self, other: Target) -> bool:
        """Whether it has rows in common with another one of the same parameter."""
        if self.rows is None or other.rows is None:
            return True
        return self.rows[0] < other.rows[1] and other.rows[0] < self.rows[1]

    def window(self, start: int, stop: int) -> Target:
        """Some of its rows."""
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
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Piece:
    """A weight of the model, and which rows of the file's layer are for it."""

    target: Target
    rows: Rows | None
    """None where it is the whole of the file's layer as it lies."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a name means: rows of weights, in the order in which a file has them."""

    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, target: Target) -> Place:
        """The whole of one weight."""
        return cls((Segment(target, 0, target.shape[0]),))

    @classmethod
    def joined(cls, places: Sequence[Place]) -> Place:
        """Several, one after the other."""
        return cls(tuple(segment for place in places for segment in place.segments))

    @property
    def target(self) -> Target | None:
        """The weight it is the whole of; None where it is not just one."""
        first = self.segments[0]
        alone = len(self.segments) == 1 and first.count == first.target.shape[0]
        return first.target if alone else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the layer as the file has it."""
        return (sum(one.count for one in self.segments), *self.segments[0].target.shape[1:])

    @property
    def kind(self) -> Kind:
        """Of its layers, which are all alike."""
        return self.segments[0].target.kind

    @property
    def name(self) -> str:
        """For messages."""
        return "+".join(piece.target.name for piece in self.pieces())

    @property
    def site(self) -> Site:
        """What an adapter must fit."""
        return replace(self.segments[0].target.site, shape=self.shape)

    def window(self, start: int, stop: int) -> Place:
        """Some of its rows."""
        found, offset = [], 0
        for one in self.segments:
            low, high = max(start - offset, 0), min(stop - offset, one.count)
            if low < high:
                found.append(Segment(one.target, one.start + low, one.start + high))
            offset += one.count
        return Place(tuple(found))

    def swapped(self) -> Place:
        """The same with its two halves the other way round."""
        half = self.shape[0] // 2
        return Place.joined([self.window(half, 2 * half), self.window(0, half)])

    def pieces(self) -> list[Piece]:
        """The windows of weights it consists of, as large as can be, and the rows of the file's layer for each."""
        if self.target is not None:
            return [Piece(self.target, None)]
        found: dict[str, list[tuple[Segment, int]]] = {}
        offset = 0
        for one in self.segments:
            found.setdefault(one.target.name, []).append((one, offset))
            offset += one.count
        pieces = [piece for own in found.values() for piece in _pieces(own)]
        whole = ((0, self.shape[0]),)
        return [replace(piece, rows=None) if piece.rows == whole else piece for piece in pieces]


def _pieces(own: Sequence[tuple[Segment, int]]) -> Iterator[Piece]:
    """The pieces of one weight, from its segments and where the file has them."""
    ordered = sorted(own, key=lambda one: one[0].start)
    # equal for neighbours: what is before a segment less what is before it among these
    before = [sum(segment.count for segment, _ in ordered[:i]) for i in range(len(ordered))]
    runs = groupby(zip(ordered, before, strict=True), key=lambda one: one[0][0].start - one[1])
    for _, run in runs:
        segments = [segment for segment, _ in run]
        target = segments[0][0].target.window(segments[0][0].start, segments[-1][0].stop)
        yield Piece(target, tuple((offset, offset + segment.count) for segment, offset in segments))


class AliasTable:
    """The other names of a model's layers, in both directions.

    Args:
        aliases: of all families.
        families: that a model may be of. Aliases count only for families that the signs of the model support: another
            model may have a layer of the same name that is another one, or has its outputs in another order. Where no
            family is supported, those count that only give a layer another name.
    """

    def __init__(self, aliases: Iterable[Alias], families: Iterable[Architecture] = ()) -> None:
        self._families = tuple(families)
        every = tuple(aliases)
        self._every = _indexed(every)
        self._names = _indexed(alias for alias in every if alias.only_names)

    def places(self, component: str, own: Mapping[str, Place]) -> dict[str, Place]:
        """Return every name and what it means, the model's own names first.

        Args:
            component: whose layers they are.
            own: the model's own names.
        """
        known = dict(own)
        widths = {name: place.shape[1] if len(place.shape) > 1 else None for name, place in own.items()}
        lines = (fact(component, name, width) for name, width in widths.items())
        for rules in self._rules(clear(ranked(self._families, lines))):
            queue = list(known)
            for name in queue:  # which grows
                for other, place in _others(rules, component, name, known, below_all=name in own):
                    if other not in known:  # a layer's own name beats another's alias
                        known[other] = place
                        queue.append(other)
        return known

    def _rules(self, families: Sequence[Architecture]) -> list[dict[str, list[_Rule]]]:
        """The rules that count, those of the likeliest family first."""
        if not self._families:
            return [self._every]
        return [_indexed(family.aliases) for family in families] or [self._names]


def _indexed(aliases: Iterable[Alias]) -> dict[str, list[_Rule]]:
    """Rules by the names they are for, numbers aside."""
    rules: dict[str, list[_Rule]] = {}
    for alias in dict.fromkeys(aliases):
        for rule in _rules(alias):
            rules.setdefault(_normal(rule.this), []).append(rule)
    return rules


def _others(
    rules: Mapping[str, Sequence[_Rule]], component: str, name: str, known: Mapping[str, Place], *, below_all: bool
) -> Iterator[tuple[str, Place]]:
    """What else a layer, and what it is a part of, is called."""
    steps = name.split(".")
    normal = [_NUMBER if step.isdecimal() else step for step in steps]
    # what may stand before every name is put before the model's own, or it would be put before itself for ever
    for length in range(len(steps), -1 if below_all else 0, -1):
        for rule in rules.get(".".join(normal[:length]), ()):
            if component == rule.alias.component or role(component) == rule.alias.component:
                numbers = rule.this.match(steps[:length])
                if numbers is not None:
                    yield from rule.names(numbers, steps[length:], known[name], known)


_NUMBER = "#"


@dataclass(frozen=True, slots=True)
class _Template:
    """A dotted name with places for numbers."""

    steps: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> _Template:
        return cls(tuple(text.split(".")) if text else ())

    def match(self, steps: Sequence[str]) -> list[str] | None:
        """The numbers in a name that is as long and normalised alike; None where it is another."""
        numbers = []
        for own, step in zip(self.steps, steps, strict=True):
            if own == "{}":
                numbers.append(step)
            elif own != step:
                return None
        return numbers

    def fill(self, numbers: Iterable[str], rest: Sequence[str] = ()) -> str:
        """The name with these numbers, and what follows."""
        given = iter(numbers)
        return ".".join([*(next(given) if step == "{}" else step for step in self.steps), *rest])


def _normal(template: _Template) -> str:
    return ".".join(_NUMBER if step == "{}" or step.isdecimal() else step for step in template.steps)


@dataclass(frozen=True, slots=True)
class _Rule:
    """One direction of an alias."""

    alias: Alias
    this: _Template
    others: tuple[_Template, ...]
    part: int | None = None
    """Which part of the fused layer it is from; None for the other direction."""

    def names(
        self, numbers: Sequence[str], rest: Sequence[str], place: Place, known: Mapping[str, Place]
    ) -> Iterator[tuple[str, Place]]:
        """What a layer that matches gives names to."""
        if not self._suits(place):
            return
        if isinstance(self.alias.diffusers, str):
            yield self.others[0].fill(numbers, rest), place.swapped() if self.alias.swapped else place
        elif not rest and self.part is None:
            yield from self._cut(numbers, place)
        elif not rest:
            yield from self._join(numbers, place, known)

    def _suits(self, place: Place) -> bool:
        times = self.alias.times
        return times is None or (len(place.shape) > 1 and place.shape[0] == times * place.shape[1])

    def _join(self, numbers: Sequence[str], place: Place, known: Mapping[str, Place]) -> Iterator[tuple[str, Place]]:
        fused = self.others[0].fill(numbers)
        if len(self.alias.parts) > 1:
            yield f"{fused}.{self.part}", place
        parts = [known.get(_Template.of(part).fill(numbers)) for part in self.alias.parts]
        whole = [part for part in parts if part is not None]
        if len(whole) == len(parts) and len({part.shape[1:] for part in whole}) == 1:
            yield fused, Place.joined(whole)

    def _cut(self, numbers: Sequence[str], place: Place) -> Iterator[tuple[str, Place]]:
        sizes = _sizes(self.alias, place.shape)
        start = 0
        for other, size in zip(self.others, sizes, strict=False):
            yield other.fill(numbers), place.window(start, start + size)
            start += size


def _rules(alias: Alias) -> Iterator[_Rule]:
    native, parts = _Template.of(alias.native), tuple(map(_Template.of, alias.parts))
    yield _Rule(alias, native, parts)
    for i, part in enumerate(parts):
        yield _Rule(alias, part, (native,), i)


def _sizes(alias: Alias, shape: Sequence[int]) -> list[int]:
    """Rows of the parts of a fused weight of this shape; none where it cannot be divided so."""
    if len(shape) < 2:
        return []
    sizes = alias.sizes or ("rest",) * len(alias.parts)
    fixed = sizes.count("in") * shape[1]
    share, left = divmod(shape[0] - fixed, sizes.count("rest") or 1)
    fits = shape[0] >= fixed and left == 0
    return [shape[1] if size == "in" else share for size in sizes] if fits else []
