"""The names that the aliases of families give to the layers of a model, and the place that each name means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...files.components import TEXT_ENCODER, role
from ..places import Place, joined
from ._encoders import ENCODER_ALIASES
from .base import Alias, Architecture, clear, fact, known_architectures, ranked

PARTS = {
    "to_qkv": ("to_q", "to_k", "to_v"),
    "to_kv": ("to_k", "to_v"),
    "to_added_qkv": ("add_q_proj", "add_k_proj", "add_v_proj"),
}
"""Fused projection -> its parts, in the order of its outputs."""
_SURE = 8
"""The weight that the signs of a family must have in a model of another width: several kinds of its layers."""


def places_of(component: str, own: Mapping[str, Place]) -> dict[str, Place]:
    """Return every name of a component's layers and its place, the model's own names first.

    Aliases count only for families that the signs of the model support: another model may have a layer of the same name
    that is another one, or has its outputs in another order. Where no family is supported, the aliases count that only
    give a layer another name.
    """
    known, every = dict(own), known_architectures()
    widths = {name: place.shape[1] if len(place.shape) > 1 else None for name, place in own.items()}
    families = clear(ranked(every, [fact(component, name, width) for name, width in widths.items()]))
    families = families or _of_another_width(every, component, widths)
    tables = [family.aliases for family in families]  # the likeliest family's first
    tables = tables or [tuple([alias for family in every for alias in family.aliases if alias.only_names])]
    for aliases in (*tables, ENCODER_ALIASES) if role(component) == TEXT_ENCODER else tables:
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


def _of_another_width(
    families: Iterable[Architecture], component: str, widths: Mapping[str, int | None]
) -> tuple[Architecture, ...]:
    """Return the family whose layers a model has in another width, by its signs; empty without one."""
    counts = Counter(filter(None, widths.values()))
    common = counts.most_common(1)[0][0] if counts else 0
    for family in families if common else ():
        if family.width and family.width != common:
            scaled = {name: width and width * family.width // common for name, width in widths.items()}
            if family.score(fact(component, name, width) for name, width in scaled.items()) >= _SURE:
                return (family,)
    return ()


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
        elif not rest and self.part is None and not alias.head:
            start = 0
            for other, size in zip(self.others, _sizes(alias, shape), strict=False):
                yield _filled(other, numbers), place.window(start, start + size)
                start += size
        elif not rest:
            fused = _filled(self.others[0], numbers)
            if len(alias.parts) > 1:
                yield f"{fused}.{self.part}", place
            parts = [known.get(_filled(_steps(part), numbers)) for part in alias.parts]
            whole = joined(_by_turns(parts, alias.head) if alias.head else parts)
            if whole is not None:
                yield fused, whole


def _by_turns(parts: Sequence[Place | None], count: int) -> Sequence[Place | None]:
    """Return the first `count` rows of each part, then the next ones, for parts of equally many rows."""
    rows = [0 if part is None else part.shape[0] for part in parts]
    if min(rows) < max(rows) or rows[0] % count:
        return [None]
    return [part and part.window(at, at + count) for at in range(0, rows[0], count) for part in parts]


def _sizes(alias: Alias, shape: Sequence[int]) -> list[int]:
    """Return the rows of each part of a fused weight of this shape; none where it cannot be divided so."""
    if len(shape) < 2:
        return []
    sizes = alias.sizes or ("rest",) * len(alias.parts)
    fixed = sizes.count("in") * shape[1]
    share, left = divmod(shape[0] - fixed, sizes.count("rest") or 1)
    fits = shape[0] >= fixed and left == 0
    return [shape[1] if size == "in" else share for size in sizes] if fits else []


def joint_projections(places: Mapping[str, Place]) -> dict[str, Place]:
    """Return projections under the names that diffusers would give them fused: SimpleTuner may train them so.

    Source: bghira/SimpleTuner simpletuner/helpers/models/common.py, `fuse_qkv_projections`, not undone before
    a LoRA is saved.
    """
    found: dict[str, Place] = {}
    for fused_name, parts in PARTS.items():
        for name in places:
            if name.rpartition(".")[2] == parts[0]:
                parent = name.removesuffix(parts[0])
                place = joined([places.get(parent + part) for part in parts])
                if place is not None:
                    found[parent + fused_name] = place
    return found
