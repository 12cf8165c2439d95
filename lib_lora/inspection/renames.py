"""Proposals for layers of a file that no layer of the model has the name of: the nearest names, judged by shape."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from operator import itemgetter
from typing import TypeVar

from torch import nn

from ..files.file import AdapterFile
from ..naming.index import LayerIndex
from ..naming.network import Network
from ..naming.parsed import Group, ParsedFile
from ..naming.places import Place, Target
from ..report import NetworkReport

T = TypeVar("T")

_NUMBER = re.compile(r"(?<![a-zA-Z\d])\d+(?![a-zA-Z\d])")
_STEP = re.compile(r"[._]")
_NEAR = 0.5
"""Names less alike than that are no proposal; 1 is the same name."""
_OWN = 0.1
"""What a name of the model itself has ahead of other programs' names."""
_LOST = frozenset({"no_module", "no_component", "shape"})


@dataclass(frozen=True, slots=True)
class Rename:
    """A part of the names in a file, and what the model calls it."""

    old: str
    """Of the file, with `{}` for each number."""
    new: str
    """Of the model; empty where `old` is to be left out."""
    fit: int
    """Layers of the file that the model would have under the new name, with equal shapes."""
    layers: int
    """Layers of the file with the old name that act on nothing."""

    def __str__(self) -> str:
        fit = f"would fit {self.fit} of {self.layers} layers"
        return f"renaming {self.old} to {self.new} {fit}" if self.new else f"leaving out {self.old} {fit}"


def load_with_renames(file: AdapterFile, components: Mapping[str, nn.Module]) -> tuple[NetworkReport, list[Rename]]:
    """Resolve a file against a model and propose names for the layers that act on nothing.

    Args:
        file: an adapter file; no tensor is changed.
        components: diffusers' component name -> module, which may be on meta.

    Returns:
        The report, and the proposals, of most layers first. None is made for a file of another model family, nor for
        names that fit fewer than half of their layers.

    Raises:
        FileError: the file is no adapter that Remora knows.
        ComponentError: the components are no mapping of names to modules.
    """
    parsed = ParsedFile(file)
    indexes = [LayerIndex(name, module) for name, module in components.items()]
    report = Network(parsed, indexes).report
    made_for, model = report.family, report.model
    if made_for is not None and made_for.sure and model is not None and made_for.differs(model):
        return report, []  # a mere guess may come from the very names that are wrong
    lost = {one.key for one in report.unused if one.cause in _LOST}
    groups: list[Group] = []
    acting: list[Group] = []
    for group in parsed.groups:
        (groups if lost.intersection(group.keys.values()) else acting).append(group)
    taken: _Taken = {}
    for group in acting:
        for index in indexes:
            place = index.find(group.module, flattened=group.flattened)
            for target, _ in () if place is None else place.pieces:
                taken.setdefault(target.path, []).append(target)
    return report, _joined(_proposals(groups, indexes, taken))


_Numbers = tuple[str, ...]
_Taken = dict[str, list[Target]]
"""Path of a layer of the model -> what of it the file changes already."""


@dataclass(frozen=True, slots=True)
class _Pattern:
    """Layers whose names differ in numbers alone."""

    name: str
    places: Mapping[_Numbers, Sequence[Place]]

    def is_own(self, flat: bool) -> bool:
        """Return whether the model itself has such a name, and not another program."""
        place = next(iter(self.places.values()))[0]
        numbers = next(iter(self.places))
        own = (place.windows[0].base or place.windows[0]).name
        return self.name.format(*numbers) == (own.replace(".", "_") if flat else own)

    def fit(self, groups: Mapping[_Numbers, Group], taken: _Taken) -> int:
        """Count the groups that have a free place of their shape here."""
        found = [(group, self.places.get(numbers, ())) for numbers, group in groups.items()]
        return sum(any(_fits(group, place, taken) for place in places) for group, places in found)


