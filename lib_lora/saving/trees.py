"""The layers of a file in the tree of names that its readers know: fused where that has them as one, or apart.

The names are those by which Remora finds layers in files, the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from ..adapters.base import Factors
from ..errors import ComponentError
from ..files.components import is_denoiser, role
from ..naming.architectures.base import Alias, Architecture, architecture_of
from ..naming.index import LayerIndex, family_of_model
from ..naming.places import Place, Target
from .difference import Difference, Magnitude

Reader = Literal["kohya", "comfy", "diffusers"]
"""The program that a file is named for: kohya is sd-scripts and musubi-tuner."""


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


def in_tree(weights: Sequence[ChangedWeight], indexes: Mapping[str, LayerIndex], reader: Reader) -> list[ChangedWeight]:
    """Return the layers of a file of weights, in the order of the weights.

    Args:
        weights: that change.
        indexes: the layers of the model, by component.
        reader: whose names the file has.

    Raises:
        ComponentError: a layer has no such name, as the model lacks what is one layer with it there.
    """
    trees = {name: _tree(index, reader) for name, index in indexes.items()}
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


def family_of_denoiser(index: LayerIndex) -> Architecture | None:
    """Return the architecture of a denoiser; None for a UNet, for other components, and where nothing tells."""
    has_own = index.component != "unet" and is_denoiser(index.component)
    return architecture_of(family_of_model([index])) if has_own else None


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


def _tree(index: LayerIndex, reader: Reader) -> dict[str, Place | None]:
    """Return the layers that files name otherwise than the model does; None for a layer that has no such name.

    If a layer has several names, the first in the table of the family counts.
    """
    architecture = family_of_denoiser(index)
    names = [] if architecture is None else _names_of(architecture, index.component, reader)
    ours, parts = [one for one, _ in names], [other for _, other in names]
    found, taken = dict[str, Place | None](), list[Target]()
    for target in index.targets if names else ():
        if target.rows is not None or (reader == "diffusers" and _first(ours, target.name) is not None):
            continue  # diffusers itself may have two names for a family, and a model those that it has
        known = index.names[target.path]
        ranked = sorted([(number, name) for name in known if (number := _first(ours, name)) is not None])
        fused = [number for name in known if (number := _first(parts, name)) is not None]
        if fused and (not ranked or min(fused) < ranked[0][0]):
            found[target.name] = None  # the other parts are missing
            continue
        for _, name in ranked:
            windows = index.dotted[name].windows
            if not any(_meet(one, other) for one in windows for other in taken):
                taken += windows
                found |= {} if name == target.name else {name: index.dotted[name]}
    return found


def _names_of(
    architecture: Architecture, component: str, reader: Reader
) -> list[tuple[re.Pattern[str], re.Pattern[str] | None]]:
    """Return patterns of names that a reader has for layers, and of the parts that a fused one has elsewhere.

    The first ones count. Where ComfyUI alone has another name than diffusers for a layer, kohya's scripts have the name
    that diffusers has.
    """
    count = len(architecture.aliases) - len(architecture.comfy)
    own = [(alias, reader != "diffusers") for alias in architecture.aliases[:count]]
    comfy = [(alias, reader == "comfy") for alias in architecture.comfy]
    first, others = (comfy, own) if reader == "comfy" else (own, comfy)
    known = {part for alias, _ in first for part in alias.parts}
    found = list[tuple[re.Pattern[str], re.Pattern[str] | None]]()
    for alias, is_native in (*first, *(one for one in others if known.isdisjoint(one[0].parts))):
        if alias.component in (component, role(component)):
            names = (alias.native,) if is_native else alias.parts
            parts = _pattern(alias, *alias.parts) if is_native and len(alias.parts) > 1 else None
            found.append((_pattern(alias, *names), parts))
    return found


def _pattern(alias: Alias, *names: str) -> re.Pattern[str]:
    """Return a pattern of these names of an alias, of which `{}` stands for a number, and of what is below them."""
    every = "|".join([re.escape(name).replace(r"\{\}", r"\d+") for name in names])
    return re.compile(rf"(?:{every})(?:\..+)?" if isinstance(alias.diffusers, str) else every)


def _first(patterns: Sequence[re.Pattern[str] | None], name: str) -> int | None:
    return next((i for i, one in enumerate(patterns) if one is not None and one.fullmatch(name)), None)


def _meet(one: Target, other: Target) -> bool:
    return (one.path, one.param) == (other.path, other.param) and one.overlaps(other)
