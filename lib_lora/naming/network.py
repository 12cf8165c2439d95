"""One file, resolved against a model: which adapter acts on which layer, and what became of every key."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path

import torch
from torch import Tensor, nn

from ..adapters._narrow import Narrow
from ..adapters._part import part_of
from ..adapters.base import Adapter, At
from ..errors import ComponentError, FileError
from ..files.components import EXACT, candidates, noise_of
from ..files.config import USUAL, Reading
from ..files.file import AdapterFile, Stamp, stamp_of
from ..files.formats.base import NamesOf, NumberingError
from ..registry import version
from ..report import Family, NetworkReport, Unused
from ..weights.base_weight import read_base_weight
from .architectures.base import input_layers
from .blocks import BlockNames
from .index import LayerIndex, alias_table, blocks_of, check_named, family_of_model
from .parsed import Group, Miss, ParsedFile, Recipe, key_formats, misfit
from .places import Place, Target
from .whole import Whole

_PLURAL = {
    "linear": "linear layers",
    "conv": "convolutions",
    "embedding": "embeddings",
    "norm": "norms",
    "attention": "fused attention",
}
_MODELS = 4
"""Models, or ways of reading it, for which one file is kept resolved."""


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
        """Return component, layer and parameter."""
        return self.component, self.target.path, self.target.param


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A layer of the file, and where it may act."""

    group: Group
    tiers: Sequence[Sequence[tuple[str, Place]]]
    """Component and place, the likeliest first; all of one tier are meant together."""
    meant: Sequence[str]
    """The components that its keys speak of."""
    absence: Miss
    """Why it acts on nothing, if there is no such place."""
    turn: int
    """0 for a layer that the file has fused, which comes first, 2 for a part of a layer of the model, else 1.

    A file may have a fused layer and its parts, too: SimpleTuner's are empty then, others say the same twice.
    """


