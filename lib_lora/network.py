"""One file, resolved against a model: which adapter acts on which layer, and what became of every key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn

from . import formats
from .adapters._part import part_of
from .adapters.base import Adapter, Alpha, At, Origin, Site
from .architectures.base import fact
from .components import EXPERTS, candidates, experts_named
from .errors import ComponentError, UnknownAdapterError, UnknownFormatError
from .families import alias_table, family_of, family_of_model
from .file import AdapterFile
from .formats.base import BUNDLED, KeyFormat, ParsedKey
from .layer import LayerIndex, read_base_weight
from .peft_config import PeftConfig
from .places import Place, Target
from .provenance import base_model
from .reading import USUAL, Reading
from .recipe import Recipe, recipe_of
from .registry import discover
from .report import Cause, Family, NetworkReport, Unused
from .whole import Whole

SHAPE_DIFFERS = "of another shape"


@dataclass(slots=True)
class Group:
    """The parameters of one layer in a file."""

    component: str | None
    module: str
    flattened: bool
    format: str
    belongs: Literal["layer", "file", "embedding"] = "layer"
    keys: dict[str, str] = field(default_factory=dict)
    """Canonical parameter -> key in the file."""

    def unread(self) -> list[Unused]:
        """All keys, for the reason that no algorithm claims them."""
        reason = f"no adapter kind reads {', '.join(sorted(self.keys))} together"
        return Miss("unknown_parameters", reason).of(self)


@dataclass(frozen=True, slots=True)
class Miss:
    """Why a layer of a file acts on nothing; see `report.Unused`."""

    cause: Cause
    reason: str
    detail: str = ""

    def of(self, group: Group) -> list[Unused]:
        """All its keys, for this."""
        return [Unused(key, self.cause, self.reason, self.detail) for key in group.keys.values()]


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


class ParsedFile:
    """A file taken apart by its keys, without a model.

    Raises:
        FileError: the file or its configuration cannot be read.
        UnknownFormatError: no format knows any of its keys.
        UnknownAdapterError: keys are known but no adapter kind reads any of their parameters.
    """

    def __init__(self, file: AdapterFile) -> None:
        self.file = file
        self.unused: list[Unused] = []
        groups = self._grouped()
        self.groups = [group for group in groups if group.belongs == "layer"]
        self.shared = {param: key for one in groups if one.belongs == "file" for param, key in one.keys.items()}
        self.bundled = {one.module: one.keys for one in groups if one.belongs == "embedding"}
        self.recipes = {id(group): recipe for group in self.groups if (recipe := recipe_of(self.shapes(group)))}
        self._refuse_strangers()
        self.config = PeftConfig.of(file, beside=any(group.format == "peft" for group in self.groups))

    @property
    def format(self) -> str:
        """Names of the formats seen, the most frequent first."""
        return "+".join(name for name, _ in Counter(group.format for group in self.groups).most_common())

    def recipe(self, group: Group) -> Recipe | None:
        """The algorithm that reads this group, and what goes around it."""
        return self.recipes.get(id(group))

    def shapes(self, group: Group) -> dict[str, tuple[int, ...]]:
        """Canonical parameter -> shape in the file."""
        return {param: self.file.infos[key].shape for param, key in group.keys.items()}

    def adapter(self, group: Group, recipe: Recipe, site: Site, reading: Reading = USUAL) -> Adapter:
        """Build the group's adapter for one weight.

        Raises:
            ValueError: the tensors do not fit each other or the weight; the text says want and got.
        """
        params = {param: self.file.tensor(key) for param, key in group.keys.items()}
        return recipe.build(params, site, self.origin(group, reading))

    def origin(self, group: Group, reading: Reading = USUAL) -> Origin:
        """What the file says about a group beside its own parameters."""
        return Origin(
            alpha=self.alpha(group),
            spelling=group.format,
            config=self.config.values(group.component, group.module),
            metadata=self.file.metadata,
            shared={param: self.file.tensor(key) for param, key in self.shared.items()},
            module=group.module,
            reading=reading,
        )

    def embeddings(self) -> dict[str, dict[str, Tensor]]:
        """The textual inversions that came in the file: {name: {part: vectors}}."""
        return {
            name: {param.removeprefix(BUNDLED): self.file.tensor(key) for param, key in keys.items()}
            for name, keys in self.bundled.items()
        }

    @cached_property
    def family(self) -> Family | None:
        """The model family the file was made for."""
        facts = [
            f"meta:{key.replace('.', '_')}:{value}" for key, value in self.file.metadata.items() if len(value) < 200
        ]
        return family_of([*facts, *(fact(group.component, group.module, self._width(group)) for group in self.groups)])

    def alpha(self, group: Group) -> Alpha:
        """The group's own alpha, else the one its configuration gives."""
        key = group.keys.get("alpha")
        if key is None:
            return self.config.alpha(group.component, group.module)
        tensor = self.file.tensor(key)
        if tensor.numel() != 1:
            raise ValueError(f"want one number as alpha, got {tuple(tensor.shape)}")
        return Alpha(float(tensor.item()))

    @cached_property
    def experts(self) -> tuple[str, ...]:
        """Those of `EXPERTS` that keys are for which do not say so: both, unless the file or a name of it tells."""
        if any(group.component == EXPERTS[1] for group in self.groups):
            return EXPERTS[:1]
        names = (self.file.path.stem, self.file.metadata.get("ss_output_name", ""))  # the file may have been renamed
        return next((found for found in map(experts_named, names) if found), EXPERTS)

    def report(
        self,
        bound: Sequence[Bound] | None = None,
        unused: Iterable[Unused] = (),
        hit: int = 0,
        model: Family | None = None,
    ) -> NetworkReport:
        """Sum up; `bound` is None where no model was given, else `hit` of the file's layers act on that family."""
        kinds = Counter(recipe.name for recipe in self.recipes.values())
        own, misfits = self._unbound()
        ranks = [adapter.rank for adapter in own if adapter.rank is not None]
        return NetworkReport(
            path=self.file.path,
            format=self.format,
            family=self.family,
            kinds=MappingProxyType(dict(kinds)),
            ranks=(min(ranks), max(ranks)) if ranks else None,
            hit=hit,
            changed=len({(one.component, one.target.path) for one in bound or ()}),
            layers=len(self.groups),
            nbytes=_bytes_of(own if bound is None else [one.adapter for one in bound]),
            unused=(*self.unused, *(misfits if bound is None else unused)),
            metadata=self.file.metadata,
            resolved=bound is not None,
            components=frozenset(one.component for one in bound or ()),
            model=model,
            base_model=base_model(self.file.metadata, self.config.base_model),
        )

    def _unbound(self) -> tuple[list[Adapter], list[Unused]]:
        """The adapters with the shapes they claim for themselves, and the keys that fit not even each other."""
        found: list[Adapter] = []
        misfits: list[Unused] = []
        for group in self.groups:
            recipe = self.recipe(group)
            if recipe is None:
                misfits.extend(group.unread())
                continue
            site = recipe.own_site(self.shapes(group))
            if site is None:
                continue  # its parameters do not tell; a model will
            try:
                found.append(self.adapter(group, recipe, site))
            except ValueError as error:
                misfits.extend(Miss("shape", SHAPE_DIFFERS, str(error)).of(group))
        return found, misfits

    def _grouped(self) -> list[Group]:
        parsed = [(key, *_parse(key)) for key in self.file.infos]
        names = [one.adapter for _, _, one in parsed if one is not None and one.adapter is not None]
        wanted = "default" if "default" in names else next(iter(names), None)
        groups: dict[tuple[str | None, str], Group] = {}
        for key, name, one in parsed:
            if one is None:
                self.unused.append(Unused(key, "unknown_key", "not understood by any key format"))
            elif one.adapter is not None and one.adapter != wanted:
                reason = f"of a second adapter {one.adapter!r}; only {wanted!r} is used"
                self.unused.append(Unused(key, "unchosen_adapter", reason))
            else:
                group = groups.setdefault((one.component, one.module), _group(one, name))
                if one.param in group.keys:
                    self.unused.append(Unused(key, "repeated", f"says the same as {group.keys[one.param]}"))
                else:
                    group.keys[one.param] = key
        return list(groups.values())

    def _refuse_strangers(self) -> None:
        keys = self.file.keys
        seen = ", ".join(keys[:4]) or "none"
        companions = {one.name for one in _formats() if not one.alone}
        if all(group.format in companions for group in self.groups):
            text = f"is no adapter known here: none of its {len(keys)} keys is an adapter's ({seen}, …){_hint(keys)}"
            raise UnknownFormatError(self.file.path, text, keys[:4])
        if not self.recipes:
            params = sorted({param for group in self.groups for param in group.keys})
            text = (
                f"holds adapters of a kind not supported here, with the parameters {', '.join(params)} (keys {seen}, …)"
            )
            raise UnknownAdapterError(self.file.path, text, keys[:4])

    def _width(self, group: Group) -> int | None:
        recipe = self.recipe(group)
        site = None if recipe is None else recipe.own_site(self.shapes(group))
        return site.shape[1] if site is not None and len(site.shape) > 1 else None


