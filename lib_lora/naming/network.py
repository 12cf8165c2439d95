"""One file, resolved against a model: which adapter acts on which layer, and what became of every key."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path

import torch
from torch import Tensor, nn

from ..adapters._narrow import Narrow
from ..adapters._part import part_of
from ..adapters._recipe import Recipe
from ..adapters._refitted import Refitted
from ..adapters.base import Adapter, At
from ..errors import ComponentError, FileError, NoMatchError, UnsupportedError
from ..files.components import EXACT, candidates, noise_of
from ..files.file import AdapterFile, Stamp, stamp_of
from ..files.formats.base import BUNDLED, NumberingError
from ..files.reading import USUAL, Reading
from ..registry import version
from ..report import Family, NetworkReport, Unused
from ..weights.readers.base import read_base_weight
from .architectures.base import input_basis, input_layers
from .blocks import BlockNames
from .index import LayerIndex, alias_table, blocks_of, check_named, family_of_model
from .parsed import NOT_FINITE, Group, Miss, ParsedFile, key_formats, misfit
from .places import Place, Target
from .whole import Whole

_PLURAL = {
    "linear": "linear layers",
    "conv": "convolutions",
    "embedding": "embeddings",
    "norm": "norms",
    "attention": "fused attention",
    "experts": "weights of experts in one tensor",
}
_AGAIN = "download it again, or train it again"
_GO_ON = "if it is meant for this model, allow files that fit in part (Reading(fragments=True), or the setting)"
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


_Fit = tuple[int, Group, list[Bound], Miss]
"""A layer of the file: its turn, its parameters, its adapters in the model, and why it acts on nothing without any.

