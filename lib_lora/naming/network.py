"""One file, resolved against a model: which adapter acts on which layer, and what became of every key."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from stat import S_ISDIR
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..adapters import Refitted, part_of
from ..adapters.base import Adapter, At
from ..errors import ComponentError, FileError, NoMatchError, NotCopied, NumberError, check_path, check_type, printed
from ..files.components import EXACT, candidates, is_denoiser, noise_of
from ..files.file import AdapterFile, Stamp, stamp_of
from ..files.formats.base import BUNDLED, NumberingError
from ..files.reading import USUAL, Reading, with_sidecar
from ..files.sources import component_files, strange_parts
from ..registry import version
from ..report import Family, NetworkReport, Unused
from ..weights.readers.base import read_base_weight
from .architectures._diagnosis import Unlike, diagnoses, missing, without_block
from .architectures.base import input_basis, input_layers
from .binding import Binding, FusedWeight
from .blocks import BlockNames, blocks_of
from .index import LayerIndex, check_named, family_of_model
from .parsed import Group, ParsedFile, key_formats, misfit
from .places import Place

T = TypeVar("T")

_SHOWN = 3  # names in a sentence
_AGAIN = "download it again, or train it again"
_GO_ON = "if it is meant for this model, allow files that fit in part (Reading(fragments=True), or the setting)"


class Network(NotCopied):
    """One file, resolved against the layers of a model; attached to nothing."""

    _copy_instead = "copy or pickle its report, or load it again"

    def __init__(self, parsed: ParsedFile, indexes: Sequence[LayerIndex], reading: Reading = USUAL) -> None:
        self.file = parsed.file
        self.files: tuple[AdapterFile, ...] = (parsed.file,)
        self.parsed, self._reading = parsed, reading
        self._indexes = {index.component: index for index in indexes}
        self._family = family_of_model(indexes)
        self._tiers: dict[str | None, tuple[list[tuple[str, ...]], int]] = {}
        """Component in the file -> components of the model to search, the likeliest first; and how many of them tell
        why a layer does not fit.
        """
        own, present = parsed.component, list(self._indexes)
        if own is not None:  # one text encoder may have the layers of another
            present = [name for name in present if name == own or (is_denoiser(name) and is_denoiser(own))]
        for name in {group.component for group in parsed.groups}:
            tiers = candidates(name, present, parsed.experts)
            self._tiers[name] = tiers, int(name in self._indexes) if name in EXACT else len(tiers)
        self._names: dict[tuple[str | None, ...], Mapping[str, str | NumberingError]] = {}
        self._unlike: dict[Unused, Unlike] = {}
        """Why a layer of the file does not fit -> the layer of the model that has another shape."""
        with parsed.file.reading():
            fits = self._fits()
            bad = parsed.file.not_finite([key for group, bindings, _ in fits if bindings for key in group.reads])
        turns = [bindings[0].place.turn if bindings else 1 for _, bindings, _ in fits]
        fits = [fits[i] for _, i in sorted(zip(turns, range(len(fits)), strict=True))]
        self.bindings: tuple[Binding, ...] = ()
        self._acting: list[tuple[Group, Adapter]] = []
        self.report = self._report(self._diagnosed(self._chosen(fits, bad)))

    def _chosen(
        self, fits: Iterable[tuple[Group, list[Binding], Unused | None]], bad: Collection[str]
    ) -> list[tuple[Group, Unused]]:
        """Keep the bindings that act, and return the groups that do not, with the reason.

        A number may be no finite one, or other bindings may change the same rows already.
        """
        by_weight: dict[tuple[str, str, str], list[Binding]] = {}
        idle: list[tuple[Group, Unused]] = []
        for group, bindings, why in fits:
            spoilt = [key for key in group.reads if key in bad] if bad and bindings else ()
            if spoilt:
                why = misfit(NumberError(f"{spoilt[0]} has numbers that are NaN or infinite; {_AGAIN}"))
            places = []
            for binding in bindings:
                target = binding.target
                places.append((binding.component, target.path, target.param))
                for other in by_weight.get(places[-1], ()) if why is None else ():
                    if target.overlaps(other.target):
                        why = Unused("", "second_adapter", f"a second adapter for {binding.component}.{target.name}")
                        break
            if why is not None:
                idle.append((group, why))
                continue
            self._acting.append((group, bindings[0].adapter))
            for place, binding in zip(places, bindings, strict=True):
                by_weight.setdefault(place, []).append(binding)
        self.bindings = tuple([binding for bindings in by_weight.values() for binding in bindings])
        return idle

    def _diagnosed(self, idle: Sequence[tuple[Group, Unused]]) -> list[tuple[Group, Unused]]:
        """Return the layers that act on nothing, with what the file was made for where shapes or names tell."""
        unlike = {why: self._unlike[why] for _, why in idle if why.cause == "shape"}
        layers, families = list(unlike.values()), (self.parsed.family, self._family)
        texts = dict(zip(unlike, diagnoses(layers, *families), strict=True)) if unlike else {}
        generic: set[str] = set()
        if self._acting and any(why.cause == "no_module" for _, why in idle):
            generic = {without_block(name) for index in self._indexes.values() for name in index.flat}
        found = []
        for group, why in idle:
            reason, detail = why.reason, why.detail
            if why in texts:
                reason, detail = texts[why], detail if unlike[why].is_broken else unlike[why].detail
            elif why.cause == "no_module" and not detail:
                reason = missing(group.module, self.parsed.family, self._family, generic) or reason
            found.append((group, why._replace(reason=reason, detail=detail)))
        return found

    def _report(self, idle: Sequence[tuple[Group, Unused]]) -> NetworkReport:
        """Return what became of the file, some of whose groups act on nothing for a reason."""
        acting, unused = [group for group, _ in self._acting], [key for group, why in idle for key in group.unused(why)]
        components = frozenset([binding.component for binding in self.bindings])
        return replace(
            self.parsed.report(self._acting, self._reading),
            hit=len(acting),
            changed=len({(binding.component, binding.target.path) for binding in self.bindings}),
            unused=(*self.parsed.unused, *unused, *self.parsed.unshared(acting)),
            resolved=True,
            components=components,
            noise=noise_of(components, self._indexes),
            absent=len([group for group, _ in idle if not self._tiers[group.component][1]]),
            model=self._family,
        )

    def check_fit(self) -> None:
        """Raise NoMatchError where nothing fits the model, or less than half of what the file has for it."""
        report, text = self.report, ""
        meant = report.layers - report.absent
        if not self.bindings and any(one.cause == "not_finite" for one in report.unused):
            text = f"has numbers that are NaN or infinite in every layer that fits the loaded model; {_AGAIN}"
        elif not self.bindings:
            made_for = "" if report.family is None else f", being made for {report.family.likely}"
            stranger = "" if report.family is not None and report.family.sure else self.parsed.stranger
            what = stranger or report.warning or f"fits no layer of the loaded model{made_for}"
            text = f"{what}: {report.why()}"
        elif 2 * report.hit < meant and not self._reading.fragments:
            made_for = "" if report.family is None or not report.doubt else f", being made for {report.family.titles}"
            text = f"fits {report.hit} of the {meant} layers it has for this model{made_for}: {report.why()}; {_GO_ON}"
        if text:
            raise NoMatchError(self.report.path, text)

    @property
    def embeddings(self) -> dict[str, dict[str, Tensor]]:
        """Return {name: {part: vectors (tokens, width)}} of the textual inversions that came in the file.

        Parts are as the file spells them: `string_to_param.*` for one text encoder, `clip_l` and `clip_g` for two.
        """
        found: dict[str, dict[str, Tensor]] = {}
        for name, keys in self.parsed.embeddings.items():
            tensors = self.file.tensors(keys.values())
            parts = {param.removeprefix(BUNDLED): tensors[key] for param, key in keys.items()}
            found[name] = {part: vectors[None] if vectors.ndim == 1 else vectors for part, vectors in parts.items()}
        return found

    @cached_property
    def changes_nothing(self) -> bool:
        """Return whether the layers that act are LoRA whose `up` is zero."""
        return bool(self._acting) and all(group.is_zero(self.file) for group, _ in self._acting)

    @property
    def largest_change(self) -> float:
        """Return how large a change may be, roughly: the most that the largest numbers of one layer's tensors make."""
        sizes = [group.largest(self.file) * getattr(adapter, "scale", 1.0) for group, adapter in self._acting]
        return max(map(abs, sizes), default=0.0)

    def delta_weight(self, component: str, path: str, dtype: torch.dtype = torch.float32) -> Tensor:
        """Compute the dense change of one layer's weight at multiplier 1, on the CPU.

        The path may be in any spelling the architecture knows; the layer may be several of the model's, or part of one.

        Raises:
            ComponentError: the file does not change that layer, or a base weight it needs cannot be read.
            FileError: the file changed on disk.
        """
        check_type(component, str, "component", "the name of a component, as 'unet'")
        check_type(path, str, "path", "the name of a layer, as 'mid_block.attentions.0.proj_in'")
        check_type(dtype, torch.dtype, "dtype", "a dtype of torch, as torch.float32")
        index = self._indexes.get(component)
        place = None if index is None else index.find(path)
        windows = () if place is None else place.windows
        totals = {
            (component, one.path, one.param): torch.zeros(one.outputs or one.shape[0], *one.shape[1:], dtype=dtype)
            for one in windows
        }
        found = [one for one in self.bindings if (one.component, one.target.path, one.target.param) in totals]
        if index is None or not found:
            raise ComponentError(f"{self.file.path.name} does not change {printed(component)}.{printed(path)}")
        self.file.verify()
        for one in found:
            target, adapter, base = one.target, one.adapter, None
            if adapter.reads_whole:
                adapter = adapter.on(FusedWeight(one.place, index).read)
            if adapter.reads_base:
                whole = read_base_weight(index.module(target.path), target.param).detach()
                base = whole.to("cpu", dtype)[target.slice]
            delta = adapter.delta_weight(At(torch.device("cpu"), dtype, weight=base))
            totals[component, target.path, target.param][target.slice] += delta.reshape(target.shape)
        return torch.cat([totals[component, one.path, one.param][one.slice] for one in windows])

    def _fits(self) -> list[tuple[Group, list[Binding], Unused | None]]:
        """Bind each layer of the file in the likeliest components that it fits, or tell why it fits nowhere."""
        fits = list[tuple[Group, list[Binding], Unused | None]]()
        for group in self.parsed.groups:
            tiers, count = self._tiers[group.component]
            bindings, why = list[Binding](), None
            for i, tier in enumerate(tiers if group.recipe is not None else ()):
                for component in tier:
                    made = self._bind(group, component)
                    if isinstance(made, list):
                        bindings += made
                    elif i < count:  # in another component, only what fits counts
                        why = made or why
                if bindings:
                    why = None
                    break
            else:
                if why is None and not count:
                    why = Unused("", "no_component", f"component {group.component} is absent in this model")
                elif why is None and group.recipe is not None:
                    names = ", ".join([name for tier in tiers[:count] for name in tier])
                    why = Unused("", "no_module", f"no module of that name in {names}")
                why = why or group.unread
            fits.append((group, bindings, why))
        return fits

    def _bind(self, group: Group, component: str) -> list[Binding] | Unused | None:
        """Bind the adapters of a layer of the file in a component, or tell why they cannot act there.

        None stands for a component that has no layer of that name.
        """
        index, recipe, own = self._indexes[component], group.recipe, group.own_site
        assert recipe is not None
        by_number = key_formats()[group.format].names_of is not None
        place: Place | NumberingError | None = (index.flat if group.flattened else index.dotted).get(group.module)
        if by_number or place is None:
            flattened = group.flattened
            place = self._numbered(group, index) if by_number else index.find(group.module, flattened=flattened)
        if isinstance(place, NumberingError):
            return Unused("", "no_module", place.reason, place.detail)
        if place is None:
            return index.other_layer(group.module, flattened=group.flattened)
        kind = place.windows[0].kind
        if kind not in recipe.kinds:
            return Unused("", "layer_kind", f"not defined for {kind} layers", f"{component}.{place.name}")
        tokens = own.shape[0] if kind == "embedding" and own is not None and own.shape else 0
        if 0 < tokens < place.shape[0]:
            place = place.window(0, tokens)  # it has got more since, behind the ones it was trained with
        try:
            try:
                param = place.windows[0].param if kind == "experts" else ""
                adapter = self.parsed.adapter(group, place.site, self._reading, param)
            except ValueError:  # which tells more than the next one
                refitted = self._refitted(group, component, place)
                if refitted is None:
                    raise
                adapter = refitted
            if len(place.windows) == 1:
                return [Binding(adapter, place.windows[0], self.file, component, place)]
            parts = [(target, adapter if rows is None else part_of(adapter, rows)) for target, rows in place.pieces]
        except ValueError as error:
            shape, why = None if own is None else own.shape, misfit(error, f"{component}.{place.name}")
            self._unlike[why] = Unlike(component, place.name, shape, place.shape, self._takes_latents(index, place))
            return why
        return [Binding(part, target, self.file, component, place) for target, part in parts]

    def _numbered(self, group: Group, index: LayerIndex) -> Place | NumberingError | None:
        """Return the place of a group whose format has other names for layers than the model."""
        alike = group.format, group.component, index.component
        if alike not in self._names:
            shapes = {
                one.module: None if one.own_site is None else one.own_site.shape
                for one in self.parsed.groups
                if (one.format, one.component) == alike[:2]
            }
            said = self.file.metadata.get(group.component or ""), self.parsed.config.values(group.component)
            names_of = key_formats()[group.format].names_of
            assert names_of is not None
            try:
                self._names[alike] = names_of(index, shapes, *said)
            except NumberingError as error:
                self._names[alike] = dict.fromkeys(shapes, error)
        name = self._names[alike].get(group.module)
        return index.find(name) if isinstance(name, str) else name

    def _takes_latents(self, index: LayerIndex, place: Place) -> bool:
        return any(index.find(name) == place for name in input_layers(self._family))

    def _refitted(self, group: Group, component: str, place: Place) -> Adapter | None:
        """Make an adapter of a layer that has more inputs, or less by a basis, than in training; None without one."""
        index, made_for = self._indexes[component], self.parsed.family
        if group.own_site is None or (made_for and self._family and made_for.name != self._family.name):
            return None
        basis = input_basis(index.root(), place.windows[0].path)
        if basis is None and not self._takes_latents(index, place):
            return None
        out, kernel = place.shape[0], place.shape[2:]
        inputs = math.prod(group.own_site.shape[1:]) // math.prod(kernel)  # a kernel may be flattened into the inputs
        if inputs >= place.shape[1] if basis is None else tuple(basis.shape) != (place.shape[1], inputs):
            return None
        try:
            adapter = self.parsed.adapter(group, replace(place.site, shape=(out, inputs, *kernel)), self._reading)
        except ValueError:
            return None
        if adapter.reads_base:
            return None
        return Refitted(adapter, inputs, place.shape[1], None if basis is None else basis.float().cpu())


