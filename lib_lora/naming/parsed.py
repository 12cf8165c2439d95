"""A file taken apart by its keys, without a model: groups of parameters, and which algorithm reads each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Literal

from torch import Tensor

from .. import adapters
from ..adapters._modifier import Modifier
from ..adapters.base import Adapter, Kind, Origin, Site
from ..errors import FileError, NumberError, UnknownAdapterError, UnknownFormatError
from ..files import formats
from ..files.components import EXPERTS
from ..files.config import USUAL, Alpha, PeftConfig, Reading, base_model
from ..files.file import AdapterFile
from ..files.formats.base import BUNDLED, FILE_WIDE, KeyFormat, parse_key
from ..registry import cached, discover, discover_classes
from ..report import Cause, Family, NetworkReport, Unused
from ..tensors import LARGEST
from .architectures.base import fact, family_of, known_architectures

SHAPE_DIFFERS = "of another shape"
NOT_FINITE = "of a layer with numbers that are NaN or infinite"
_SCALED = frozenset({"lora", "dora", "loha", "lokr"})
_NO_SCALE = "its scale is unknown and taken as 1, as it has neither alpha nor adapter_config.json beside it"
_LOOKS = {
    "model.diffusion_model.": "a whole checkpoint: load it as the model",
    "img_in.weight": "a whole checkpoint: load it as the model",
    "emb_params": "a textual inversion embedding: it belongs in the embeddings folder",
    "control_model.": "a ControlNet: load it with ControlNet",
    "first_stage_model.": "a VAE: load it as the VAE",
    "decoder.conv_in.": "a VAE: load it as the VAE",
}
"""Begin of keys in a file that is no adapter -> a guess at the file."""

Shapes = Mapping[str, tuple[int, ...]]
"""Canonical parameter -> shape in the file."""


@dataclass(frozen=True)
class Recipe:
    """One algorithm and, from the inside out, the modifiers around it."""

    kind: type[Adapter]
    modifiers: tuple[type[Modifier], ...] = ()

    @cached_property
    def name(self) -> str:
        """Return the name, such as `lora` or `lora+dora`."""
        return "+".join((self.kind.name, *(modifier.name for modifier in self.modifiers)))

    @cached_property
    def kinds(self) -> frozenset[Kind]:
        """Return the kinds of layer it is defined for."""
        return self.kind.kinds.intersection(*(modifier.kinds for modifier in self.modifiers))

    def own_site(self, shapes: Shapes) -> Site | None:
        """Return the weight that parameters of these shapes were made for; None where they do not tell."""
        shape = self.kind.own_shape(shapes)
        if shape is None:
            return None
        return Site(shape, "norm" if len(shape) == 1 else "conv" if len(shape) > 2 else "linear")

    def build(self, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Adapter:
        """Make the adapter for the weight at `site`.

        Raises:
            ValueError: the tensors do not fit each other or the site; the text says want and got.
        """
        least = 1 if site.kind == "norm" and "norm" in self.kinds else 2
        if len(site.shape) < least or 0 in site.shape:  # a file may make itself out to be for such a weight
            raise ValueError(f"want the parameters of a weight, got parameters of the shape {site.shape}")
        adapter: Adapter = self.kind.from_params(params, site, origin)
        for modifier in self.modifiers:
            adapter = modifier.around(adapter, params, site, origin)
        return adapter


def recipe_of(shapes: Shapes) -> Recipe | None:
    """Return the recipe for parameters of these names and shapes; None where no algorithm reads all of them."""
    return _recipe(shapes, _modifiers())


def _recipe(shapes: Shapes, modifiers: Sequence[type[Modifier]]) -> Recipe | None:
    for kind in _kinds():
        if kind.claims(shapes):
            return Recipe(kind)
    for i, modifier in enumerate(modifiers):
        own = modifier.takes(shapes)
        if own:
            rest = {name: shape for name, shape in shapes.items() if name not in own}
            inner = _recipe(rest, modifiers[i + 1 :])
            if inner is not None:
                return Recipe(inner.kind, (*inner.modifiers, modifier))
    return None


@cached
def _kinds() -> tuple[type[Adapter], ...]:
    found = discover_classes(adapters, Adapter)  # type: ignore[type-abstract]
    return tuple(kind for kind in found if not issubclass(kind, Modifier))


def _modifiers() -> tuple[type[Modifier], ...]:
    """Return the modifiers, the outermost first."""
    return discover_classes(adapters, Modifier)  # type: ignore[type-abstract]


@cached
def key_formats() -> Mapping[str, KeyFormat]:
    """Return all formats, in the order in which they are tried."""
    kinds = (*_kinds(), *_modifiers())
    every = [kind.params.required | kind.params.optional for kind in kinds]
    named = {name for names in every for name in names if "weight" not in names and "." not in name}
    shared = {name for kind in kinds for name in kind.shared}
    return {name: one.with_params(named, shared) for name, one in discover(formats, KeyFormat).items()}


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
    recipe: Recipe | None = None
    """The algorithm that reads it; None where none does."""
    own_site: Site | None = None
    """The weight that it was made for; None where its parameters do not tell."""

    def unread(self) -> Miss:
        """Return that no algorithm reads its parameters."""
        return Miss("unknown_parameters", f"no adapter kind reads {', '.join(sorted(self.keys))} together")


@dataclass(frozen=True, slots=True)
class Miss:
    """Why a layer of a file acts on nothing; see `report.Unused`."""

    cause: Cause
    reason: str
    detail: str = ""

    def of(self, group: Group) -> list[Unused]:
        """Return all keys of a group as unused for this reason."""
        return [Unused(key, self.cause, self.reason, self.detail) for key in group.keys.values()]


def misfit(error: ValueError, where: str = "") -> Miss:
    """Tell why the parameters of a layer cannot be used.

    Args:
        error: that making an adapter of them raised.
        where: the layer of the model.
    """
    detail = f"{where}: {error}" if where else str(error)
    if isinstance(error, NumberError):
        return Miss("not_finite", NOT_FINITE, detail)
    return Miss("shape", SHAPE_DIFFERS, detail)


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
        self._find_recipes()
        self._refuse_strangers()
        self.config = PeftConfig.of(file, beside="peft" in [group.format for group in self.groups])
        try:  # they are matched once, here, as they may take too long
            for group in () if self.config.empty else self.groups:
                self.config.values(group.component, group.module)
        except ValueError as error:
            raise FileError(file.path, f"cannot be used: {error}") from error

    @property
    def format(self) -> str:
        """Return the names of the formats seen, the most frequent first."""
        return "+".join([name for name, _ in Counter([group.format for group in self.groups]).most_common()])

    def adapter(self, group: Group, recipe: Recipe, site: Site, reading: Reading = USUAL) -> Adapter:
        """Build the group's adapter for one weight.

        Raises:
            ValueError: the tensors do not fit each other or the weight; the text says want and got.
        """
        return recipe.build(self.file.tensors(group.keys), site, self.origin(group, reading))

    def origin(self, group: Group, reading: Reading = USUAL) -> Origin:
        """Return what the file says about a group beside its own parameters."""
        return Origin(
            alpha=self.alpha(group),
            spelling=group.format,
            config={} if self.config.empty else self.config.values(group.component, group.module),
            metadata=self.file.metadata,
            shared=self.file.tensors(self.shared) if self.shared else {},
            module=group.module,
            reading=reading,
        )

    def alpha(self, group: Group) -> Alpha:
        """Return the group's own alpha, else the one its configuration gives."""
        key = group.keys.get("alpha")
        if key is None:
            return self.config.alpha(group.component, group.module)
        value = self.file.numbers.get(key)
        if value is None:
            raise ValueError(f"want one number as alpha, got {self.file.infos[key].shape}")
        if not abs(value) <= LARGEST:  # nan is neither
            raise NumberError(f"want a finite number as alpha, got {value}")
        return Alpha(value)

    def embeddings(self) -> dict[str, dict[str, Tensor]]:
        """Return the textual inversions that came in the file: {name: {part: vectors}}."""
        found: dict[str, dict[str, Tensor]] = {}
        for name, keys in self.bundled.items():
            parts = self.file.tensors({param.removeprefix(BUNDLED): key for param, key in keys.items()})
            found[name] = {part: one.unsqueeze(0) if one.ndim == 1 else one for part, one in parts.items()}
        return found

    @property
    def facts(self) -> list[str]:
        """Return what signs of families are searched in; see `architectures.base.fact`."""
        metadata = self.file.metadata.items()
        found = [f"meta:{key.replace('.', '_')}:{value}" for key, value in metadata if len(value) < 200]
        for group in self.groups:
            shape = () if group.own_site is None else group.own_site.shape
            found.append(fact(group.component, group.module, shape[1] if len(shape) > 1 else None))
        return found

    @cached_property
    def family(self) -> Family | None:
        """Return the model family the file was made for."""
        return family_of(self.facts)

    @cached_property
    def experts(self) -> tuple[str, ...]:
        """Return the `EXPERTS` that keys mean which name none: both, unless another key or the file's name tells."""
        if EXPERTS[1] in [group.component for group in self.groups]:
            return EXPERTS[:1]
        names = (self.file.path.stem, self.file.metadata.get("ss_output_name", ""))  # the file may have been renamed
        rules = [one.experts_named for one in known_architectures() if one.experts_named is not None]
        return next((found for name in names for rule in rules if (found := rule(name))), EXPERTS)

    def not_finite(self, groups: Sequence[Group]) -> set[str]:
        """Return the keys that groups read whose tensors have numbers that are not finite.

        One such number makes a picture of nothing else.

        Raises:
            FileError: the file changed on disk.
        """
        keys = [key for group in groups for key in group.keys.values()]
        if self.shared:
            read = {param for group in groups if group.recipe is not None for param in group.recipe.kind.shared}
            keys += [key for param, key in self.shared.items() if param in read]
        return self.file.not_finite(keys)

    def spoiled(self, group: Group, bad: set[str]) -> Miss | None:
        """Return the miss of a group that reads one of the keys that `not_finite` returned; None if it reads none."""
        read = frozenset() if group.recipe is None else group.recipe.kind.shared
        keys = [*group.keys.values(), *[key for param, key in self.shared.items() if param in read]]
        key = next((key for key in keys if key in bad), None)
        if key is None:
            return None
        text = f"{key} has numbers that are NaN or infinite; download the file again, or train it again"
        return Miss("not_finite", NOT_FINITE, text)

    def unshared(self, acting: Iterable[Group]) -> list[Unused]:
        """Return the keys of parameters that layers share, where no layer that acts reads them."""
        if not self.shared:
            return []
        read = {param for group in acting if group.recipe is not None for param in group.recipe.kind.shared}
        reason = "shared by layers of which none acts"
        return [Unused(key, "unread", reason) for param, key in self.shared.items() if param not in read]

    def report(self, idle: Sequence[Group] | None = None, acting: Sequence[Adapter] = ()) -> NetworkReport:
        """Sum up what the file says of itself; `Network` adds what became of it on a model.

        Args:
            idle: groups that act on nothing on the model; None without a model.
            acting: the adapters that act.
        """
        kinds = Counter([group.recipe for group in self.groups if group.recipe is not None])
        own, misfits = self._unbound(self.groups if idle is None else idle)
        ranks = {rank for adapter in (*own, *acting) if (rank := adapter.rank) is not None}
        return NetworkReport(
            path=self.file.path,
            format=self.format,
            family=self.family,
            kinds=MappingProxyType({recipe.name: count for recipe, count in kinds.items()}),
            ranks=(min(ranks), max(ranks)) if ranks else None,
            hit=0,
            layers=len(self.groups),
            nbytes=_bytes_of(own if idle is None else acting),
            unused=(*self.unused, *misfits, *self.unshared(self.groups)),
            metadata=self.file.metadata,
            resolved=False,
            notes=(_NO_SCALE,) if self._lacks_scale else (),
            base_model=base_model(self.file.metadata, self.config.base_model),
        )

    def _grouped(self) -> list[Group]:
        # by format and name, so that nothing depends on the order of keys in the file
        order = {name: i for i, name in enumerate(("", *key_formats()))}
        known = list(key_formats().values())
        parsed = []
        for key in self.file.infos:
            name, one = parse_key(known, key, self.file.metadata.get(key))
            parsed.append((order[name], key, name, one))
        parsed.sort()
        names = {one.adapter for *_, one in parsed if one is not None and one.adapter is not None}
        wanted = "default" if "default" in names else min(names, default=None)
        groups: dict[tuple[str | None, str], Group] = {}
        for _, key, name, one in parsed:
            if one is None:
                self.unused.append(Unused(key, "unknown_key", "not understood by any key format"))
                continue
            if one.adapter is not None and one.adapter != wanted:
                reason = f"of a second adapter {one.adapter!r}; only {wanted!r} is used"
                self.unused.append(Unused(key, "unchosen_adapter", reason))
                continue
            group = groups.get((one.component, one.module))
            if group is None:
                belongs: Literal["layer", "file", "embedding"] = "file" if one.module == FILE_WIDE else "layer"
                belongs = "embedding" if one.param.startswith(BUNDLED) else belongs
                group = Group(one.component, one.module, one.flattened, name, belongs)
                groups[one.component, one.module] = group
            if one.param in group.keys:
                self.unused.append(Unused(key, "repeated", f"says the same as {group.keys[one.param]}"))
            else:
                group.keys[one.param] = key
        return list(groups.values())

    def _find_recipes(self) -> None:
        """Find the algorithm of each group; groups of equal names and shapes have the same."""
        known: dict[tuple[tuple[str, tuple[int, ...]], ...], tuple[Recipe | None, Site | None]] = {}
        for group in self.groups:
            shapes = {param: self.file.infos[key].shape for param, key in group.keys.items()}
            same = tuple(shapes.items())
            if same not in known:
                recipe = recipe_of(shapes)
                known[same] = recipe, None if recipe is None else recipe.own_site(shapes)
            group.recipe, group.own_site = known[same]

    def _refuse_strangers(self) -> None:
        keys = self.file.keys
        seen = ", ".join(keys[:4]) or "none"
        companions = {one.name for one in key_formats().values() if not one.alone}
        if companions.issuperset([group.format for group in self.groups]):
            looks = next((what for start, what in _LOOKS.items() for key in keys if key.startswith(start)), "")
            hint = f"; it looks like {looks}" if looks else ""
            text = f"is no adapter known here: none of its {len(keys)} keys is an adapter's ({seen}, …){hint}"
            raise UnknownFormatError(self.file.path, text, keys[:4])
        if not [group for group in self.groups if group.recipe is not None]:
            params = ", ".join(sorted({param for group in self.groups for param in group.keys}))
            text = f"holds adapters of a kind not supported here, with the parameters {params} (keys {seen}, …)"
            raise UnknownAdapterError(self.file.path, text, keys[:4])

    @property
    def _lacks_scale(self) -> bool:
        """Return whether PEFT's configuration is missing, without which nothing tells the scale of its files."""
        scaled = [one for one in self.groups if one.format == "peft" and one.recipe and one.recipe.kind.name in _SCALED]
        return any("alpha" not in one.keys and self._alpha_of_config(one) == Alpha() for one in scaled)

    def _alpha_of_config(self, group: Group) -> Alpha | None:
        try:
            return self.config.alpha(group.component, group.module)
        except NumberError:
            return None  # the layer is left out, and says so

    def _unbound(self, groups: Iterable[Group]) -> tuple[list[Adapter], list[Unused]]:
        """Return adapters with the shapes they claim for themselves, and the keys that do not fit even each other."""
        found: list[Adapter] = []
        misfits: list[Unused] = []
        for group in groups:
            if group.recipe is None:
                misfits.extend(group.unread().of(group))
            elif group.own_site is not None:  # else its parameters do not tell; a model will
                try:
                    found.append(self.adapter(group, group.recipe, group.own_site))
                except ValueError as error:
                    misfits.extend(misfit(error).of(group))
        return found, misfits


def _bytes_of(adapters: Iterable[Adapter]) -> int:
    """Return the bytes of all their tensors; several adapters may have one of them."""
    sizes: dict[int, int] = {}
    for adapter in adapters:
        for _, tensor in adapter.tensors():
            start = tensor.data_ptr()
            sizes[start] = max(tensor.numel() * tensor.element_size(), sizes.get(start, 0))
    return sum(sizes.values())
