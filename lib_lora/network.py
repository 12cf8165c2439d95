"""One file, resolved against a model: which adapter acts on which layer, and what became of every key."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn

from . import architectures, formats
from .adapters._part import part_of
from .adapters.base import Adapter, Alpha, At, Origin, Site
from .architectures.base import Architecture, fact, recognise
from .components import EXPERTS, candidates
from .errors import ComponentError, UnknownAdapterError, UnknownFormatError
from .file import AdapterFile
from .formats.base import BUNDLED, KeyFormat, ParsedKey
from .layer import LayerIndex, read_base_weight
from .peft_config import PeftConfig
from .places import AliasTable, Place, Target
from .recipe import Recipe, recipe_of
from .registry import discover
from .report import NetworkReport, Unused
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
        return [Unused(key, reason) for key in self.keys.values()]


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
        """Component, path and parameter of what it changes, or changes some rows of."""
        return self.component, self.target.path, self.target.param

    def meets(self, other: Bound) -> bool:
        """Whether both change a row of one weight."""
        mine, theirs = self.target.rows, other.target.rows
        overlap = mine is None or theirs is None or (mine[0] < theirs[1] and theirs[0] < mine[1])
        return self.weight == other.weight and overlap


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

    def adapter(self, group: Group, recipe: Recipe, site: Site) -> Adapter:
        """Build the group's adapter for one weight.

        Raises:
            ValueError: the tensors do not fit each other or the weight; the text says want and got.
        """
        params = {param: self.file.tensor(key) for param, key in group.keys.items()}
        return recipe.build(params, site, self.origin(group))

    def origin(self, group: Group) -> Origin:
        """What the file says about a group beside its own parameters."""
        return Origin(
            alpha=self.alpha(group),
            spelling=group.format,
            config=self.config.values(group.component, group.module),
            metadata=self.file.metadata,
            shared={param: self.file.tensor(key) for param, key in self.shared.items()},
        )

    def embeddings(self) -> dict[str, dict[str, Tensor]]:
        """The textual inversions that came in the file: {name: {part: vectors}}."""
        return {
            name: {param.removeprefix(BUNDLED): self.file.tensor(key) for param, key in keys.items()}
            for name, keys in self.bundled.items()
        }

    def architecture(self) -> Architecture | None:
        """The model family the file was made for."""
        facts = [
            f"meta:{key.replace('.', '_')}:{value}" for key, value in self.file.metadata.items() if len(value) < 200
        ]
        facts += [fact(group.component, group.module, self._width(group)) for group in self.groups]
        return recognise(known_architectures(), facts)

    def alpha(self, group: Group) -> Alpha:
        """The group's own alpha, else the one its configuration gives."""
        key = group.keys.get("alpha")
        if key is None:
            return self.config.alpha(group.component, group.module)
        tensor = self.file.tensor(key)
        if tensor.numel() != 1:
            raise ValueError(f"want one number as alpha, got {tuple(tensor.shape)}")
        return Alpha(float(tensor.item()))

    @property
    def experts(self) -> tuple[str, ...]:
        """Those of `EXPERTS` that keys are for which do not say so: both, unless the file or its name tells.

        Wan 2.2's LoRA come in pairs, `…_high_noise` and `…_low_noise`; SD.Next goes by the names, too.
        """
        if any(group.component == EXPERTS[1] for group in self.groups):
            return EXPERTS[:1]
        name = self.file.path.stem.lower()
        named = tuple(one for one, word in zip(EXPERTS, ("high", "low"), strict=True) if _NOISE[word].search(name))
        return named or EXPERTS

    def report(
        self, bound: Sequence[Bound] | None = None, unused: Iterable[Unused] = (), hit: int = 0
    ) -> NetworkReport:
        """Sum up; `bound` is None where no model was given, else `hit` of the file's layers act."""
        kinds = Counter(recipe.name for recipe in self.recipes.values())
        own, misfits = self._unbound()
        ranks = [adapter.rank for adapter in own if adapter.rank is not None]
        architecture = self.architecture()
        return NetworkReport(
            path=self.file.path,
            format=self.format,
            architecture=None if architecture is None else architecture.name,
            kinds=MappingProxyType(dict(kinds)),
            ranks=(min(ranks), max(ranks)) if ranks else None,
            hit=hit,
            changed=len(bound or ()),
            layers=len(self.groups),
            nbytes=sum(adapter.nbytes for adapter in (own if bound is None else [one.adapter for one in bound])),
            unused=(*self.unused, *(misfits if bound is None else unused)),
            metadata=self.file.metadata,
            resolved=bound is not None,
            components=frozenset(one.component for one in bound or ()),
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
                misfits.extend(Unused(key, SHAPE_DIFFERS, str(error)) for key in group.keys.values())
        return found, misfits

    def _grouped(self) -> list[Group]:
        parsed = [(key, *_parse(key)) for key in self.file.infos]
        names = [one.adapter for _, _, one in parsed if one is not None and one.adapter is not None]
        wanted = "default" if "default" in names else next(iter(names), None)
        groups: dict[tuple[str | None, str], Group] = {}
        for key, name, one in parsed:
            if one is None:
                self.unused.append(Unused(key, "not understood by any key format"))
            elif one.adapter is not None and one.adapter != wanted:
                self.unused.append(Unused(key, f"of a second adapter {one.adapter!r}; only {wanted!r} is used"))
            else:
                group = groups.setdefault((one.component, one.module), _group(one, name))
                if one.param in group.keys:
                    self.unused.append(Unused(key, f"says the same as {group.keys[one.param]}"))
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

    def __init__(self, parsed: ParsedFile, indexes: Sequence[LayerIndex]) -> None:
        self.file = parsed.file
        self._parsed = parsed
        self._indexes = {index.component: index for index in indexes}
        self._unused: list[Unused] = []
        self._by_param: dict[tuple[str, str, str], list[Bound]] = {}
        hit = sum(self._bind(group) for group in sorted(parsed.groups, key=self._turn))
        self.bound: tuple[Bound, ...] = tuple(one for own in self._by_param.values() for one in own)
        self.report = parsed.report(self.bound, self._unused, hit)

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
        reason, detail = _absence(group, [name for tier in tiers for name in tier])
        for tier in tiers:
            found: list[Bound] = []
            for component in tier:
                place = self._indexes[component].find(group.module, flattened=group.flattened)
                if place is None:
                    continue
                # of another component than the one the key names, only what fits counts
                stranger = group.component in _EXACT and component != group.component
                if place.kind not in recipe.kinds and not stranger:
                    reason, detail = f"not defined for {_PLURAL[place.kind]}", f"{component}.{place.name}"
                if place.kind not in recipe.kinds:
                    continue
                try:
                    found += _bounds(component, place, self._parsed.adapter(group, recipe, place.site))
                except ValueError as error:
                    if not stranger:
                        reason, detail = SHAPE_DIFFERS, f"{component}.{place.name}: {error}"
            if found:
                return self._take(group, found)
        self._leave(group, reason, detail)
        return False

    def _take(self, group: Group, found: Sequence[Bound]) -> bool:
        taken = next((one for one in found if any(map(one.meets, self._by_param.get(one.weight, ())))), None)
        if taken is not None:
            self._leave(group, f"a second adapter for {taken.component}.{taken.target.name}")
            return False
        for one in found:
            self._by_param.setdefault(one.weight, []).append(one)
        return True

    def _leave(self, group: Group, reason: str, detail: str = "") -> None:
        self._unused.extend(Unused(key, reason, detail) for key in group.keys.values())


def _bounds(component: str, place: Place, adapter: Adapter) -> list[Bound]:
    """An adapter of a layer of the file, on each layer of the model that has a part in it."""
    return [
        Bound(component, piece.target, adapter if piece.rows is None else part_of(adapter, piece.rows), place)
        for piece in place.pieces()
    ]


def _absence(group: Group, asked: Sequence[str]) -> tuple[str, str]:
    """Why a group acts on nothing, if no component has a layer of its name."""
    if not asked or (group.component in _EXACT and group.component not in asked):
        return f"component {group.component} is absent in this model", ""
    return f"no module of that name in {', '.join(asked)}", ""


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


def load_network(path: str | Path, components: Mapping[str, nn.Module]) -> Network:
    """Read a file and resolve it against `components`; attaches nothing, and works on modules on meta.

    Args:
        path: a safetensors file.
        components: diffusers' component name -> module.

    Raises:
        FileError: the file cannot be read; also its subclasses, see `ParsedFile`.
    """
    indexes = [LayerIndex(name, module, alias_table()) for name, module in components.items()]
    return Network(ParsedFile(AdapterFile.open(path)), indexes)


def inspect_file(path: str | Path) -> NetworkReport:
    """Report on a file by itself, without a model.

    Raises:
        FileError: the file cannot be read; also its subclasses, see `ParsedFile`.
    """
    return ParsedFile(AdapterFile.open(path)).report()


@lru_cache(maxsize=1)
def alias_table() -> AliasTable:
    """Every name every known family has for its modules."""
    families = known_architectures()
    return AliasTable((alias for family in families for alias in family.aliases), families)


@lru_cache(maxsize=1)
def known_architectures() -> tuple[Architecture, ...]:
    """All families, in the order in which they are asked."""
    return tuple(discover(architectures, Architecture).values())


@lru_cache(maxsize=1)
def _formats() -> tuple[KeyFormat, ...]:
    return tuple(discover(formats, KeyFormat).values())


def _parse(key: str) -> tuple[str, ParsedKey | None]:
    for one in _formats():
        parsed = one.parse(key)
        if parsed is not None:
            return one.name, parsed
    return "", None


_NOISE = {word: re.compile(rf"(?<![a-z]){word}(?![a-z])") for word in ("high", "low")}
_EXACT = frozenset({"unet", "text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4", *EXPERTS})
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