class FolderNetwork(Network):
    """A LoRA that PEFT saved component by component, see `component_files`: the networks of its files as one.

    A file that cannot be used costs its component only; `report.faults` tells why.

    Raises:
        FileError: no file can be used.
    """

    def __init__(self, folder: Path, indexes: Sequence[LayerIndex], reading: Reading = USUAL) -> None:
        parts, faults = each_part(folder, lambda parsed: fitted(Network(parsed, indexes, reading)))
        first = next(iter(parts.values()))
        self.parts = list(parts.values())
        self.file, self.files = first.file, tuple([part.file for part in self.parts])
        self.parsed, self._reading = first.parsed, reading
        self.bindings = tuple([binding for part in self.parts for binding in part.bindings])
        together = reported(folder, {name: part.report for name, part in parts.items()}, faults)
        self.report = replace(together, noise=noise_of(together.components, [index.component for index in indexes]))

    @property
    def embeddings(self) -> dict[str, dict[str, Tensor]]:
        return {name: vectors for part in self.parts for name, vectors in part.embeddings.items()}

    @cached_property
    def changes_nothing(self) -> bool:
        return all(part.changes_nothing for part in self.parts if part.bindings)

    @property
    def largest_change(self) -> float:
        return max(part.largest_change for part in self.parts)

    def delta_weight(self, component: str, path: str, dtype: torch.dtype = torch.float32) -> Tensor:
        own = [part for part in self.parts if component in part.report.components]
        return (own or self.parts)[0].delta_weight(component, path, dtype)


