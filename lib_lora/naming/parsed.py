"""A file taken apart by its keys, without a model: groups of parameters, and which algorithm reads each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from sys import intern

from ..adapters import Recipe, configured_alpha, known_kinds, known_modifiers, recipe_of
from ..adapters.base import Adapter, Alpha, Origin, Site
from ..errors import FileError, NumberError, UnknownAdapterError, UnknownFormatError, UnsupportedError
from ..files import formats
from ..files.components import EXPERTS
from ..files.file import AdapterFile
from ..files.formats import PeftConfig, TrainedLayer, base_model, layers_above
from ..files.formats.base import (
    ADAPTER_PARAMS,
    BUNDLED,
    FILE_WIDE,
    LAYER_PARAMS,
    PARTS,
    SHARED_PARAMS,
    KeyFormat,
    parse_keys,
)
from ..files.formats.strangers.base import stranger_of
from ..files.reading import USUAL, Reading
from ..registry import cached, discover
from ..report import Cause, Family, NetworkReport, Unused
from ..tensors import LARGEST
from .architectures._checkpoint import family_of_checkpoint
from .architectures._diagnosis import BROKEN
from .architectures.base import experts_named, fact, family_of
from .scale import NO_SCALE, UNUSED_SCALE, ScaleSource, doubt_of, rank_of, source_of

_NOTHING: Mapping[str, object] = {}
_UNTRAINED = "of a layer before the training, beside the trained one"
_NOT_FINITE = "of a layer with numbers that are NaN or infinite"


@cached
def key_formats() -> Mapping[str, KeyFormat]:
    """Return all formats, in the order in which they are tried."""
    kinds = (*known_kinds(), *known_modifiers())
    every = [(kind.name, kind.params.required | kind.params.optional) for kind in kinds]
    own = [(f"{kind.removeprefix('peft_')}_", names) for kind, names in every]
    dotted = [name.split(".", 1) for start, names in own for name in names if name.startswith(start) and "." in name]
    dotted += [[layer, "weight"] for kind in kinds for layer in kind.params.layers]
    params = {
        ADAPTER_PARAMS: {name for _, names in every for name in names if "weight" not in names and "." not in name},
        LAYER_PARAMS: {layer for layer, _ in dotted},
        PARTS: {part for _, part in dotted},
        SHARED_PARAMS: {name for kind in kinds for name in kind.shared},
    }
    found = sorted(discover(formats, KeyFormat).items(), key=lambda item: item[1].last)
    return {name: one.with_params(params) for name, one in found}


@cached
def _recipe(shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> tuple[Recipe | None, Site | None, int | None]:
    """Return the algorithm that reads parameters of these shapes, the weight that they were made for, and the rank."""
    by_name = dict(shapes)
    recipe = recipe_of(by_name)
    return recipe, None if recipe is None else recipe.own_site(by_name), rank_of(by_name)


@dataclass(slots=True)
class Group:
    """The parameters of one layer in a file."""

    component: str | None
    module: str
    flattened: bool
    format: str
    keys: dict[str, str] = field(default_factory=dict)
    """Canonical parameter -> key in the file."""
    recipe: Recipe | None = None
    """The algorithm that reads it; None where none does."""
    own_site: Site | None = None
    """The weight that it was made for; None where its parameters do not tell."""
    rank: int | None = None
    """None where no shape tells it."""
    transposed: frozenset[str] = frozenset()
    """Parameters that the file has with rows and columns exchanged."""
    reads: tuple[str, ...] = ()
    """The keys of its own parameters, and of the shared ones that the algorithm reads."""

    @property
    def unread(self) -> Unused:
        """Return that no algorithm reads its parameters."""
        how = "together" if len(self.keys) > 1 else "alone"
        return Unused("", "unknown_parameters", f"no adapter kind reads {', '.join(sorted(self.keys))} {how}")

    def unused(self, why: Unused) -> list[Unused]:
        """Return all keys as unused for the reason of a record that names no key."""
        return [why._replace(key=key) for key in self.keys.values()]

    def largest(self, file: AdapterFile) -> float:
        """Return the product of the largest numbers of its parameters, alpha aside; `file` has checked its numbers."""
        return math.prod([file.magnitudes[key] for param, key in self.keys.items() if param != "alpha"])

    def is_zero(self, file: AdapterFile) -> bool:
        """Return whether it is a LoRA whose `up` is zero, as training begins; `file` has checked its numbers."""
        ups = [key for param, key in self.keys.items() if param.startswith("lora_up.")]
        return self.recipe is not None and self.recipe.name == "lora" and not any(map(file.magnitudes.__getitem__, ups))


def misfit(error: ValueError, where: str = "") -> Unused:
    """Return why an adapter of a layer raised an error where it was made, for a layer of the model or without one."""
    if isinstance(error, UnsupportedError):
        return Unused("", "unsupported", str(error), where)
    cause: Cause = "not_finite" if isinstance(error, NumberError) else "shape"
    detail = f"{where}: {error}" if where else str(error)
    return Unused("", cause, _NOT_FINITE if cause == "not_finite" else BROKEN, detail)


class ParsedFile:
    """A file taken apart by its keys, without a model.

    Args:
        file: the file.
        component: the only one that the file is for; None where its keys and the model tell.

    Raises:
        FileError: the file or its configuration cannot be read.
        UnknownFormatError: no format knows any of its keys.
        UnknownAdapterError: keys are known but no adapter kind reads any of their parameters.
    """

    def __init__(self, file: AdapterFile, component: str | None = None) -> None:
        self.file, self.component = file, component
        self.unused: list[Unused] = []
        self.shared: dict[str, str] = {}
        """Parameters that all layers share -> their keys."""
        self.embeddings: dict[str, dict[str, str]] = {}
        """Textual inversions that came in the file -> their parts -> keys."""
        self.groups = self._grouped()
        for group in self.groups:
            group.component = group.component or component
        keys = [key for group in self.groups for key in group.keys.values()]
        self._tensors = file.tensors([*self.shared.values(), *keys])  # only mapped
        self._shared_tensors = {param: self._tensors[key] for param, key in self.shared.items()}
        for group in self.groups:
            shapes = list[tuple[str, tuple[int, ...]]]()
            for param, key in group.keys.items():
                tensor = self._tensors[key]
                if param in group.transposed and tensor.ndim == 2:
                    tensor = self._tensors[key] = tensor.t()
                shapes.append((param, tuple(tensor.shape)))
            group.recipe, group.own_site, group.rank = _recipe(tuple(shapes))
            group.reads = tuple(group.keys.values())
            if self.shared and group.recipe is not None:
                shared = group.recipe.kind.shared
                group.reads += tuple([key for param, key in self.shared.items() if param in shared])
        self._refuse_strangers()
        known = key_formats()
        spellings = [known[name] for name in dict.fromkeys([group.format for group in self.groups])]
        beside = [one for one in spellings if one.configured]
        self.config = PeftConfig.of(file.path, file.metadata, self._configurable(), beside)
        try:  # they are matched once, here, as they may take too long
            for group in () if self.config.empty else self.groups:
                self.config.values(group.component, group.module)
        except ValueError as error:
            raise FileError(file.path, str(error)) from error

    def adapter(self, group: Group, site: Site, reading: Reading = USUAL, own: str = "") -> Adapter:
        """Build the adapter of a group that has a recipe, for one weight, or the parameter `own` of a module.

        Raises:
            ValueError: the tensors do not fit each other or the weight; the text says want and got.
        """
        assert group.recipe is not None
        config = _NOTHING
        if not self.config.empty:
            module = group.module.replace(".base_layer", "") + f".{own}" if own else group.module  # as PEFT's patterns
            spatial = len(site.shape) > 2 and math.prod(site.shape[2:]) > 1
            config = self.config.values(group.component, module, spatial=spatial)
        key = group.keys.get("alpha")  # the rule of `scale.py`
        if reading.alpha is not None or reading.scale is not None:
            alpha = Alpha(reading.alpha, config.get("use_rslora") is True, reading.scale)
        elif key is None:
            alpha = configured_alpha(config)
        elif key not in self.file.numbers:
            raise ValueError(f"want one number as alpha, got {self.file.infos[key].shape}")
        elif not abs(self.file.numbers[key]) <= LARGEST:  # nan is neither
            raise NumberError(f"want a finite number as alpha, got {self.file.numbers[key]}")
        else:
            alpha = Alpha(self.file.numbers[key])
        shared, metadata = self._shared_tensors, self.file.metadata
        origin = Origin(alpha, group.format, config, metadata, shared, group.module, reading)
        tensors = map(self._tensors.__getitem__, group.keys.values())
        return group.recipe.build(dict(zip(group.keys, tensors, strict=True)), site, origin)

    @property
    def facts(self) -> list[str]:
        """Return what signs of families are searched in; see `architectures.base.fact`."""
        metadata = self.file.metadata.items()
        found = [f"meta:{key.replace('.', '_')}:{value}" for key, value in metadata if len(value) < 200]
        for group in self.groups:
            shape = () if group.own_site is None else group.own_site.shape
            found.append(fact(group.component, group.module.rstrip("_"), shape[1] if len(shape) > 1 else None))
        return found

    @cached_property
    def family(self) -> Family | None:
        """Return the model family the file was made for."""
        return family_of(self.facts)

    @cached_property
    def experts(self) -> tuple[str, ...]:
        """Return the `EXPERTS` that keys mean which name none: both, unless another key or the file's name tells."""
        if self.component is not None or EXPERTS[1] in [group.component for group in self.groups]:
            return EXPERTS[:1]
        return experts_named(self.file.path.stem, self.file.metadata.get("ss_output_name", ""))

    def unshared(self, acting: Iterable[Group]) -> list[Unused]:
        """Return the keys of parameters that layers share, where no layer that acts reads them."""
        read = {key for group in acting for key in group.reads} if self.shared else ()
        reason = "shared by layers of which none acts"
        return [Unused(key, "unread", reason) for key in self.shared.values() if key not in read]

    def report(self, acting: Sequence[tuple[Group, Adapter]] | None = None, reading: Reading = USUAL) -> NetworkReport:
        """Sum up what the file says of itself; `Network` adds what became of it on a model.

        Without a model, all layers count that fit the weights that they were made for.
        """
        used, unfit = self.by_themselves(reading) if acting is None else (acting, [])
        sources = self._sources(reading)
        told = [*[group.rank for group in self.groups], *[one.rank for group, one in used if group.rank is None]]
        ranks = [rank for rank in told if rank is not None]
        kinds = Counter([group.recipe.name for group in self.groups if group.recipe is not None])
        infos = [self.file.infos[key] for key in {key for group, _ in used for key in group.reads}]
        return NetworkReport(
            path=self.file.path,
            format="+".join([name for name, _ in Counter([group.format for group in self.groups]).most_common()]),
            family=self.family,
            kinds=kinds,
            ranks=(min(ranks), max(ranks)) if ranks else None,
            hit=0,
            layers=len(self.groups),
            nbytes=sum([info.end - info.start for info in infos]),
            unused=(*self.unused, *self.unshared(self.groups), *unfit),
            metadata=self.file.metadata,
            resolved=False,
            notes=self._notes(sources, reading, acts=bool(acting)),
            scales=tuple(sorted(sources)),
            base_model=base_model(self.file.metadata, self.config.base_model),
        )

    def _configurable(self) -> list[TrainedLayer]:
        """Return what a configuration of the file must agree with."""
        found = list[TrainedLayer]()
        for group in self.groups:
            kind = None if group.recipe is None else group.recipe.kind
            if kind is not None and kind.name != "set_weight":
                lacks_alpha = kind.scaled and "alpha" not in group.keys
                found.append(TrainedLayer(group.module, kind.name, group.rank, group.flattened, lacks_alpha))
        return found

    def _grouped(self) -> list[Group]:
        """Collect keys by layer, in the order of formats and names: nothing depends on the order in the file."""
        known, groups, strays = key_formats(), dict[tuple[str | None, str], Group](), list[str]()
        order = {name: i for i, name in enumerate(("", *known))}
        found = parse_keys(known.values(), self.file.infos, self.file.metadata)
        named = zip(self.file.infos, found, strict=True)
        parsed = sorted([(order[name], key, name, one) for key, (name, one) in named])  # keys differ
        names = {one.adapter for *_, one in parsed if one is not None and one.adapter is not None}
        wanted = "default" if "default" in names else min(names, default=None)
        for _, key, name, one in parsed:
            if one is None:
                strays.append(key)
                continue
            if one.untrained or one.adapter not in (None, wanted):
                second = Unused(
                    key, "unchosen_adapter", f"of a second adapter {one.adapter!r}; only {wanted!r} is used"
                )
                self.unused.append(Unused(key, "repeated", _UNTRAINED) if one.untrained else second)
                continue
            if one.module == FILE_WIDE:
                keys = self.shared
            elif one.param.startswith(BUNDLED):
                keys = self.embeddings.setdefault(one.module, {})
            else:
                at = one.component, one.module
                group = groups.get(at) or groups.setdefault(at, Group(*at, one.flattened, name))
                group.transposed |= known[name].transposed & {one.param}
                keys = group.keys
            if one.param in keys:
                self.unused.append(Unused(key, "repeated", f"says the same as {keys[one.param]}"))
            else:
                keys[intern(one.param)] = key  # thousands of keys have a few parameters
        self._place_strays(groups, strays)
        return list(groups.values())

    def _place_strays(self, groups: dict[tuple[str | None, str], Group], strays: list[str]) -> None:
        """Give keys below a layer that has an adapter to that layer: they may change what its parameters mean.

        A router or a factor between the two is unknown there, so that the layer is refused as a whole.
        """
        whole = {name for name, one in key_formats().items() if one.last}
        of_layers = {at for at, group in groups.items() if group.format not in whole}
        below = {key: at for at, group in groups.items() if group.format in whole for key in group.keys.values()}
        for key in (*strays, *below):
            found = next((one for one in layers_above(key) if one[:2] in of_layers), None)
            if found is not None and found[:2] != below.get(key):
                groups[found[0], found[1]].keys[found[2]] = key
                groups.pop(below.get(key, (None, "")), None)
            elif key not in below:
                self.unused.append(Unused(key, "unknown_key", "not understood by any key format"))

    @cached_property
    def stranger(self) -> str:
        """Return what the file is that is no adapter for an image model, and what reads it; empty where nothing tells.

        The family of a checkpoint is named.
        """
        shapes = {key: info.shape for key, info in self.file.infos.items()}
        found = stranger_of(shapes, self.file.path.name)
        if found is None or found.name != "checkpoint":
            return "" if found is None else str(found)
        family = family_of_checkpoint(shapes)
        return str(found if family is None else replace(found, title=f"{found.title} of {family.titles}"))

    def _refuse_strangers(self) -> None:
        keys = list(self.file.infos)
        seen = ", ".join(keys[:4]) or "none"
        companions = {one.name for one in key_formats().values() if not one.alone}
        if companions.issuperset([group.format for group in self.groups]):
            text = self.stranger or "it is not a known adapter"
            raise UnknownFormatError(self.file.path, f"{text}; it has no keys of a LoRA ({seen}, …)")
        if all(group.recipe is None for group in self.groups):
            params = ", ".join(sorted({param for group in self.groups for param in group.keys}))
            text = self.stranger or "it contains adapters of an unsupported kind"
            raise UnknownAdapterError(self.file.path, f"{text}, with the parameters {params} (keys {seen}, …)")

    def by_themselves(self, reading: Reading) -> tuple[list[tuple[Group, Adapter]], list[Unused]]:
        """Return the layers on the weights that they were made for, and the keys that do not fit these."""
        used, unused = list[tuple[Group, Adapter]](), list[Unused]()
        for group in self.groups:
            if group.recipe is None:
                unused += group.unused(group.unread)
            elif group.own_site is not None:  # what does not fit even the shape that it claims fits no model
                try:
                    used.append((group, self.adapter(group, group.own_site, reading)))
                except ValueError as error:
                    unused += group.unused(misfit(error))
        return used, unused

    def _sources(self, reading: Reading) -> set[ScaleSource]:
        """Return what tells the scales of its layers."""
        known, cases = key_formats(), set[tuple[bool, bool, tuple[str | None, str] | None]]()
        for group in self.groups:
            if group.recipe is not None and group.recipe.kind.scaled:
                where = None if self.config.empty else (group.component, group.module)
                cases.add(("alpha" in group.keys, known[group.format].configured, where))
        if cases and (reading.alpha is not None or reading.scale is not None):
            return {"user"}
        return {
            source_of({} if at is None else self.config.values(*at), has_alpha=has_alpha, configured=configured)
            for has_alpha, configured, at in cases
        }

    def _notes(self, sources: Collection[ScaleSource], reading: Reading, *, acts: bool) -> tuple[str, ...]:
        """Return what the report says of a file that is no adapter, and of the scale, unless the user chose it."""
        strange = (self.stranger,) if not acts and self.family is None and self.stranger else ()
        if reading.alpha is not None or reading.scale is not None:
            return strange if "user" in sources else (*strange, UNUSED_SCALE)
        lokr = [one for one in self.groups if "lokr_w1" in one.keys]
        doubts = {doubt_of(one.keys, self.file, self.config.values(one.component, one.module)) for one in lokr} - {""}
        return (*strange, *self.config.notes, *([NO_SCALE] if "guess" in sources else []), *sorted(doubts))
