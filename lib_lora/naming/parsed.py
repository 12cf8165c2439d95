"""A file taken apart by its keys, without a model: groups of parameters, and which algorithm reads each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Literal

from torch import Tensor

from ..adapters.base import Adapter, Origin, Site
from ..errors import FileError, NumberError, UnknownAdapterError, UnknownFormatError
from ..files import formats
from ..files.components import EXPERTS, experts_named
from ..files.file import AdapterFile
from ..files.formats.base import BUNDLED, KeyFormat, ParsedKey
from ..files.patterns import EffortError
from ..files.peft_config import PeftConfig
from ..files.provenance import base_model
from ..files.reading import USUAL, Alpha, Reading
from ..registry import discover
from ..report import Cause, Family, NetworkReport, Unused
from ..tensors import LARGEST
from .architectures.base import fact
from .families import family_of
from .recipe import Recipe, recipe_of

SHAPE_DIFFERS = "of another shape"
_SCALED = frozenset({"lora", "dora", "loha", "lokr"})
_NO_SCALE = "its scale is unknown and taken as 1, as it has neither alpha nor adapter_config.json beside it"
NOT_FINITE = "of a layer with numbers that are NaN or infinite"


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
    """The algorithm that reads it, and what goes around that; None where none does."""

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
class Outcome:
    """What became of a file on a model, for its report."""

    adapters: Sequence[Adapter]
    idle: Sequence[Group]
    """Those that act on nothing."""
    absent: int
    """How many of them are for components that the model does not have."""
    unused: Sequence[Unused]
    changed: int
    """Layers of the model."""
    components: frozenset[str]
    noise: str
    model: Family | None


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
        for group in self.groups:
            group.recipe = recipe_of(self.shapes(group))
        self._refuse_strangers()
        self.config = PeftConfig.of(file, beside=any(group.format == "peft" for group in self.groups))
        self._refuse_endless_patterns()

    @property
    def format(self) -> str:
        """Names of the formats seen, the most frequent first."""
        return "+".join(name for name, _ in Counter(group.format for group in self.groups).most_common())

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
        found: dict[str, dict[str, Tensor]] = {}
        for name, keys in self.bundled.items():
            parts = {param.removeprefix(BUNDLED): self.file.tensor(key) for param, key in keys.items()}
            found[name] = {part: one.unsqueeze(0) if one.ndim == 1 else one for part, one in parts.items()}
        return found

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
        value = self.file.numbers.get(key)
        if value is None:
            raise ValueError(f"want one number as alpha, got {self.file.infos[key].shape}")
        if not abs(value) <= LARGEST:  # nan is neither
            raise NumberError(f"want a finite number as alpha, got {value}")
        return Alpha(value)

    @cached_property
    def experts(self) -> tuple[str, ...]:
        """Those of `EXPERTS` that keys are for which do not say so: both, unless the file or a name of it tells."""
        if any(group.component == EXPERTS[1] for group in self.groups):
            return EXPERTS[:1]
        names = (self.file.path.stem, self.file.metadata.get("ss_output_name", ""))  # the file may have been renamed
        return next((found for found in map(experts_named, names) if found), EXPERTS)

    def report(self, outcome: Outcome | None = None) -> NetworkReport:
        """Sum up; without an outcome, that is without a model, by what the file says of itself."""
        kinds = Counter(group.recipe.name for group in self.groups if group.recipe is not None)
        own, misfits = self._unbound(self.groups if outcome is None else outcome.idle)
        acting = () if outcome is None else outcome.adapters
        ranks = [rank for rank in {adapter.rank for adapter in (*own, *acting)} if rank is not None]
        unused = [*misfits, *self.unshared(self.groups)] if outcome is None else outcome.unused
        return NetworkReport(
            path=self.file.path,
            format=self.format,
            family=self.family,
            kinds=MappingProxyType(dict(kinds)),
            ranks=(min(ranks), max(ranks)) if ranks else None,
            hit=0 if outcome is None else len(self.groups) - len(outcome.idle),
            changed=0 if outcome is None else outcome.changed,
            layers=len(self.groups),
            nbytes=_bytes_of(own if outcome is None else acting),
            unused=(*self.unused, *unused),
            metadata=self.file.metadata,
            resolved=outcome is not None,
            components=frozenset() if outcome is None else outcome.components,
            noise="" if outcome is None else outcome.noise,
            absent=0 if outcome is None else outcome.absent,
            notes=(_NO_SCALE,) if self._lacks_scale else (),
            model=None if outcome is None else outcome.model,
            base_model=base_model(self.file.metadata, self.config.base_model),
        )

    @property
    def _lacks_scale(self) -> bool:
        """Whether PEFT's configuration is missing, without which nothing tells the scale of its files."""
        scaled = [one for one in self.groups if one.format == "peft" and one.recipe and one.recipe.kind.name in _SCALED]
        return any("alpha" not in one.keys and self._alpha_of_config(one) == Alpha() for one in scaled)

    def _alpha_of_config(self, group: Group) -> Alpha | None:
        try:
            return self.config.alpha(group.component, group.module)
        except NumberError:
            return None  # the layer is left out, and says so

    def unshared(self, acting: Iterable[Group]) -> list[Unused]:
        """The keys of parameters that layers share, where none of those that act reads them."""
        read = {param for group in acting if group.recipe is not None for param in group.recipe.kind.shared}
        reason = "shared by layers of which none acts"
        return [Unused(key, "unread", reason) for param, key in self.shared.items() if param not in read]

    def _unbound(self, groups: Iterable[Group]) -> tuple[list[Adapter], list[Unused]]:
        """Adapters with the shapes they claim for themselves, and the keys that fit not even each other."""
        found: list[Adapter] = []
        misfits: list[Unused] = []
        for group in groups:
            recipe = group.recipe
            if recipe is None:
                misfits.extend(group.unread())
                continue
            site = recipe.own_site(self.shapes(group))
            if site is None:
                continue  # its parameters do not tell; a model will
            try:
                found.append(self.adapter(group, recipe, site))
            except ValueError as error:
                misfits.extend(misfit(error).of(group))
        return found, misfits

    def _grouped(self) -> list[Group]:
        # by format and name, so that what a key becomes does not depend on where in the file it is
        asked = ["", *key_formats()]
        parsed = [(key, *parse_key(key, self.file.metadata.get(key))) for key in self.file.infos]
        parsed.sort(key=lambda one: (asked.index(one[1]), one[0]))
        names = {one.adapter for _, _, one in parsed if one is not None and one.adapter is not None}
        wanted = "default" if "default" in names else min(names, default=None)
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
        companions = {one.name for one in key_formats().values() if not one.alone}
        if all(group.format in companions for group in self.groups):
            text = f"is no adapter known here: none of its {len(keys)} keys is an adapter's ({seen}, …){_hint(keys)}"
            raise UnknownFormatError(self.file.path, text, keys[:4])
        if all(group.recipe is None for group in self.groups):
            params = sorted({param for group in self.groups for param in group.keys})
            text = (
                f"holds adapters of a kind not supported here, with the parameters {', '.join(params)} (keys {seen}, …)"
            )
            raise UnknownAdapterError(self.file.path, text, keys[:4])

    def _refuse_endless_patterns(self) -> None:
        """Ask for what the configuration says of each layer, which it remembers.

        Raises:
            FileError: that would take too long.
        """
        try:
            for group in self.groups:
                self.config.values(group.component, group.module)
        except EffortError as error:
            raise FileError(self.file.path, f"cannot be used: {error}") from error

    def check_finite(self, group: Group) -> None:
        """Check that all numbers of a group are finite, and those that it shares with others of the file.

        One that is not makes a picture of nothing else.

        Raises:
            NumberError: a tensor has one that is not; the text names it.
            FileError: the file changed on disk.
        """
        read = frozenset() if group.recipe is None else group.recipe.kind.shared
        shared = (key for param, key in self.shared.items() if param in read)
        key = self.file.first_not_finite((*group.keys.values(), *shared))
        if key is not None:
            raise NumberError(f"{key} has numbers that are NaN or infinite; download the file again, or train it again")

    def own_shape(self, group: Group) -> tuple[int, ...] | None:
        """The shape of the weight that a group was made for; None where its parameters do not tell."""
        recipe = group.recipe
        site = None if recipe is None else recipe.own_site(self.shapes(group))
        return None if site is None else site.shape

    def _width(self, group: Group) -> int | None:
        shape = self.own_shape(group)
        return shape[1] if shape is not None and len(shape) > 1 else None