class NetworkCache:
    """Networks by file, model and way of reading: the least recently used go first, those in force never.

    Args:
        count: how many to keep.
        nbytes: how many bytes the tensors of the files may have together; None for any.
    """

    def __init__(self, count: int, nbytes: int | None = None) -> None:
        self._count, self._limit = count, nbytes
        self._networks: dict[tuple[Path, tuple[Stamp, ...], int, Reading, tuple[object, ...]], Network] = {}
        """The latest last."""

    def resolved(self, path: Path, indexes: Sequence[LayerIndex], reading: Reading = USUAL) -> Network:
        """Return the network of a file for a model. The cache may go beyond its limits until the next `trim`.

        Raises:
            LoraError: the file cannot be read, or no format or adapter kind knows it.
        """
        stamps = tuple[Stamp, ...]()
        try:
            found = path.stat()
            files = list(component_files(path).values()) if S_ISDIR(found.st_mode) else []
            for file in files or [path]:
                stamps += (stamp_of(file.stat() if files else found),)
                with suppress(OSError):  # there is none
                    stamps += (stamp_of((file.parent / "adapter_config.json").stat()),)  # of PEFT, read with the file
        except OSError as error:
            raise FileError(path, f"it cannot be read: {error.strerror or error}") from error
        began, reading = time.perf_counter(), with_sidecar(files[0] if files else path, reading)
        key = path, stamps, version(), reading, tuple([index.signature for index in indexes])
        network = self._networks.pop(key, None)
        if network is None:
            if files:
                network = FolderNetwork(path, indexes, reading)
            else:
                opened = [one.parsed for other, one in self._networks.items() if other[:3] == key[:3]]
                network = Network(opened[0] if opened else ParsedFile(AdapterFile.open(path)), indexes, reading)
            network.report = replace(network.report, seconds=time.perf_counter() - began)
        self._networks[key] = network
        return network

    def trim(self, in_force: Collection[Network] = ()) -> None:
        """Forget networks beyond the limits, the least recently used first, but none that is in force."""
        for key, network in list(self._networks.items()):
            if len(self._networks) <= self._count and (self._limit is None or self.nbytes <= self._limit):
                return
            if network not in in_force:
                del self._networks[key]

    def holds(self, network: Network) -> bool:
        """Return whether a network is still kept."""
        return network in self._networks.values()

    def clear(self) -> None:
        self._networks.clear()

    @property
    def nbytes(self) -> int:
        """Return the bytes of the tensors of all files that are kept."""
        return sum([file.nbytes for file in {file for network in self._networks.values() for file in network.files}])