class Network:
    """One file, resolved against the layers of a model; attached to nothing."""

    def __init__(self, parsed: ParsedFile, indexes: Sequence[LayerIndex], reading: Reading = USUAL) -> None:
        self.file = parsed.file
        self._parsed = parsed
        self._reading = reading
        self._indexes = {index.component: index for index in indexes}
        self._unused: list[Unused] = []
        self._by_weight: dict[tuple[str, str, str], list[Bound]] = {}
        hit = sum(self._bind(group) for group in sorted(parsed.groups, key=self._turn))
        self.bound: tuple[Bound, ...] = tuple(one for own in self._by_weight.values() for one in own)
        self.report = parsed.report(self.bound, self._unused, hit, family_of_model(indexes))

    @property
    def embeddings(self) -> dict[str, dict[str, Tensor]]:
        """{name: {part: vectors (tokens, width)}} of the textual inversions that came in the file.

        Parts are as the file spells them: `string_to_param.*` for one text encoder, `clip_l` and `clip_g` for two.
        """
        return self._parsed.embeddings()

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

    def _turn(self, group: Group) -> int:
        """Layers that the file has fused come first, parts of the model's last.

        A file may have a fused layer and its parts, too: SimpleTuner's are empty then, others say the same twice.
        """
        tiers = candidates(group.component, list(self._indexes), self._parsed.experts)
        indexes = (self._indexes[component] for tier in tiers for component in tier)
        places = (index.find(group.module, flattened=group.flattened) for index in indexes)
        place = next((place for place in places if place is not None), None)
        if place is None or place.target is not None:
            return 1
        return 0 if len({one.target.name for one in place.segments}) > 1 else 2

    def _bind(self, group: Group) -> bool:
        """Find what a group of the file acts on; False where there is nothing, which is then in the report."""
        recipe = self._parsed.recipe(group)
        if recipe is None:
            self._unused.extend(group.unread())
            return False
        tiers = candidates(group.component, list(self._indexes), self._parsed.experts)
        miss = _absence(group, [name for tier in tiers for name in tier])
        for tier in tiers:
            found: list[Bound] = []
            for component in tier:
                place = self._indexes[component].find(group.module, flattened=group.flattened)
                if place is None:
                    continue
                # of another component than the one the key names, only what fits counts
                stranger = group.component in _EXACT and component != group.component
                if place.kind not in recipe.kinds and not stranger:
                    miss = Miss("layer_kind", f"not defined for {_PLURAL[place.kind]}", f"{component}.{place.name}")
                if place.kind not in recipe.kinds:
                    continue
                try:
                    found += _bounds(component, place, self._parsed.adapter(group, recipe, place.site, self._reading))
                except ValueError as error:
                    if not stranger:
                        miss = Miss("shape", SHAPE_DIFFERS, f"{component}.{place.name}: {error}")
            if found:
                return self._take(group, found)
        self._unused.extend(miss.of(group))
        return False

    def _take(self, group: Group, found: Sequence[Bound]) -> bool:
        for one in found:
            others = self._by_weight.get(one.weight, ())
            if any(one.target.overlaps(other.target) for other in others):
                miss = Miss("second_adapter", f"a second adapter for {one.component}.{one.target.name}")
                self._unused.extend(miss.of(group))
                return False
        for one in found:
            self._by_weight.setdefault(one.weight, []).append(one)
        return True


