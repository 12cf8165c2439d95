"""Reports on files, keys, layers and memory: data, which the host shows as it likes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from .errors import OneLine

_SHOWN = 3  # names of layers in a sentence

Cause = Literal[
    "no_module",  # the model has no layer of that name
    "no_component",  # the model has no component of that name
    "shape",  # the tensors do not fit the layer, or each other
    "not_finite",  # a tensor of the layer, or its alpha, has a number that is NaN or infinite
    "unsupported",  # the algorithm needs data that the file, its configuration or the model does not have
    "layer_kind",  # the algorithm is not defined for such a layer
    "unknown_key",  # no key format understands it
    "unknown_parameters",  # no adapter kind reads this combination of parameters of a layer
    "second_adapter",  # another adapter of the file acts on the layer already
    "unchosen_adapter",  # it belongs to an adapter of another name than the one that is used
    "repeated",  # another key says the same, or what counts in its place
    "unread",  # several layers share it, and no layer that acts reads it
]
"""Why a key has no effect, for programs; the same in all versions."""

_LEFT_OUT: frozenset[Cause] = frozenset(
    {"no_module", "shape", "layer_kind", "not_finite", "unsupported", "unknown_parameters"}
)
"""The causes for which a layer of the file is left out, though the model has its component."""


@dataclass(frozen=True, slots=True, repr=False)
class Family(OneLine):
    """A model family."""

    name: str
    """As in `Architecture.name`: `sdxl`."""
    title: str
    """For people: `Stable Diffusion XL`."""
    sure: bool = True
    """False where there are only hints, or another family is as likely."""
    also: tuple[Family, ...] = ()
    """Other families that are about as likely; empty where there are only hints."""
    named: bool = False
    """Whether the file's metadata names the family, too."""

    @property
    def titles(self) -> str:
        """Return the titles of all families that it may be, for people."""
        *others, last = (self.title, *(family.title for family in self.also))
        if len(others) > _SHOWN:
            others, last = others[:_SHOWN], f"{len(others) + 1 - _SHOWN} others with such layers"
        return f"{', '.join(others)} or {last}" if others else last

    @property
    def known(self) -> bool:
        """Return whether there are more than hints."""
        return self.sure or bool(self.also)

    @property
    def likely(self) -> str:
        """Return `titles`, behind "probably" where there are only hints."""
        return self.titles if self.known else f"probably {self.titles}"

    def differs(self, other: Family, *, hints: bool = False) -> bool:
        """Tell whether both are known and have no family in common; with `hints`, hints are enough for the other."""
        mine, its = ({family.name, *(also.name for also in family.also)} for family in (self, other))
        return self.known and (hints or other.known) and not mine & its

    def to_json(self) -> dict[str, object]:
        """Return plain data for `json.dumps`."""
        return {"name": self.name, "title": self.title, "sure": self.sure}


class Unused(NamedTuple):
    """A key that has no effect."""

    key: str
    cause: Cause
    reason: str
    """Why, in a sentence that unused keys share; a reason has one cause."""
    detail: str = ""
    """Of this key alone: the layer, the expected and the actual shape."""