def each_part(folder: Path, make: Callable[[ParsedFile], T]) -> tuple[dict[str, T], list[str]]:
    """Return what is made of each file of a folder, by component, and one sentence for each part that is not used.

    Raises:
        FileError: no file can be used.
    """
    made, faults = dict[str, T](), list[str]()
    for name, path in component_files(folder).items():
        try:
            made[name] = make(ParsedFile(AdapterFile.open(path), name))
        except FileError as error:
            faults.append(f"its {name} is not used: {error.reason}")
    if not made:
        raise FileError(folder, "; ".join(faults) or "it is gone")
    if strange := strange_parts(folder):
        more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        names = f"{', '.join(map(printed, strange[:_SHOWN]))}{more}"
        faults.append(f"its folders without the name of a component, as unet or text_encoder, are not used: {names}")
    return made, faults


def parsed_files(path: str | Path) -> list[ParsedFile]:
    """Open a file; of a folder that PEFT saved component by component, the file of each component.

    Raises:
        FileError: it cannot be read, or no file of the folder.
    """
    if component_files(path):
        return list(each_part(Path(path), lambda one: one)[0].values())
    return [ParsedFile(AdapterFile.open(path))]


def fitted(network: Network) -> Network:
    """Return a network that fits the model, or is of a folder's component that the model does not have.

    Raises:
        NoMatchError: it does not fit.
    """
    if network.parsed.component is None or network.report.absent < network.report.layers:
        network.check_fit()
    return network