def _bounds(component: str, place: Place, adapter: Adapter) -> list[Bound]:
    """An adapter of a layer of the file, on each layer of the model that has a part in it."""
    return [
        Bound(component, piece.target, adapter if piece.rows is None else part_of(adapter, piece.rows), place)
        for piece in place.pieces()
    ]


def _bytes_of(adapters: Iterable[Adapter]) -> int:
    """Bytes of all their tensors, of which some may be of several adapters."""
    sizes: dict[int, int] = {}
    for adapter in adapters:
        for _, tensor in adapter.tensors():
            start = tensor.data_ptr()
            sizes[start] = max(tensor.numel() * tensor.element_size(), sizes.get(start, 0))
    return sum(sizes.values())


def _absence(group: Group, asked: Sequence[str]) -> Miss:
    """Why a group acts on nothing, if no component has a layer of its name."""
    if not asked or (group.component in _EXACT and group.component not in asked):
        return Miss("no_component", f"component {group.component} is absent in this model")
    return Miss("no_module", f"no module of that name in {', '.join(asked)}")


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
    """
    indexes = [LayerIndex(name, module, alias_table()) for name, module in components.items()]
    return Network(ParsedFile(AdapterFile.open(path)), indexes, reading)


def inspect_file(path: str | Path) -> NetworkReport:
    """Report on a file by itself, without a model.

    Raises:
        FileError: the file cannot be read; also its subclasses, see `ParsedFile`.
    """
    return ParsedFile(AdapterFile.open(path)).report()


@lru_cache(maxsize=1)
def _formats() -> tuple[KeyFormat, ...]:
    return tuple(discover(formats, KeyFormat).values())


def _parse(key: str) -> tuple[str, ParsedKey | None]:
    for one in _formats():
        parsed = one.parse(key)
        if parsed is not None:
            return one.name, parsed
    return "", None


_EXACT = frozenset({"unet", "prior", "text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4", *EXPERTS})
"""Names of components; what else a key says is a role."""


def _group(one: ParsedKey, name: str) -> Group:
    belongs: Literal["layer", "file", "embedding"] = "layer"
    if one.file_wide or one.bundled:
        belongs = "file" if one.file_wide else "embedding"
    return Group(one.component, one.module, one.flattened, name, belongs)


_PLURAL = {
    "linear": "linear layers",
    "conv": "convolutions",
    "embedding": "embeddings",
    "norm": "norms",
    "attention": "fused attention",
}


def _hint(keys: Sequence[str]) -> str:
    """What a file that is no adapter probably is."""
    looks = {
        "model.diffusion_model.": "a whole checkpoint: load it as the model",
        "img_in.weight": "a whole checkpoint: load it as the model",
        "emb_params": "a textual inversion embedding: it belongs in the embeddings folder",
        "control_model.": "a ControlNet: load it with ControlNet",
        "first_stage_model.": "a VAE: load it as the VAE",
        "decoder.conv_in.": "a VAE: load it as the VAE",
    }
    for start, what in looks.items():
        if any(key.startswith(start) for key in keys):
            return f"; it looks like {what}"
    return ""
