"""One file, resolved against a model: which adapter acts on which layer, and what became of every key."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from ..adapters._narrow import Narrow
from ..adapters._part import part_of
from ..adapters.base import Adapter, At
from ..errors import ComponentError, FileError, NumberError
from ..files.components import EXACT, candidates, noise_of
from ..files.file import AdapterFile
from ..files.reading import USUAL, Reading
from ..report import Family, NetworkReport, Unused
from ..weights.base_weight import read_base_weight
from .blocks import BlockNames
from .families import alias_table, family_of_model, input_layers
from .index import LayerIndex, blocks_of, check_named
from .numbered import Numbered, numbered
from .parsed import Group, Miss, Outcome, ParsedFile, key_formats, misfit
from .places import Place, Target
from .recipe import Recipe
from .whole import Whole

_PLURAL = {
    "linear": "linear layers",
    "conv": "convolutions",
    "embedding": "embeddings",
    "norm": "norms",
    "attention": "fused attention",
}


@dataclass(frozen=True, slots=True)
class Bound:
    """An adapter and where it acts."""

    component: str
    target: Target
    adapter: Adapter
    place: Place
    """The file's layer, of which `target` is the whole, or one of several."""

    @property
    def weight(self) -> tuple[str, str, str]:
        """Component, layer and parameter."""
        return self.component, self.target.path, self.target.param


@dataclass(frozen=True, slots=True)
class _Asked:
    """A layer of the file, and where it may act."""

    group: Group
    tiers: Sequence[Sequence[tuple[str, Place]]]
    """Component and place, the likeliest first; those of one tier together."""
    meant: Sequence[str]
    """The components that its keys speak of."""
    absence: Miss
    """Why it acts on nothing, if there is no such place."""

    @property
    def turn(self) -> int:
        """Layers that the file has fused come first, parts of the model's last.

        A file may have a fused layer and its parts, too: SimpleTuner's are empty then, others say the same twice.
        """
        place = next((place for tier in self.tiers for _, place in tier), None)
        if place is None or place.target is not None:
            return 1
        return 0 if len({one.target.name for one in place.segments}) > 1 else 2


