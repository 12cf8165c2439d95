"""The layers of a file in the tree of names that its readers know: fused where that has them as one, or apart.

The names are those by which Remora finds layers in files, the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from ..adapters.base import Factors
from ..errors import ComponentError
from ..files.components import is_denoiser, role
from ..naming.architectures.base import Alias, Architecture, architecture_of, known_architectures
from ..naming.index import LayerIndex, family_of_model
from ..naming.places import Place, Target
from .difference import Difference, Magnitude

_BOTH = frozenset({"auraflow", "chroma", "flux", "flux2", "hunyuan_dit", "ltx", "lumina2", "pixart", "sd3", "z_image"})
FAMILIES = {True: _BOTH | {"anima", "cosmos_predict2", "mochi", "wan"}, False: _BOTH}
"""Families whose names are known in the tree of their own code, which ComfyUI and kohya's scripts read; and in that of
diffusers. Of other families files have the names of the model.
"""


class ChangedWeight(Protocol):
    """A weight of a model, and its change; see `StackWeight`."""

    @property
    def target(self) -> Target: ...
    @property
    def place(self) -> tuple[str, str]: ...
    def difference(self) -> Difference:
        """Return the change."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a weight, and where they begin in a layer of the file."""

    weight: ChangedWeight
    rows: slice
    start: int

    @property
    def count(self) -> int:
        return int(self.rows.stop - self.rows.start)

    def placed(self, own: Tensor, length: int, whole: Tensor | None = None) -> Tensor:
        """Add its rows of a tensor at their place among all rows, which are zero at first."""
        if whole is None:
            whole = own.new_zeros(length, *own.shape[1:])
        whole[self.start : self.start + self.count] += own[self.rows]
        return whole


@dataclass(frozen=True, slots=True)
class TreeLayer:
    """A layer of a file that is several layers of the model, or a part of one: a `ChangedWeight`."""

    target: Target
    place: tuple[str, str]
    parts: tuple[_Part, ...]

    def difference(self) -> Difference:
        """Return the changes of its parts, each on its own rows. One part is in memory beside the whole."""
        shape, found = self.target.shape, list[tuple[_Part, Difference]]()
        rest: Tensor | None = None
        bias: Tensor | None = None
        for one in self.parts:
            own = one.weight.difference()
            rest = rest if own.rest is None else one.placed(own.rest, shape[0], rest)
            bias = bias if own.bias is None else one.placed(own.bias, shape[0], bias)
            found.append((one, replace(own, rest=None, bias=None)))
            del own
        pairs = _joined([(one, pair) for one, own in found for pair in own.pairs], shape[0])
        return Difference(shape, pairs, None if rest is None else rest.reshape(shape), bias, self._dora(found))

    def _dora(self, found: Iterable[tuple[_Part, Difference]]) -> Magnitude | None:
        """Return the DoRA along rows that all parts are; None without one."""
        length = self.target.shape[0]
        doras = [(one, own.dora) for one, own in found if own.dora is not None and own.dora.norms.shape[1] == 1]
        if sum([one.count for one, _ in doras]) < length:
            return None
        pairs = _joined([(one, dora.pair) for one, dora in doras], length)
        pair = Factors(torch.cat([one.down for one in pairs]), torch.cat([one.up for one in pairs], 1))
        norms = [one.placed(dora.norms, length) for one, dora in doras]
        return Magnitude(pair, sum(norms[1:], norms[0]))


def _joined(pairs: Iterable[tuple[_Part, Factors]], length: int) -> tuple[Factors, ...]:
    """Return the pairs of parts, each on its own rows; one for all that have `down` in common, as split layers have."""
    found = list[Factors]()
    for part, pair in pairs:
        up = part.placed(pair.up, length)
        same = next((i for i, one in enumerate(found) if torch.equal(one.down, pair.down)), len(found))
        found[same : same + 1] = [Factors(pair.down, found[same].up + up if same < len(found) else up)]
    return tuple(found)