class Network:
    """One file, resolved against the layers of a model; attached to nothing."""

    def __init__(self, parsed: ParsedFile, indexes: Sequence[LayerIndex], reading: Reading = USUAL) -> None:
        self.file = parsed.file
        self._parsed = parsed
        self._reading = reading
        self._indexes = {index.component: index for index in indexes}
        self._scopes: dict[str | None, tuple[list[tuple[str, ...]], Sequence[str], Miss]] = {}
        self._numbers: dict[tuple[str, str | None, str], dict[str, str] | NumberingError] = {}
        self._family = family_of_model(indexes)
        unused: list[Unused] = []
        by_weight: dict[tuple[str, str, str], list[Bound]] = {}
        acting: list[Group] = []
        idle: list[_Candidate] = []
        candidates = sorted([self._candidate(group) for group in parsed.groups], key=attrgetter("turn"))
        fits = [(one, self._fit(one)) for one in candidates]
        bad = parsed.not_finite([one.group for one, fit in fits if not isinstance(fit, Miss)])
        for one, fit in fits:
            miss = fit if isinstance(fit, Miss) else self._add(one.group, fit, by_weight, bad)
            if miss is None:
                acting.append(one.group)
            else:
                idle.append(one)
                unused += miss.of(one.group)
        self.bound: tuple[Bound, ...] = tuple([one for own in by_weight.values() for one in own])
        components = frozenset([one.component for one in self.bound])
        self.report = replace(
            parsed.report([one.group for one in idle], [one.adapter for one in self.bound]),
            hit=len(acting),
            changed=len({(one.component, one.target.path) for one in self.bound}),
            unused=(*parsed.unused, *unused, *parsed.unshared(acting)),
            resolved=True,
            components=components,
            noise=noise_of(components, self._indexes),
            absent=len([one for one in idle if not one.meant]),
            model=self._family,
        )

    @property
    def embeddings(self) -> dict[str, dict[str, Tensor]]:
        """Return {name: {part: vectors (tokens, width)}} of the textual inversions that came in the file.

        Parts are as the file spells them: `string_to_param.*` for one text encoder, `clip_l` and `clip_g` for two.
        """
        return self._parsed.embeddings()

    @cached_property
    def largest_change(self) -> float:
        """Return how large a change may be, roughly: the most that the largest numbers of one adapter's tensors make.

        Reads all tensors of the file; where it is gone or changed, every file counts alike.
        """
        most = 0.0
        try:
            for one in self.bound:
                found = getattr(one.adapter, "scale", 1.0)
                for _, tensor in self.file.private(one.adapter).tensors():
                    if tensor.is_floating_point() and tensor.numel():
                        found *= float(tensor.abs().max())
                most = max(most, abs(float(found)))
        except FileError:
            return 1.0
        return most

    @property
    def adapters(self) -> dict[str, dict[str, Adapter]]:
        """Return {component: {layer name in the model: adapter}}."""
        found: dict[str, dict[str, Adapter]] = {}
        for one in self.bound:
            found.setdefault(one.component, {})[one.target.name] = one.adapter
        return found

    def delta_weight(self, component: str, path: str, dtype: torch.dtype = torch.float32) -> Tensor:
        """Compute the dense change of one layer's weight at multiplier 1, on the CPU.

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
        weights = [] if place is None else [(component, one.target.path, one.target.param) for one in place.segments]
        found = [one for one in self.bound if one.weight in weights]
        if index is None or place is None or not found:
            raise ComponentError(f"{self.file.path.name} does not change {component}.{path}")
        self.file.verify()
        total = torch.zeros(place.shape, dtype=dtype)
        for one in found:
            target, adapter, weight = one.target, one.adapter, None
            if adapter.reads_whole:
                adapter = adapter.on(Whole(one.place, index).weight)
            if adapter.reads_base:
                weight = read_base_weight(index.module(target.path), target.param).to("cpu", dtype)
                weight = weight if target.rows is None else weight[slice(*target.rows)]
            delta = adapter.delta_weight(At(torch.device("cpu"), dtype, weight=weight)).reshape(target.shape)
            for rows, own in place.rows_of(target):
                total[rows] += delta[own]
        return total

    def _candidate(self, group: Group) -> _Candidate:
        """Find where a group of the file may act."""
        if group.component not in self._scopes:
            self._scopes[group.component] = self._scope(group.component)
        tiers, meant, absence = self._scopes[group.component]
        places: list[list[tuple[str, Place]]] = []
        first: Place | None = None
        for tier in tiers:
            places.append([])
            for component in tier:
                name, flattened = group.module, group.flattened
                names_of = key_formats()[group.format].names_of
                if names_of is not None:
                    names = self._numbered(component, group, names_of)
                    if isinstance(names, NumberingError):
                        absence = Miss("no_module", names.reason, names.detail)
                        continue
                    name, flattened = names[name], False
                place = self._indexes[component].find(name, flattened=flattened)
                if place is not None:
                    places[-1].append((component, place))
                    first = first or place
        turn = 1
        if first is not None and first.target is None:
            turn = 0 if len({one.target.name for one in first.segments}) > 1 else 2
        return _Candidate(group, places, meant, absence, turn)

    def _scope(self, component: str | None) -> tuple[list[tuple[str, ...]], Sequence[str], Miss]:
        """Return the tiers of components for keys of one, the components they speak of, and the miss if none fits."""
        tiers = candidates(component, list(self._indexes), self._parsed.experts)
        meant: Sequence[str] = [name for tier in tiers for name in tier]
        if component in EXACT:
            meant = tiers[0] if component in self._indexes and tiers else ()
        if not meant:
            return tiers, meant, Miss("no_component", f"component {component} is absent in this model")
        return tiers, meant, Miss("no_module", f"no module of that name in {', '.join(meant)}")

    def _numbered(self, component: str, group: Group, names_of: NamesOf) -> dict[str, str] | NumberingError:
        """Return the names in a component of the layers that a group and all like it have numbers for."""
        alike = group.format, group.component, component
        if alike not in self._numbers:
            shapes = {
                one.module: None if one.own_site is None else one.own_site.shape
                for one in self._parsed.groups
                if (one.format, one.component) == alike[:2]
            }
            index, header = self._indexes[component], self.file.metadata.get(group.component or "")
            try:
                self._numbers[alike] = names_of(component, shapes, index.names(), index.find, header)
            except NumberingError as error:
                self._numbers[alike] = error
        return self._numbers[alike]

    def _fit(self, candidate: _Candidate) -> list[Bound] | Miss:
        """Make a group's adapters in the likeliest components that it fits, or tell why it fits nowhere."""
        group = candidate.group
        if group.recipe is None:
            return group.unread()
        miss = candidate.absence
        for tier in candidate.tiers:
            found: list[Bound] = []
            for component, place in tier:
                fit = self._bound(component, place, group, group.recipe)
                if not isinstance(fit, Miss):
                    found += fit
                elif component in candidate.meant:
                    miss = fit  # in another component than the one the key means, only what fits counts
            if found:
                return found
        return miss

    def _bound(self, component: str, place: Place, group: Group, recipe: Recipe) -> list[Bound] | Miss:
        """Make a group's adapter for each layer of the model with a part in a place, or tell why it does not fit."""
        kind = place.site.kind
        if kind not in recipe.kinds:
            return Miss("layer_kind", f"not defined for {_PLURAL[kind]}", f"{component}.{place.name}")
        try:
            adapter = self._parsed.adapter(group, recipe, place.site, self._reading)
        except ValueError as error:
            widened = self._widened(component, place, group, recipe)
            if widened is None:
                return misfit(error, f"{component}.{place.name}")
            adapter = widened
        return [
            Bound(component, piece.target, adapter if piece.rows is None else part_of(adapter, piece.rows), place)
            for piece in place.pieces
        ]

    def _widened(self, component: str, place: Place, group: Group, recipe: Recipe) -> Adapter | None:
        """Make an adapter of a layer that takes more than the latents; None where it is not just that."""
        index, made_for = self._indexes[component], self._parsed.family
        if group.own_site is None or (made_for and self._family and made_for.name != self._family.name):
            return None
        if not any(index.find(name) == place for name in input_layers(self._family)):
            return None
        out, kernel = place.shape[0], place.shape[2:]
        inputs = math.prod(group.own_site.shape[1:]) // math.prod(kernel)  # a kernel may be flattened into the inputs
        if inputs >= place.shape[1]:
            return None
        site = replace(place.site, shape=(out, inputs, *kernel))
        try:
            adapter = self._parsed.adapter(group, recipe, site, self._reading)
        except ValueError:
            return None  # the report says what does not fit the layer as it is
        return None if adapter.reads_base else Narrow(adapter, inputs, place.shape[1])

    def _add(
        self, group: Group, found: Sequence[Bound], by_weight: dict[tuple[str, str, str], list[Bound]], bad: set[str]
    ) -> Miss | None:
        """Let a group's adapters act, unless a number is not finite or others change these rows already."""
        spoiled = self._parsed.spoiled(group, bad) if bad else None
        if spoiled is not None:
            return spoiled
        others = [by_weight.setdefault(one.weight, []) for one in found]
        for one, own in zip(found, others, strict=True):
            for other in own:
                if one.target.overlaps(other.target):
                    return Miss("second_adapter", f"a second adapter for {one.component}.{one.target.name}")
        for one, own in zip(found, others, strict=True):
            own.append(one)
        return None


