"""One file, resolved against a model: which adapter acts on which layer, and what became of every key."""

from __future__ import annotations

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
from .adapters.base import Adapter, Alpha, At, Origin, Site
from .architectures.base import AliasTable, Architecture, fact, recognise
from .errors import ComponentError, UnknownAdapterError, UnknownFormatError
from .file import AdapterFile
from .formats.base import BUNDLED, KeyFormat, ParsedKey
from .layer import LayerIndex, Target, read_base_weight
from .peft_config import PeftConfig
from .recipe import Recipe, recipe_of
from .registry import discover
from .report import NetworkReport, Unused

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

    def report(self, bound: Sequence[Bound] | None = None, unused: Iterable[Unused] = ()) -> NetworkReport:
        """Sum up; `bound` is None where no model was given."""
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
            hit=0 if bound is None else len(bound),
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
        if not self.groups:
            text = f"is no adapter known here: no key format reads any of its {len(keys)} keys ({seen}, …){_hint(keys)}"
            raise UnknownFormatError(self.file.path, text, keys[:4])
        if not self.recipes:
            params = sorted({param for group in self.groups for param in group.keys})
            text = (
                f"holds adapters of a kind not supported here, with the parameters {', '.join(params)} (keys {seen}, …)"
            )
            raise UnknownAdapterError(self.file.path, text, keys[:4])

    def _width(self, group: Group) -> int | None:
        key = group.keys.get("lora_down.weight")
        shape = () if key is None else self.file.infos[key].shape
        return shape[1] if len(shape) > 1 else None


class Network:
    """One file, resolved against the layers of a model; attached to nothing."""

    def __init__(self, parsed: ParsedFile, indexes: Sequence[LayerIndex]) -> None:
        self.file = parsed.file
        self._parsed = parsed
        self._indexes = {index.component: index for index in indexes}
        self._unused: list[Unused] = []
        bound: dict[tuple[str, str], Bound] = {}
        for group in parsed.groups:
            one = self._bind(parsed, group)
            if one is None:
                continue
            if bound.setdefault((one.component, one.target.name), one) is not one:
                self._leave(group, f"a second adapter for {one.component}.{one.target.name}")
        self.bound: tuple[Bound, ...] = tuple(bound.values())
        self._by_name = bound
        self.report = parsed.report(self.bound, self._unused)

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
            path: the layer, in any spelling the architecture knows.
            dtype: in which it is computed.

        Raises:
            ComponentError: the file does not change that layer, or a base weight it needs cannot be read.
            FileError: the file changed on disk.
        """
        index = self._indexes.get(component)
        target = None if index is None else index.find(path)
        one = None if target is None else self._by_name.get((component, target.name))
        if one is None:
            raise ComponentError(f"{self.file.path.name} does not change {component}.{path}")
        self.file.verify()
        weight = None
        if one.adapter.reads_base:
            assert index is not None
            weight = read_base_weight(index.module(one.target.path), one.target.param).to("cpu", dtype)
            weight = weight if one.target.rows is None else weight[slice(*one.target.rows)]
        delta = one.adapter.delta_weight(At(torch.device("cpu"), dtype, weight=weight))
        return delta.reshape(one.target.shape)

    def _bind(self, parsed: ParsedFile, group: Group) -> Bound | None:
        recipe = parsed.recipe(group)
        if recipe is None:
            self._unused.extend(group.unread())
            return None
        wanted = self._indexes if group.component is None else {group.component: self._indexes.get(group.component)}
        reason, detail = f"no module of that name in {', '.join(wanted)}", ""
        for component, index in wanted.items():
            if index is None:
                reason = f"component {component} is absent in this model"
                continue
            target = index.find(group.module, flattened=group.flattened)
            if target is None:
                continue
            if target.kind not in recipe.kinds:
                reason, detail = f"not defined for {_PLURAL[target.kind]}", f"{component}.{target.name}"
                continue
            try:
                return Bound(component, target, parsed.adapter(group, recipe, target.site))
            except ValueError as error:
                reason, detail = SHAPE_DIFFERS, f"{component}.{target.name}: {error}"
        self._leave(group, reason, detail)
        return None

    def _leave(self, group: Group, reason: str, detail: str = "") -> None:
        self._unused.extend(Unused(key, reason, detail) for key in group.keys.values())


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
    return AliasTable(alias for architecture in known_architectures() for alias in architecture.aliases)


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
        "emb_params": "a textual inversion embedding: it belongs in the embeddings folder",
        "control_model.": "a ControlNet: load it with ControlNet",
        "first_stage_model.": "a VAE: load it as the VAE",
        "decoder.conv_in.": "a VAE: load it as the VAE",
    }
    for start, what in looks.items():
        if any(key.startswith(start) for key in keys):
            return f"; it looks like {what}"
    return ""