@dataclass(frozen=True, slots=True, repr=False)
class NetworkReport(OneLine):
    """One file against one model."""

    path: Path
    format: str
    """The spelling of the keys; several, joined by `+`, where a file mixes them."""
    family: Family | None
    """The model family the file was made for; None where it is not known."""
    kinds: Mapping[str, int]
    """Adapter algorithm -> number of layers in the file."""
    ranks: tuple[int, int] | None
    """The smallest and the largest rank in the file; None where no adapter has one."""
    hit: int
    """How many layers of the file act."""
    layers: int
    """How many layers the file has adapters for."""
    nbytes: int
    """Bytes of the tensors that are used."""
    unused: tuple[Unused, ...]
    """The keys that have no effect, each with the reason."""
    metadata: Mapping[str, str]
    """Of the file's header."""
    resolved: bool = True
    """False where the file was read without a model, so that `hit` means nothing."""
    absent: int = 0
    """How many layers of the file are for components that the model does not have."""
    notes: tuple[str, ...] = ()
    """One sentence for each assumption about data that the file does not have."""
    scales: tuple[str, ...] = ()
    """What tells the scales of its layers: `user`, `tensors`, `file` (its header or its configuration), `convention` or
    `guess`; empty where no kind in it has a scale."""
    changed: int = 0
    """How many layers of the model are changed: three for one fused q, k and v of the file, one for the reverse."""
    components: frozenset[str] = frozenset()
    """The components of the model in which the file changes a layer."""
    noise: str = ""
    """`high` or `low` where the keys or the file's name choose one of the model's two experts."""
    model: Family | None = None
    """The family of the model; None where it is not known, or without a model."""
    base_model: str | None = None
    """The model the file was made from, in its trainer's words."""
    seconds: float = 0.0
    """The time to open the file and find its layers; 0 where it was not measured."""
    faults: tuple[str, ...] = ()
    """One sentence for each part of a folder that is not used."""

    @property
    def name(self) -> str:
        """Return the file's name without its ending."""
        return self.path.stem

    @property
    def architecture(self) -> str | None:
        """Return the name of the model family the file was made for; None where it is not known."""
        return None if self.family is None else self.family.name

    @property
    def warning(self) -> str:
        """Return why the file may not work: its `faults`; `doubt`, or else that layers are left out; empty if none."""
        return "; ".join(filter(None, [*self.faults, self._misfit]))

    @property
    def _misfit(self) -> str:
        left = self.layers - self.absent - self.hit
        if self.doubt or not self.hit or left <= 0:  # if no layer acts, the activation raises an error
            return self.doubt
        first = next((item for item in self.unused if item.cause in _LEFT_OUT), None)
        such = "" if first is None else f", such as {first.key}"
        why = f": {first.reason}" if first is not None and first.cause == "shape" else ""
        return f"{left} of {self.layers} layers {'is' if left == 1 else 'are'} left out{such}{why}"

    @property
    def doubt(self) -> str:
        """Return that the file was made for another family than the model's, and how much fits; empty if it was not.

        If every layer fits, only the file's metadata can tell that.
        """
        made_for, model = self.family, self.model
        misfit = 2 * self.hit < max(1, self.layers - self.absent)  # then hints at the model's family are believed
        if made_for is None or model is None or not made_for.differs(model, hints=misfit):
            return ""
        if self.hit >= self.layers and not (made_for.sure and made_for.named):
            return ""
        fit = f"{self.hit} of {self.layers} layers fit"
        return f"made for {made_for.titles}, the loaded model is {model.likely}: {fit}"

    def reasons(self) -> dict[str, list[str]]:
        """Return reason -> the keys that are unused for it."""
        return _grouped((item.reason, item.key) for item in self.unused)

    def why(self) -> str:
        """Return the reasons in one line, each with its number of keys and the detail of the first key."""
        details = {item.key: item.detail for item in self.unused}
        counts = [(reason, _keys(len(keys)), details[keys[0]]) for reason, keys in self.reasons().items()]
        return "; ".join(f"{reason} ({count}{detail and f', such as {detail}'})" for reason, count, detail in counts)

    def summary(self) -> str:
        """Return one line for a log, with the faults at the end."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.items())
        rank = "" if self.ranks is None else f", rank {' to '.join(map(str, dict.fromkeys(self.ranks)))}"
        hit = f"{self.hit} of {self.layers} layers" if self.resolved else f"{self.layers} layers"
        if self.noise:
            hit += f", in {self.noise} noise only"
        line = f"{self.name}: {hit} ({kinds}{rank}, {self.format}, {self.architecture or 'unknown architecture'})"
        unused = f"{_keys(len(self.unused))} unused: {self.why()}" if self.unused else ""
        return "; ".join(filter(None, [line, *self.faults, self.doubt, *self.notes, unused]))

    def to_json(self) -> dict[str, object]:
        """Return plain data for `json.dumps`."""
        return {
            "file": str(self.path),
            "name": self.name,
            "format": self.format,
            "architecture": self.architecture,
            "family": None if self.family is None else self.family.to_json(),
            "base_model": self.base_model,
            "model": None if self.model is None else self.model.to_json(),
            "warning": self.warning,
            "notes": list(self.notes),
            "scales": list(self.scales),
            "kinds": dict(self.kinds),
            "ranks": None if self.ranks is None else list(self.ranks),
            "hit": self.hit if self.resolved else None,
            "layers": self.layers,
            "changed": self.changed if self.resolved else None,
            "components": sorted(self.components),
            "noise": self.noise or None,
            "bytes": self.nbytes,
            "seconds": self.seconds,
            "unused": self.reasons(),
            "causes": {item.reason: item.cause for item in self.unused},
            "details": {item.key: item.detail for item in self.unused if item.detail},
            "metadata": dict(self.metadata),
        }


@dataclass(frozen=True, slots=True, repr=False)
class Uncalled(OneLine):
    """A layer with adapters that the model never called, so that its adapters do nothing."""

    component: str
    path: str
    """The name of the layer in the component."""
    reason: str
    expected: bool = False
    """Whether a setting of the user, such as CLIP skip, leaves it out."""


@dataclass(frozen=True, slots=True, repr=False)
class ActivationReport(OneLine):
    """One stack against one model, entry by entry."""

    entries: tuple[NetworkReport, ...]
    """The report on each file, in the order of the stack."""
    merged: int = 0
    """How many layers have the adapters in their weight."""
    live: Mapping[str, int] = field(default_factory=dict)
    """Why layers were not merged though the stack asks for it -> how many."""
    uncalled: tuple[Uncalled, ...] = ()
    """The layers that no call of their component has called."""
    changed: int = 0
    """How many layers of the model have adapters."""
    idle: Mapping[int, str] = field(default_factory=dict)
    """Position of each entry without effect -> why."""
    partly_idle: Mapping[int, str] = field(default_factory=dict)
    """Position of each entry that acts on text encoders alone -> on which components it does not, and why."""
    unlimited: Mapping[int, str] = field(default_factory=dict)
    """Position of each entry that acts in full though it has a region or a schedule -> why."""
    too_strong: Mapping[int, str] = field(default_factory=dict)
    """Position of the strongest entries, if a denoiser's output was not finite -> since which call."""
    lost: str = ""
    """Why the stack could not be put on the model as it has become; empty where it could."""
    broken: str = ""
    """The error by which a call of the model failed; empty where none did, or another call made up for it."""

    def summary(self) -> str:
        """Return one line per entry, one on merging if it was requested, and one on layers that were never called."""
        lines = []
        for i, entry in enumerate(self.entries):
            effect = f"it has {self.without_effect(i)}" if self.without_effect(i) else ""
            parts = entry.summary(), effect, self.unlimited.get(i), self.too_strong.get(i)
            lines.append("; ".join(filter(None, parts)))
        return "\n".join([*lines, *filter(None, [self.merging, self.silence])])

    def without_effect(self, i: int) -> str:
        """Return why an entry has no effect, or no effect on some components; empty where it has."""
        if i in self.idle:
            return f"no effect: {self.idle[i]}"
        return f"no effect {self.partly_idle[i]}" if i in self.partly_idle else ""

    @property
    def silence(self) -> str:
        """Return which layers with adapters have no effect, never being called or lost, and why; empty if all have."""
        parts, were = [], "was" if len(self.uncalled) == 1 else "were"
        by_reason = _grouped((layer.reason, f"{layer.component}.{layer.path}") for layer in self.uncalled)
        for reason, paths in by_reason.items():
            more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
            parts.append(f"{', '.join(paths[:_SHOWN])}{more} ({reason})")
        layers = max(self.changed, len(self.uncalled))  # the changed ones that are still there
        never = f"{len(self.uncalled)} of {layers} layers {were} never called: {'; '.join(parts)}" if parts else ""
        return "; ".join(filter(None, [self.lost, never]))

    @property
    def merging(self) -> str:
        """Return one line on merging; empty where it was not requested."""
        if not (self.merged or self.live):
            return ""
        layers = "layer" if self.merged == 1 else "layers"
        return f"{self.merged} {layers} merged" + "".join(f"; {n} live: {reason}" for reason, n in self.live.items())


@dataclass(frozen=True, slots=True, repr=False)
class MemoryReport(OneLine):
    """The memory of an engine, in bytes."""

    placed: Mapping[str, int]
    """Device -> adapters in force."""
    streaming: int
    """How many layers are streamed."""
    host_copies: int
    """Copies in the computer's memory of layers that are streamed."""
    files: int
    """Tensors of the files that are kept open. Files are mapped: the system decides how much of one is in memory."""
    backups: int
    """Copies of weights that were merged into."""
    parked: int = 0
    """Adapters of former stacks, in the computer's memory."""
    static: int = 0
    """Memory of compiled models for adapters; the part of it that is in force counts as placed, too."""


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, item in pairs:
        groups.setdefault(name, []).append(item)
    return groups


def _keys(count: int) -> str:
    return f"{count} {'key' if count == 1 else 'keys'}"