def misfit(error: ValueError, where: str = "") -> Miss:
    """Tell why the parameters of a layer cannot be used.

    Args:
        error: that making an adapter of them raised.
        where: the layer of the model.
    """
    detail = f"{where}: {error}" if where else str(error)
    return (
        Miss("not_finite", NOT_FINITE, detail)
        if isinstance(error, NumberError)
        else Miss("shape", SHAPE_DIFFERS, detail)
    )


def _bytes_of(adapters: Iterable[Adapter]) -> int:
    """Bytes of all their tensors, of which some may be of several adapters."""
    sizes: dict[int, int] = {}
    for adapter in adapters:
        for _, tensor in adapter.tensors():
            start = tensor.data_ptr()
            sizes[start] = max(tensor.numel() * tensor.element_size(), sizes.get(start, 0))
    return sum(sizes.values())


def key_formats() -> Mapping[str, KeyFormat]:
    """All formats, in the order in which they are asked."""
    return discover(formats, KeyFormat)


def parse_key(key: str, said: str | None = None) -> tuple[str, ParsedKey | None]:
    """The format of a key and what it means there; an empty name where no format understands it.

    Args:
        key: of a tensor.
        said: what the header says under the same name.
    """
    for name, one in key_formats().items():
        parsed = one.parse(key, said)
        if parsed is not None:
            return name, parsed
    return "", None


def _group(one: ParsedKey, name: str) -> Group:
    belongs: Literal["layer", "file", "embedding"] = "layer"
    if one.file_wide or one.bundled:
        belongs = "file" if one.file_wide else "embedding"
    return Group(one.component, one.module, one.flattened, name, belongs)


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
