"""One file, resolved against a model: which adapter acts on which layer, and what became of every key."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path

import torch
from torch import Tensor, nn

from ..adapters._part import part_of
from ..adapters._refitted import Refitted
from ..adapters.base import Adapter, At
from ..errors import ComponentError, FileError, NoMatchError
from ..files.components import EXACT, candidates, noise_of
from ..files.file import AdapterFile, Stamp, stamp_of
from ..files.formats.base import BUNDLED, NumberingError
from ..files.reading import USUAL, Reading
from ..registry import version
from ..report import Family, NetworkReport, Unused
from ..weights.readers.base import read_base_weight
from .architectures.base import input_basis, input_layers
from .binding import Binding, FusedWeight
from .blocks import BlockNames
from .index import LayerIndex, alias_table, blocks_of, check_named, family_of_model
from .parsed import NOT_FINITE, Group, ParsedFile, key_formats, misfit
from .places import Place

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


class Network:
    """One file, resolved against the layers of a model; attached to nothing."""

    def __init__(self, parsed: ParsedFile, indexes: Sequence[LayerIndex], reading: Reading = USUAL) -> None:
        self.file = parsed.file
        self._parsed, self._reading = parsed, reading
        self._indexes = {index.component: index for index in indexes}
        self._family = family_of_model(indexes)
        self._scopes = {component: self._scope(component) for component in {one.component for one in parsed.groups}}
        self._names: dict[tuple[str | None, ...], Mapping[str, str | NumberingError]] = {}
        fits = sorted([self._fit(group) for group in parsed.groups], key=itemgetter(0))
        bad = parsed.file.not_finite([key for _, group, found, _ in fits if found for key in group.reads])
        unused: list[Unused] = []
        by_weight: dict[tuple[str, str, str], list[Binding]] = {}
        acting: list[Group] = []
        idle: list[Group] = []
        for _, group, found, miss in fits:
            why = _add(group, found, by_weight, bad) if found else miss
            if why is None:
                acting.append(group)
            else:
                idle.append(group)
                unused += group.unused(why)
        self.changes_nothing = bool(acting) and all(group.is_zero(parsed.file) for group in acting)
        self.bindings = tuple([binding for bindings in by_weight.values() for binding in bindings])
        components = frozenset([one.component for one in self.bindings])
        self.report = replace(
            parsed.report(idle, [one.adapter for one in self.bindings]),
            hit=len(acting),
            changed=len({(one.component, one.target.path) for one in self.bindings}),
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
        if not self.bindings and any(one.cause == "not_finite" for one in report.unused):
            text = f"has numbers that are NaN or infinite in every layer that fits the loaded model; {_AGAIN}"
        elif not self.bindings:
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
            for one in self.bindings:
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
        for one in self.bindings:
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
        windows = () if place is None else place.windows
        totals = {
            (component, one.path, one.param): torch.zeros(one.outputs or one.shape[0], *one.shape[1:], dtype=dtype)
            for one in windows
        }
        found = [one for one in self.bindings if one.weight in totals]
        if index is None or not found:
            raise ComponentError(f"{self.file.path.name} does not change {component}.{path}")
        self.file.verify()
        for one in found:
            target, adapter, base = one.target, one.adapter, None
            if adapter.reads_whole:
                adapter = adapter.on(FusedWeight(one.place, index).read)
            if adapter.reads_base:
                base = read_base_weight(index.module(target.path), target.param).to("cpu", dtype)[target.slice]
            delta = adapter.delta_weight(At(torch.device("cpu"), dtype, weight=base))
            totals[one.weight][target.slice] += delta.reshape(target.shape)
        return torch.cat([totals[component, one.path, one.param][one.slice] for one in windows])

    def _scope(self, component: str | None) -> tuple[list[tuple[str, ...]], Sequence[str], Unused]:
        """Return the tiers of components for keys of one, the components they speak of, and why none fits."""
        tiers = candidates(component, list(self._indexes), self._parsed.experts)
        count = int(component in self._indexes) if component in EXACT else len(tiers)
        meant = [name for tier in tiers[:count] for name in tier]
        if not meant:
            return tiers, meant, Unused("", "no_component", f"component {component} is absent in this model")
        return tiers, meant, Unused("", "no_module", f"no module of that name in {', '.join(meant)}")

    def _fit(self, group: Group) -> tuple[int, Group, list[Binding], Unused]:
        """Bind a layer of the file in the likeliest components that it fits, or tell why it fits nowhere."""
        tiers, meant, why = self._scopes[group.component]
        if group.recipe is None:
            return 1, group, [], group.unread
        found: list[Binding] = []
        first: Place | None = None
        for tier in tiers:
            for component in tier:
                place = self._place(group, self._indexes[component])
                if isinstance(place, NumberingError):
                    why = Unused("", "no_module", place.reason, place.detail)
                elif place is not None:
                    first = first or place
                    bindings = self._bind(group, component, place)
                    if isinstance(bindings, list):
                        found += bindings
                    elif component in meant:  # in another component, only what fits counts
                        why = bindings
            if found:
                break
        return 1 if first is None else first.turn, group, found, why

    def _place(self, group: Group, index: LayerIndex) -> Place | NumberingError | None:
        """Return a group's place in a component by the name that its format has for layers."""
        names_of = key_formats()[group.format].names_of
        if names_of is None:
            return index.find(group.module, flattened=group.flattened)
        alike = group.format, group.component, index.component
        if alike not in self._names:
            shapes = {
                one.module: None if one.own_site is None else one.own_site.shape
                for one in self._parsed.groups
                if (one.format, one.component) == alike[:2]
            }
            said = self.file.metadata.get(group.component or ""), self._parsed.config.values(group.component)
            try:
                self._names[alike] = names_of(index.component, shapes, index.dotted, index.find, *said)
            except NumberingError as error:
                self._names[alike] = dict.fromkeys(shapes, error)
        name = self._names[alike].get(group.module)
        return index.find(name) if isinstance(name, str) else name

    def _bind(self, group: Group, component: str, place: Place) -> list[Binding] | Unused:
        """Bind the adapters of a layer of the file at a place, or tell why they cannot act there."""
        assert group.recipe is not None
        if place.kind not in group.recipe.kinds:
            return Unused("", "layer_kind", f"not defined for {_PLURAL[place.kind]}", f"{component}.{place.name}")
        own = place.windows[0].param if place.kind == "experts" else ""
        made = self._parsed.adapter(group, place.site, self._reading, own)
        try:
            adapter = made if isinstance(made, Adapter) else self._widened(group, component, place, made)
            parts = [(target, adapter if rows is None else part_of(adapter, rows)) for target, rows in place.pieces]
        except ValueError as error:
            return misfit(error, f"{component}.{place.name}")
        return [Binding(part, target, self.file, component, place) for target, part in parts]

    def _widened(self, group: Group, component: str, place: Place, error: ValueError) -> Adapter:
        """Make an adapter of a layer that has other inputs than when it was trained; where it is not just that, raise.

        Args:
            group: the parameters.
            component: of the model.
            place: there.
            error: which an adapter for the layer as it is raised.
        """
        index, made_for = self._indexes[component], self._parsed.family
        if group.own_site is None or (made_for and self._family and made_for.name != self._family.name):
            raise error
        basis = input_basis(index.root(), place.windows[0].path)
        if basis is None and not any(index.find(name) == place for name in input_layers(self._family)):
            raise error
        out, kernel = place.shape[0], place.shape[2:]
        inputs = math.prod(group.own_site.shape[1:]) // math.prod(kernel)  # a kernel may be flattened into the inputs
        if inputs >= place.shape[1] if basis is None else tuple(basis.shape) != (place.shape[1], inputs):
            raise error
        adapter = self._parsed.adapter(group, replace(place.site, shape=(out, inputs, *kernel)), self._reading)
        if isinstance(adapter, ValueError) or adapter.reads_base:
            raise error
        return Refitted(adapter, inputs, place.shape[1], None if basis is None else basis.float().cpu())


def _add(
    group: Group, found: Sequence[Binding], by_weight: dict[tuple[str, str, str], list[Binding]], bad: Collection[str]
) -> Unused | None:
    """Add the bindings of a group, unless a number is not finite or others change these rows already."""
    if bad and (spoilt := [key for key in group.reads if key in bad]):
        detail = f"{spoilt[0]} has numbers that are NaN or infinite; {_AGAIN}"
        return Unused("", "not_finite", NOT_FINITE, detail)
    for one in found:
        if any(one.target.overlaps(other.target) for other in by_weight.get(one.weight, ())):
            return Unused("", "second_adapter", f"a second adapter for {one.component}.{one.target.name}")
    for one in found:
        by_weight.setdefault(one.weight, []).append(one)
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