class Network:
    """One file, resolved against the layers of a model; attached to nothing."""

    def __init__(self, parsed: ParsedFile, indexes: Sequence[LayerIndex], reading: Reading = USUAL) -> None:
        self.file = parsed.file
        self._parsed = parsed
        self._reading = reading
        self._indexes = {index.component: index for index in indexes}
        self._numbers: dict[tuple[str, str | None, str], Numbered] = {}
        self._family = family_of_model(indexes)
        self._unused: list[Unused] = []
        self._by_weight: dict[tuple[str, str, str], list[Bound]] = {}
        asked = sorted(map(self._asked, parsed.groups), key=lambda one: one.turn)
        acting: list[Group] = []
        idle: list[_Asked] = []
        for one in asked:
            if self._bind(one):
                acting.append(one.group)
            else:
                idle.append(one)
        self.bound: tuple[Bound, ...] = tuple(one for own in self._by_weight.values() for one in own)
        self._unused += parsed.unshared(acting)
        self.report = parsed.report(
            Outcome(
                adapters=[one.adapter for one in self.bound],
                idle=[one.group for one in idle],
                absent=sum(not one.meant for one in idle),
                unused=self._unused,
                changed=len({(one.component, one.target.path) for one in self.bound}),
                components=frozenset(one.component for one in self.bound),
                noise=noise_of({one.component for one in self.bound}, self._indexes),
                model=self._family,
            )
        )

    @property
    def embeddings(self) -> dict[str, dict[str, Tensor]]:
        """{name: {part: vectors (tokens, width)}} of the textual inversions that came in the file.

        Parts are as the file spells them: `string_to_param.*` for one text encoder, `clip_l` and `clip_g` for two.
        """
        return self._parsed.embeddings()

    @cached_property
    def largest_change(self) -> float:
        """Return how large a change may be, roughly: the most that the largest numbers of one adapter's tensors make.

        Reads all tensors of the file; where it is gone or changed, every file counts alike.
        """
        try:
            return max((_largest_product(self.file.private(one.adapter)) for one in self.bound), default=0.0)
        except FileError:
            return 1.0

    @property
    def adapters(self) -> dict[str, dict[str, Adapter]]:
        """{component: {layer name in the model: adapter}}."""
        found: dict[str, dict[str, Adapter]] = {}
        for one in self.bound:
            found.setdefault(one.component, {})[one.target.name] = one.adapter
        return found

    def delta_weight(self, component: str, path: str, dtype: torch.dtype = torch.float32) -> Tensor:
        """The dense change of one layer's weight at multiplier 1, on the CPU.

        Args:
            component: diffusers' name of the component.
            path: the layer, in any spelling the architecture knows; it may be several of the model's, or part of one.
            dtype: in which it is computed.

        Raises:
            ComponentError: the file does not change that layer, or a base weight it needs cannot be read.
            FileError: the file changed on disk.
        """
        index = self._indexes.get(component)
        place = None if index is None else index.find(path)
        params = set() if place is None else {(one.target.path, one.target.param) for one in place.segments}
        found = [one for one in self.bound if (one.target.path, one.target.param) in params]
        found = [one for one in found if one.component == component]
        if index is None or place is None or not found:
            raise ComponentError(f"{self.file.path.name} does not change {component}.{path}")
        self.file.verify()
        total = torch.zeros(place.shape, dtype=dtype)
        for one in found:
            _add_delta(total, place, one, index)
        return total

    def _asked(self, group: Group) -> _Asked:
        """Where a group of the file may act."""
        tiers = candidates(group.component, list(self._indexes), self._parsed.experts)
        meant = _meant(group, tiers, self._indexes)
        absence = _absence(group, meant)
        if key_formats()[group.format].numberings:
            return self._asked_by_number(group, tiers, meant, absence)
        found = [
            [
                (name, place)
                for name in tier
                if (place := self._indexes[name].find(group.module, flattened=group.flattened)) is not None
            ]
            for tier in tiers
        ]
        return _Asked(group, found, meant, absence)

    def _asked_by_number(
        self, group: Group, tiers: Sequence[Sequence[str]], meant: Sequence[str], absence: Miss
    ) -> _Asked:
        found = []
        for tier in tiers:
            meanings = [(name, self._numbered(name, group)) for name in tier]
            found.append([(name, one.places[group.module]) for name, one in meanings if group.module in one.places])
            why = next((one for _, one in meanings if group.module not in one.places), None)
            absence = absence if why is None else Miss("no_module", why.reason, why.detail)
        return _Asked(group, found, meant, absence)

    def _numbered(self, component: str, group: Group) -> Numbered:
        """What the numbers mean that a group and its like have for names."""
        alike = group.format, group.component, component
        if alike not in self._numbers:
            parsed, header = self._parsed, self.file.metadata.get(group.component or "")
            shapes = {
                one.module: parsed.own_shape(one) for one in parsed.groups if (one.format, one.component) == alike[:2]
            }
            numberings = key_formats()[group.format].numberings
            self._numbers[alike] = numbered(shapes, self._indexes[component], numberings, header)
        return self._numbers[alike]

    def _bind(self, asked: _Asked) -> bool:
        """Let a group act where it fits; False where that is nowhere, which is then in the report."""
        group = asked.group
        recipe = group.recipe
        if recipe is None:
            self._unused.extend(group.unread())
            return False
        miss = asked.absence
        for tier in asked.tiers:
            found: list[Bound] = []
            for component, place in tier:
                fit = self._fit(component, place, group, recipe)
                if not isinstance(fit, Miss):
                    found += fit
                elif component in asked.meant:
                    miss = fit  # in another component than the one the key means, only what fits counts
            if found:
                try:
                    self._parsed.check_finite(group)
                except NumberError as error:
                    miss = misfit(error)
                    break
                return self._take(group, found)
        self._unused.extend(miss.of(group))
        return False

    def _fit(self, component: str, place: Place, group: Group, recipe: Recipe) -> list[Bound] | Miss:
        """A group on each layer of the model that has a part in a place, or why it does not fit."""
        if place.kind not in recipe.kinds:
            return Miss("layer_kind", f"not defined for {_PLURAL[place.kind]}", f"{component}.{place.name}")
        try:
            adapter = self._parsed.adapter(group, recipe, place.site, self._reading)
        except ValueError as error:
            widened = self._widened(component, place, group, recipe)
            if widened is None:
                return misfit(error, f"{component}.{place.name}")
            adapter = widened
        return [
            Bound(component, piece.target, adapter if piece.rows is None else part_of(adapter, piece.rows), place)
            for piece in place.pieces()
        ]

    def _widened(self, component: str, place: Place, group: Group, recipe: Recipe) -> Adapter | None:
        """A group as an adapter of a layer that takes more than the latents; None where it is not just that."""
        index, own, made_for = self._indexes[component], self._parsed.own_shape(group), self._parsed.family
        if own is None or (made_for is not None and self._family is not None and made_for.name != self._family.name):
            return None
        if not any(index.find(name) == place for name in input_layers(self._family)):
            return None
        out, kernel = place.shape[0], place.shape[2:]
        inputs = math.prod(own[1:]) // math.prod(kernel)  # a kernel may be flattened into the inputs
        own = (out, inputs, *kernel)
        if inputs >= place.shape[1]:
            return None
        try:
            adapter = self._parsed.adapter(group, recipe, replace(place.site, shape=own), self._reading)
        except ValueError:
            return None  # the report says what does not fit the layer as it is
        return None if adapter.reads_base else Narrow(adapter, inputs, place.shape[1])

    def _take(self, group: Group, found: Sequence[Bound]) -> bool:
        """Let adapters act, unless one of the file changes some of their rows already."""
        for one in found:
            others = self._by_weight.get(one.weight, ())
            if any(one.target.overlaps(other.target) for other in others):
                miss = Miss("second_adapter", f"a second adapter for {one.component}.{one.target.name}")
                self._unused.extend(miss.of(group))
                return False
        for one in found:
            self._by_weight.setdefault(one.weight, []).append(one)
        return True