The turn is 0 for a layer that the file has fused, which comes first, 2 for a part of a layer of the model, else 1. A
file may have a fused layer and its parts, too: SimpleTuner's are empty then, others say the same twice.
"""


class Network:
    """One file, resolved against the layers of a model; attached to nothing."""

    def __init__(self, parsed: ParsedFile, indexes: Sequence[LayerIndex], reading: Reading = USUAL) -> None:
        self.file = parsed.file
        self._parsed = parsed
        self._reading = reading
        self._indexes = {index.component: index for index in indexes}
        self._family = family_of_model(indexes)
        self._scopes = {component: self._scope(component) for component in {one.component for one in parsed.groups}}
        self._numbered: dict[tuple[str | None, ...], dict[str, Place | NumberingError | None] | NumberingError] = {}
        fits = sorted([self._fit(group) for group in parsed.groups], key=itemgetter(0))
        bad = parsed.file.not_finite([key for _, group, found, _ in fits if found for key in group.reads])
        unused: list[Unused] = []
        by_weight: dict[tuple[str, str, str], list[Bound]] = {}
        acting: list[Group] = []
        idle: list[Group] = []
        for _, group, found, why in fits:
            miss = _add(group, found, by_weight, bad) if found else why
            if miss is None:
                acting.append(group)
            else:
                idle.append(group)
                unused += group.unused(miss)
        self.changes_nothing = bool(acting) and all(group.is_zero(parsed.file) for group in acting)
        self.bound: tuple[Bound, ...] = tuple([one for own in by_weight.values() for one in own])
        components = frozenset([one.component for one in self.bound])
        self.report = replace(
            parsed.report(idle, [one.adapter for one in self.bound]),
            hit=len(acting),
            changed=len({(one.component, one.target.path) for one in self.bound}),
            unused=(*parsed.unused, *unused, *parsed.unshared(acting)),
            resolved=True,
            components=components,
            noise=noise_of(components, self._indexes),
            absent=len([group for group in idle if not self._scopes[group.component][1]]),
            model=self._family,
        )

    def check_fit(self) -> None:
        """Raise NoMatchError where nothing fits the model, or less than half of what the file has for it."""
        report, text = self.report, ""
        meant = report.layers - report.absent
        if not self.bound and any(one.cause == "not_finite" for one in report.unused):
            text = f"has numbers that are NaN or infinite in every layer that fits the loaded model; {_AGAIN}"
        elif not self.bound:
            made_for = "" if report.family is None else f", being made for {report.family.titles}"
            text = f"{report.warning or f'fits no layer of the loaded model{made_for}'}: {report.why()}"
        elif 2 * report.hit < meant and not self._reading.fragments:
            text = f"fits {report.hit} of the {meant} layers it has for this model: {report.why()}; {_GO_ON}"
        if text:
            raise NoMatchError(self.file.path, text)

    @property
    def embeddings(self) -> dict[str, dict[str, Tensor]]:
        """Return {name: {part: vectors (tokens, width)}} of the textual inversions that came in the file.

        Parts are as the file spells them: `string_to_param.*` for one text encoder, `clip_l` and `clip_g` for two.
        """
        found: dict[str, dict[str, Tensor]] = {}
        for name, keys in self._parsed.embeddings.items():
            parts = self.file.tensors({param.removeprefix(BUNDLED): key for param, key in keys.items()})
            found[name] = {part: one.unsqueeze(0) if one.ndim == 1 else one for part, one in parts.items()}
        return found

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

        The path may be in any spelling the architecture knows; the layer may be several of the model's, or part of one.

        Raises:
            ComponentError: the file does not change that layer, or a base weight it needs cannot be read.
            FileError: the file changed on disk.
        """
        index = self._indexes.get(component)
        place = None if index is None else index.find(path)
        weights = {(component, at.target.path, at.target.param) for at in (() if place is None else place.segments)}
        found = [one for one in self.bound if (one.component, one.target.path, one.target.param) in weights]
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

    def _scope(self, component: str | None) -> tuple[list[tuple[str, ...]], Sequence[str], Miss]:
        """Return the tiers of components for keys of one, the components they speak of, and the miss if none fits."""
        tiers = candidates(component, list(self._indexes), self._parsed.experts)
        meant: Sequence[str] = [name for tier in tiers for name in tier]
        if component in EXACT:
            meant = tiers[0] if component in self._indexes and tiers else ()
        if not meant:
            return tiers, meant, ("no_component", f"component {component} is absent in this model", "")
        return tiers, meant, ("no_module", f"no module of that name in {', '.join(meant)}", "")

    def _fit(self, group: Group) -> _Fit:
        """Make a layer's adapters in the likeliest components that it fits, or tell why it fits nowhere."""
        tiers, meant, miss = self._scopes[group.component]
        if group.recipe is None:
            return 1, group, [], group.unread()
        found: list[Bound] = []
        first: Place | None = None
        for tier in tiers:
            for component in tier:
                place = self._place(group, self._indexes[component])
                if isinstance(place, NumberingError):
                    miss = "no_module", place.reason, place.detail
                elif place is not None:
                    first = first or place
                    bound = self._bound(group, group.recipe, component, place)
                    if isinstance(bound, list):
                        found += bound
                    elif component in meant:  # in another component, only what fits counts
                        miss = bound
            if found:
                break
        turn = 1
        if first is not None and first.target is None:
            turn = 0 if len({one.target.name for one in first.segments}) > 1 else 2
        return turn, group, found, miss

    def _place(self, group: Group, index: LayerIndex) -> Place | NumberingError | None:
        """Return a group's place in a component by the name that its format has for layers."""
        names_of = key_formats()[group.format].names_of
        if names_of is None:
            return index.find(group.module, flattened=group.flattened)
        alike = group.format, group.component, index.component
        if alike not in self._numbered:
            shapes = {
                one.module: None if one.own_site is None else one.own_site.shape
                for one in self._parsed.groups
                if (one.format, one.component) == (group.format, group.component)
            }
            said = self.file.metadata.get(group.component or ""), self._parsed.config.values(group.component)
            try:
                names = names_of(index.component, shapes, index.dotted, index.find, *said)
                self._numbered[alike] = {
                    number: index.find(name) if isinstance(name, str) else name for number, name in names.items()
                }
            except NumberingError as error:
                self._numbered[alike] = error
        numbered = self._numbered[alike]
        return numbered if isinstance(numbered, NumberingError) else numbered.get(group.module)

    def _bound(self, group: Group, recipe: Recipe, component: str, place: Place) -> list[Bound] | Miss:
        """Make a layer's adapters at a place, or tell why they cannot act there."""
        if place.site.kind not in recipe.kinds:
            return "layer_kind", f"not defined for {_PLURAL[place.site.kind]}", f"{component}.{place.name}"
        own = place.segments[0].target.param if place.kind == "experts" else ""
        adapter = self._parsed.adapter(group, place.site, self._reading, own)
        if isinstance(adapter, ValueError):
            widened = self._widened(group, component, place)
            if widened is None:
                return misfit(adapter, f"{component}.{place.name}")
            adapter = widened
        try:
            parts = [(at, adapter if rows is None else part_of(adapter, rows)) for at, rows in place.pieces]
        except UnsupportedError as error:
            return misfit(error, f"{component}.{place.name}")
        return [Bound(component, target, own, place) for target, own in parts]

    def _widened(self, group: Group, component: str, place: Place) -> Adapter | None:
        """Make an adapter of a layer that has other inputs than when it was trained; None where it is not just that."""
        index, made_for = self._indexes[component], self._parsed.family
        if group.own_site is None or (made_for and self._family and made_for.name != self._family.name):
            return None
        basis = input_basis(index.root(), place.segments[0].target.path)
        if basis is None and not any(index.find(name) == place for name in input_layers(self._family)):
            return None
        out, kernel = place.shape[0], place.shape[2:]
        inputs = math.prod(group.own_site.shape[1:]) // math.prod(kernel)  # a kernel may be flattened into the inputs
        if inputs >= place.shape[1] if basis is None else tuple(basis.shape) != (place.shape[1], inputs):
            return None
        site = replace(place.site, shape=(out, inputs, *kernel))
        adapter = self._parsed.adapter(group, site, self._reading)
        if isinstance(adapter, ValueError) or adapter.reads_base:
            return None  # the report says what does not fit the layer as it is
        return Narrow(adapter, inputs, place.shape[1]) if basis is None else Refitted(adapter, basis.float().cpu())