def reported(folder: Path, parts: Mapping[str, NetworkReport], faults: Sequence[str]) -> NetworkReport:
    """Sum up the reports on the files of a folder, by component."""
    reports = list(parts.values())
    ranks = [rank for one in reports for rank in one.ranks or ()]
    return replace(
        reports[0],
        path=folder,
        format="+".join(dict.fromkeys([one.format for one in reports])),
        family=next((one.family for one in reports if one.family is not None), None),
        kinds=sum([Counter(one.kinds) for one in reports], Counter[str]()),
        ranks=(min(ranks), max(ranks)) if ranks else None,
        hit=sum([one.hit for one in reports]),
        layers=sum([one.layers for one in reports]),
        nbytes=sum([one.nbytes for one in reports]),
        unused=tuple([one._replace(key=f"{name}/{one.key}") for name, part in parts.items() for one in part.unused]),
        absent=sum([one.absent for one in reports]),
        notes=tuple([f"{name}: {note}" for name, part in parts.items() for note in part.notes]),
        scales=tuple(sorted({scale for one in reports for scale in one.scales})),
        changed=sum([one.changed for one in reports]),
        components=frozenset().union(*[one.components for one in reports]),
        base_model=next((one.base_model for one in reports if one.base_model), None),
        faults=tuple(faults),
    )