def _fits(group: Group, place: Place, taken: _Taken) -> bool:
    if group.own_site is None or group.own_site.shape != place.shape:
        return False
    return not any(target.overlaps(other) for target, _ in place.pieces for other in taken.get(target.path, ()))


def _proposals(groups: Sequence[Group], indexes: Sequence[LayerIndex], taken: _Taken) -> Iterator[Rename]:
    """Yield the best new name of each pattern; no new name is proposed for two."""
    known: dict[bool, list[_Pattern]] = {}
    ranked = []
    for flat in {group.flattened for group in groups}:
        tables = [index.flat if flat else index.dotted for index in indexes]
        known[flat] = [
            _Pattern(*one) for one in _patterns((name, place) for own in tables for name, place in own.items())
        ]
        for name, found in _patterns((group.module, group) for group in groups if group.flattened == flat):
            members = {numbers: own[0] for numbers, own in found.items()}
            for pattern in known[flat]:
                fit = pattern.fit(members, taken)
                near = _likeness(name, pattern.name) if fit and 2 * fit >= len(members) else 0.0
                if near >= _NEAR:
                    near += _OWN * pattern.is_own(flat)
                    ranked.append((fit / len(members), near, name, pattern.name, fit, members))
    used: set[int] = set()
    new: set[str] = set()
    for _, _, name, other, fit, members in sorted(ranked, key=itemgetter(0, 1), reverse=True):
        if other not in new and not used.intersection(map(id, members.values())):
            used.update(map(id, members.values()))
            new.add(other)
            yield Rename(name, other, fit, len(members))


def _patterns(named: Iterable[tuple[str, T]]) -> Iterator[tuple[str, dict[_Numbers, list[T]]]]:
    """Yield names with `{}` for each number, and once more with those numbers that all of them have (`to_out.0`)."""
    found: dict[str, dict[_Numbers, list[T]]] = {}
    for full, one in named:
        spaced = full.replace("_", " ")  # which is a letter to a regular expression, beside a number
        name = _NUMBER.sub("{}", spaced).replace(" ", "_")
        found.setdefault(name, {}).setdefault(tuple(_NUMBER.findall(spaced)), []).append(one)
    for name, members in found.items():
        yield name, members
        columns = list(zip(*members, strict=True))
        fixed = [len(set(column)) == 1 for column in columns]
        if any(fixed):
            shown = name.format(*[column[0] if same else "{}" for column, same in zip(columns, fixed, strict=True)])
            kept = {
                tuple([number for number, same in zip(numbers, fixed, strict=True) if not same]): own
                for numbers, own in members.items()
            }
            yield shown, kept


def _likeness(old: str, new: str) -> float:
    """Compare names without numbers, as a whole and by their last part, which tells a query from a key."""
    mine, its = ([step for step in _STEP.split(name) if step.isidentifier()] or [""] for name in (old, new))
    whole = SequenceMatcher(None, ".".join(mine), ".".join(its)).ratio()
    return (2 * whole + SequenceMatcher(None, mine[-1], its[-1]).ratio()) / 3


def _joined(found: Iterable[Rename]) -> list[Rename]:
    """Return proposals without what stays at the end of a name, those that say the same as one."""
    sums: dict[tuple[str, str], list[int]] = {}
    for one in found:
        counts = sums.setdefault(_shortened(one.old, one.new), [0, 0])
        counts[0] += one.fit
        counts[1] += one.layers
    made = [Rename(old, new, *counts) for (old, new), counts in sums.items()]
    return sorted(made, key=lambda one: (-one.fit, one.old))


def _shortened(old: str, new: str) -> tuple[str, str]:
    """Take away the whole steps at the end that two names share; one name keeps at least one step."""
    mine, its = (re.split(r"(?<=[._])", name) for name in (old, new))
    while len(mine) > 1 and its and mine[-1] == its[-1]:
        mine.pop()
        its.pop()
    return "".join(mine).rstrip("._"), "".join(its).rstrip("._")