def _add(
    group: Group, found: Sequence[Bound], by_weight: dict[tuple[str, str, str], list[Bound]], bad: Collection[str]
) -> Miss | None:
    """Add a group's adapters, unless a number is not finite or others change these rows already."""
    if bad and (spoilt := [key for key in group.reads if key in bad]):
        return "not_finite", NOT_FINITE, f"{spoilt[0]} has numbers that are NaN or infinite; {_AGAIN}"
    for one in found:
        for other in by_weight.get((one.component, one.target.path, one.target.param), ()):
            if one.target.overlaps(other.target):
                return "second_adapter", f"a second adapter for {one.component}.{one.target.name}", ""
    for one in found:
        by_weight.setdefault((one.component, one.target.path, one.target.param), []).append(one)
    return None


_Use = tuple[Reading, tuple[tuple[str, int], ...]]
"""How a file was read, and the signatures of the model's components."""


class NetworkCache:
    """Networks by file and model: the least recently used go first, those in force never.

    Args:
        count: how many files to keep.
        nbytes: how many bytes their tensors may have together, as the files have them; None for any.
    """

    def __init__(self, count: int, nbytes: int | None = None) -> None:
        self._count = count
        self._limit = nbytes
        self._files: dict[tuple[Path, Stamp, int], tuple[ParsedFile, dict[_Use, Network]]] = {}  # the latest last

    def resolved(self, path: Path, indexes: Sequence[LayerIndex], reading: Reading = USUAL) -> Network:
        """Return the network of a file for a model. The cache may go beyond its limits until the next `trim`.

        Raises:
            LoraError: the file cannot be read, or no format or adapter kind knows it.
        """
        try:
            key = path, stamp_of(path.stat()), version()
        except OSError as error:
            raise FileError(path, f"it cannot be read: {error.strerror or error}") from error
        began = time.perf_counter()
        known = self._files.pop(key) if key in self._files else (ParsedFile(AdapterFile.open(path)), {})
        parsed, networks = self._files[key] = known
        use = reading, tuple([index.signature for index in indexes])
        network = networks.pop(use, None)
        if network is None:
            network = Network(parsed, indexes, reading)
            network.report = replace(network.report, seconds=time.perf_counter() - began)
        networks[use] = network
        return network

    def trim(self, in_force: Collection[Network] = ()) -> None:
        """Forget networks beyond the limits, the least recently used first, but none that is in force."""
        used = {id(network.file) for network in in_force}
        total = self.nbytes
        for key, (parsed, networks) in list(self._files.items()):
            while len(networks) > _MODELS:
                del networks[next(iter(networks))]
            if len(self._files) <= self._count and (self._limit is None or total <= self._limit):
                continue
            if id(parsed.file) not in used:
                total -= parsed.file.nbytes
                del self._files[key]

    def holds(self, network: Network) -> bool:
        """Return whether a network is still kept."""
        return any(network is one for _, networks in self._files.values() for one in networks.values())

    def clear(self) -> None:
        """Forget all."""
        self._files.clear()

    @property
    def nbytes(self) -> int:
        """Return the bytes of the tensors of all files that are kept."""
        return sum([parsed.file.nbytes for parsed, _ in self._files.values()])


def _indexes(components: Mapping[str, nn.Module], call: str) -> list[LayerIndex]:
    check_named(components, call)
    return [LayerIndex(name, module, alias_table()) for name, module in components.items()]


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
    indexes = _indexes(components, "load_network(path, {})")
    return Network(ParsedFile(AdapterFile.open(path)), indexes, reading)


def inspect_file(path: str | Path) -> NetworkReport:
    """Report on a file by itself, without a model.

    Raises:
        FileError: the file cannot be read; also its subclasses, see `ParsedFile`.
    """
    return ParsedFile(AdapterFile.open(path)).report()


def model_family(components: Mapping[str, nn.Module]) -> Family | None:
    """Return the family of the model with these components, by name; None where nothing tells.

    Raises:
        ComponentError: they are no mapping of names to modules.
    """
    return family_of_model(_indexes(components, "model_family({})"))


def model_blocks(components: Mapping[str, nn.Module]) -> BlockNames:
    """Return the blocks of the model with these components, by name, which strengths may have weights for.

    Raises:
        ComponentError: they are no mapping of names to modules.
    """
    return blocks_of(_indexes(components, "model_blocks({})"))