def _meant(group: Group, tiers: Sequence[Sequence[str]], present: Collection[str]) -> Sequence[str]:
    """The components that the keys of a group speak of; none where they name one that is not there."""
    if group.component not in EXACT:
        return [name for tier in tiers for name in tier]
    return tiers[0] if group.component in present and tiers else ()


def _absence(group: Group, meant: Sequence[str]) -> Miss:
    """Why a group acts on nothing, if no component has a layer of its name."""
    if not meant:
        return Miss("no_component", f"component {group.component} is absent in this model")
    return Miss("no_module", f"no module of that name in {', '.join(meant)}")


def _add_delta(total: Tensor, place: Place, one: Bound, index: LayerIndex) -> None:
    """Add the dense change by one adapter to what it changes of a place."""
    target, adapter = one.target, one.adapter
    weight = None
    if adapter.reads_whole:
        adapter = adapter.on(Whole(one.place, index).weight)
    if adapter.reads_base:
        weight = read_base_weight(index.module(target.path), target.param).to("cpu", total.dtype)
        weight = weight if target.rows is None else weight[slice(*target.rows)]
    delta = adapter.delta_weight(At(torch.device("cpu"), total.dtype, weight=weight)).reshape(target.shape)
    first, offset = 0 if target.rows is None else target.rows[0], 0
    for segment in place.segments:
        if (segment.target.path, segment.target.param) == (target.path, target.param):
            start = segment.start + (segment.target.rows or (0,))[0] - first
            low, high = max(start, 0), min(start + segment.count, target.shape[0])
            if low < high:
                total[offset + low - start : offset + high - start] += delta[low:high]
        offset += segment.count


def load_network(path: str | Path, components: Mapping[str, nn.Module], *, reading: Reading = USUAL) -> Network:
    """Read a file and resolve it against `components`; attaches nothing, and works on modules on meta.

    Args:
        path: a safetensors file.
        components: diffusers' component name -> module.
        reading: what to make of a file that other programs read otherwise than it was trained.

    Raises:
        FileError: the file cannot be read; also its subclasses, see `ParsedFile`.
        ComponentError: the components are no mapping of names to modules.
    """
    check_named(components, "load_network(path, {})")
    indexes = [LayerIndex(name, module, alias_table()) for name, module in components.items()]
    return Network(ParsedFile(AdapterFile.open(path)), indexes, reading)


def _largest_product(adapter: Adapter) -> float:
    found = getattr(adapter, "scale", 1.0)
    for _, tensor in adapter.tensors():
        if tensor.is_floating_point() and tensor.numel():
            found *= float(tensor.abs().max())
    return abs(float(found))


def inspect_file(path: str | Path) -> NetworkReport:
    """Report on a file by itself, without a model.

    Raises:
        FileError: the file cannot be read; also its subclasses, see `ParsedFile`.
    """
    return ParsedFile(AdapterFile.open(path)).report()


def model_family(components: Mapping[str, nn.Module]) -> Family | None:
    """Tell which family the model of these components is; None where nothing tells.

    Args:
        components: diffusers' component name -> module.

    Raises:
        ComponentError: they are no mapping of names to modules.
    """
    check_named(components, "model_family({})")
    return family_of_model(LayerIndex(name, module, alias_table()) for name, module in components.items())


def model_blocks(components: Mapping[str, nn.Module]) -> BlockNames:
    """Tell the blocks of the model of these components, which strengths may have weights for.

    Args:
        components: diffusers' component name -> module.

    Raises:
        ComponentError: they are no mapping of names to modules.
    """
    check_named(components, "model_blocks({})")
    return blocks_of([LayerIndex(name, module, alias_table()) for name, module in components.items()])