@dataclass(slots=True)
class _Kept:
    """One file, with its network for each model it was used with and each way it was read."""

    parsed: ParsedFile
    networks: OrderedDict[tuple[Reading, tuple[tuple[str, int], ...]], Network] = field(default_factory=OrderedDict)
    nbytes: int = field(init=False)
    """Bytes of all tensors in the file."""

    def __post_init__(self) -> None:
        self.nbytes = sum([info.end - info.start for info in self.parsed.file.infos.values()])


class NetworkCache:
    """Networks by file and model: the least recently used go first, those in force never.

    Args:
        count: how many files to keep.
        nbytes: how many bytes their tensors may have together, as the files have them; None for any.
    """

    def __init__(self, count: int, nbytes: int | None = None) -> None:
        self._count = count
        self._limit = nbytes
        self._files: OrderedDict[tuple[Path, Stamp, int], _Kept] = OrderedDict()

    def resolved(self, path: Path, indexes: Sequence[LayerIndex], reading: Reading = USUAL) -> Network:
        """Return the network of a file for a model. The cache may go beyond its limits until the next `trim`.

        Raises:
            LoraError: the file cannot be read, or no format or adapter kind knows it.
        """
        try:
            key = path, stamp_of(path.stat()), version()
        except OSError as error:
            raise FileError(path, f"cannot be read: {error.strerror or error}") from error
        began = time.perf_counter()
        kept = self._files.get(key)
        if kept is None:
            kept = self._files[key] = _Kept(ParsedFile(AdapterFile.open(path)))
        self._files.move_to_end(key)
        use = reading, tuple(index.signature for index in indexes)
        network = kept.networks.get(use)
        if network is None:
            network = kept.networks[use] = Network(kept.parsed, indexes, reading)
            network.report = replace(network.report, seconds=time.perf_counter() - began)
        kept.networks.move_to_end(use)
        return network

    def trim(self, in_force: Collection[Network] = ()) -> None:
        """Forget networks beyond the limits, the least recently used first, but none that is in force."""
        used = {id(network.file) for network in in_force}
        total = self.nbytes
        for key, kept in list(self._files.items()):
            while len(kept.networks) > _MODELS:
                kept.networks.popitem(last=False)
            if len(self._files) <= self._count and (self._limit is None or total <= self._limit):
                continue
            if id(kept.parsed.file) not in used:
                total -= kept.nbytes
                del self._files[key]

    def holds(self, network: Network) -> bool:
        """Return whether a network is still kept."""
        return any(network is one for kept in self._files.values() for one in kept.networks.values())

    def clear(self) -> None:
        """Forget all."""
        self._files.clear()

    @property
    def nbytes(self) -> int:
        """Return the bytes of the tensors of all files that are kept."""
        return sum(kept.nbytes for kept in self._files.values())

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the files that are kept, the least recently used first."""
        return tuple(path for path, _, _ in self._files)


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