def in_tree(
    weights: Sequence[ChangedWeight], indexes: Mapping[str, LayerIndex], *, native: bool
) -> list[ChangedWeight]:
    """Return the layers of a file of weights, in the order of the weights.

    Args:
        weights: that change.
        indexes: the layers of the model, by component.
        native: whether the names come from the model's own code, or else from diffusers.

    Raises:
        ComponentError: a layer has no such name, as the model lacks what is one layer with it there.
    """
    trees = {name: _tree(index, native=native) for name, index in indexes.items()}
    found = dict[tuple[str, str], ChangedWeight | tuple[Place, list[_Part]]]()
    for weight in weights:
        component, name = weight.place
        parts = _parts(weight, trees[component])
        for other, place, part in parts:
            known = found.setdefault((component, other), (place, []))
            assert isinstance(known, tuple)
            known[1].append(part)
        if not parts and name not in trees[component]:
            found[component, name] = weight
        elif sum([part.count for *_, part in parts]) < weight.target.shape[0]:
            text = "is one layer with others in such a file, which the model has not"
            raise ComponentError(f"{component}.{name} {text}")
    return [
        TreeLayer(_target(key[1], one[0]), key, tuple(one[1])) if isinstance(one, tuple) else one
        for key, one in found.items()
    ]


def tree_of(index: LayerIndex, *, native: bool) -> Architecture | None:
    """Return the architecture of a component whose names in a tree are known; None for other components."""
    found = architecture_of(family_of_model([index])) if is_denoiser(index.component) else None
    return found if found is not None and found.name in FAMILIES[native] else None


def _target(name: str, place: Place) -> Target:
    """Return a layer of a file as if the model had it."""
    return replace(place.windows[0], name=name, shape=place.shape, rows=None, outputs=0, base=None)


def _parts(weight: ChangedWeight, tree: Mapping[str, Place | None]) -> list[tuple[str, Place, _Part]]:
    """Return the layers of a file that have rows of a weight, and which."""
    own, found = weight.target, list[tuple[str, Place, _Part]]()
    for name, place in tree.items():
        start = 0
        for window in () if place is None else place.windows:
            low, high = max(window.first, own.first), min(window.first + window.shape[0], own.first + own.shape[0])
            if (window.path, window.param) == (own.path, own.param) and low < high:
                rows = slice(low - own.first, high - own.first)
                assert place is not None
                found.append((name, place, _Part(weight, rows, start + low - window.first)))
            start += window.shape[0]
    return found


def _tree(index: LayerIndex, *, native: bool) -> dict[str, Place | None]:
    """Return the layers that files name otherwise than the model does; None for a layer that has no such name.

    If a layer has several names, the name of most rows counts. Next counts the name that fewer families have, as FLUX.2
    has the table of FLUX.1 and names of its own. Then the name with fewer dots counts, then the first in the list.
    """
    architecture = tree_of(index, native=native)
    if architecture is None:
        return {}
    own = [one for one in architecture.aliases if one.component in (index.component, role(index.component))]
    having = [sum([alias in one.aliases for one in known_architectures()]) for alias in own]
    trees = [_pattern(one, one.native) for one in own], [_pattern(one, *one.parts) for one in own]
    ours, theirs = trees if native else trees[::-1]
    found, taken = dict[str, Place | None](), list[Target]()
    for target in index.targets:
        if target.rows is not None or any(one.fullmatch(target.name) for one in ours):
            continue
        numbers = {name: _first(ours, name) for name in index.names[target.path]}
        ranked = [
            (-index.dotted[name].shape[0], having[number], name.count("."), number, name)
            for name, number in numbers.items()
            if number is not None and not _is_longer(name, numbers)
        ]
        for *_, name in sorted(ranked):
            windows = index.dotted[name].windows
            if not any(_meet(one, other) for one in windows for other in taken):
                found[name] = index.dotted[name]
                taken += windows
        if not ranked and any(one.fullmatch(target.name) for one in theirs):
            found[target.name] = None
    return found


def _pattern(alias: Alias, *names: str) -> re.Pattern[str]:
    """Return a pattern of these names of an alias, of which `{}` stands for a number, and of what is below them."""
    every = "|".join([re.escape(name).replace(r"\{\}", r"\d+") for name in names])
    return re.compile(rf"(?:{every})(?:\..+)?" if isinstance(alias.diffusers, str) else every)


def _first(patterns: Sequence[re.Pattern[str]], name: str) -> int | None:
    return next((i for i, one in enumerate(patterns) if one.fullmatch(name)), None)


def _is_longer(name: str, numbers: Mapping[str, int | None]) -> bool:
    """Return whether a name is another one with something before it, as `net.` in some checkpoints."""
    return any(number is not None and name.endswith(f".{other}") for other, number in numbers.items())


def _meet(one: Target, other: Target) -> bool:
    return (one.path, one.param) == (other.path, other.param) and one.overlaps(other)