def _indexes(components: Mapping[str, nn.Module], call: str) -> list[LayerIndex]:
    check_named(components, call)
    return [LayerIndex(name, module) for name, module in components.items()]


def load_network(path: str | Path, components: Mapping[str, nn.Module], *, reading: Reading = USUAL) -> Network:
    """Read a safetensors file and resolve it against a model; attaches nothing, and works on modules on meta.

    Args:
        path: of the file, or of a folder that PEFT saved component by component.
        components: diffusers' component name -> module, as of `Engine`.
        reading: how to read files that other programs read otherwise than they were trained.

    Raises:
        FileError: the file cannot be read; also its subclasses.
        ComponentError: the components are no mapping of names to modules.
    """
    indexes = _indexes(components, "load_network(path, {})")
    check_type(reading, Reading, "reading", "a Reading, as Reading(alpha=8)")
    if component_files(path):
        return FolderNetwork(Path(path), indexes, _reading_of(Path(path), reading))
    return Network(ParsedFile(AdapterFile.open(path)), indexes, with_sidecar(Path(path), reading))


def inspect_file(path: str | Path) -> NetworkReport:
    """Report on a file by itself, or on a folder that PEFT saved component by component, without a model.

    Raises:
        FileError: the file cannot be read; also its subclasses.
    """
    check_path(path, "inspect_file('lora.safetensors')")
    if component_files(folder := Path(path)):
        return reported(folder, *each_part(folder, lambda one: one.report(reading=_reading_of(folder, USUAL))))
    return ParsedFile(AdapterFile.open(path)).report(reading=with_sidecar(Path(path), USUAL))


def _reading_of(folder: Path, reading: Reading) -> Reading:
    """Return how to read a folder that PEFT saved: what is beside its first file tells."""
    return next((with_sidecar(path, reading) for path in component_files(folder).values()), reading)


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
