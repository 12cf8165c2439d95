"""Reports on files, keys, layers and memory. Data only; hosts decide how to show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Cause = Literal[
    "no_module",  # the model has no layer of that name
    "no_component",  # the model has no part of that name at all
    "shape",  # the tensors do not fit the layer, or each other
    "not_finite",  # a tensor of the layer, or its alpha, is NaN or infinite somewhere
    "unsupported",  # the algorithm needs what the file or its configuration does not have, or what no model here has
    "layer_kind",  # the algorithm is not defined for such a layer
    "unknown_key",  # no key format understands it
    "unknown_parameters",  # no adapter kind reads the parameters of this layer together
    "second_adapter",  # another adapter of the file acts on the layer already
    "unchosen_adapter",  # of an adapter of another name than the one that is used
    "repeated",  # another key says the same
    "unread",  # layers share it, and none of those that act reads it
]
"""Why a key has no effect, for programs; stays as it is from version to version."""


_SHOWN = 3  # names of layers in a sentence


_LEFT_OUT: frozenset[Cause] = frozenset(
    {"no_module", "shape", "layer_kind", "not_finite", "unsupported", "unknown_parameters"}
)
"""Causes for which a layer that is meant for the model does not act."""


@dataclass(frozen=True, slots=True)
class Family:
    """A model family."""

    name: str
    """As in `Architecture.name`: `sdxl`."""
    title: str
    """For people, as in `Stable Diffusion XL`."""
    sure: bool = True
    """False where there are only hints, or another family is as likely."""
    also: tuple[Family, ...] = ()
    """Other families that are about as likely. Empty where there are only hints."""
    named: bool = False
    """Whether the file's metadata names the family, too."""

    @property
    def titles(self) -> str:
        """Return the titles of the family and of the ones in `also`, for people."""
        *others, last = (self.title, *(one.title for one in self.also))
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
        """Tell whether both are known and have no family in common.

        Args:
            hints: whether hints are enough to know the other.
        """
        mine, its = ({one.name, *(also.name for also in one.also)} for one in (self, other))
        return self.known and (hints or other.known) and not mine & its

    def to_json(self) -> dict[str, object]:
        """Return plain data for `json.dumps`."""
        return {"name": self.name, "title": self.title, "sure": self.sure}


@dataclass(frozen=True, slots=True)
class Unused:
    """A key that has no effect."""

    key: str
    cause: Cause
    reason: str
    """Why, in words that other unused keys share; a reason has one cause."""
    detail: str = ""
    """For this key alone: the layer, the expected and the actual shape."""


@dataclass(frozen=True, slots=True)
class NetworkReport:
    """One file against one model."""

    path: Path
    format: str
    """Spelling of the keys; several, joined by `+`, where a file mixes them."""
    family: Family | None
    """The model family the file was made for; None where it is not known."""
    kinds: Mapping[str, int]
    """Adapter algorithm -> number of layers in the file."""
    ranks: tuple[int, int] | None
    """Smallest and largest rank in the file; None where no adapter has one."""
    hit: int
    """Layers of the file that act."""
    layers: int
    """Layers the file has adapters for."""
    nbytes: int
    """Bytes of all tensors that are used."""
    unused: tuple[Unused, ...]
    metadata: Mapping[str, str]
    resolved: bool = True
    """False where the file was read without a model, so that `hit` means nothing."""
    absent: int = 0
    """Layers of the file for components that the model does not have."""
    notes: tuple[str, ...] = ()
    """One sentence for each assumption about what the file does not say."""
    changed: int = 0
    """Layers of the model that are changed: three for one fused q, k and v of the file, one for the reverse."""
    components: frozenset[str] = frozenset()
    """Components of the model in which the file changes a layer."""
    noise: str = ""
    """`high` or `low` where the keys or the file's name choose one of the model's two experts."""
    model: Family | None = None
    """The family of the model; None where it is not known, or without a model."""
    base_model: str | None = None
    """The model the file was made from, in its trainer's words."""
    seconds: float = 0.0
    """To open the file and find its layers; 0 where it was not measured."""

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
        """Return why the file may not work: it is made for another family, or layers are left out; empty if neither.

        If every layer fits, warn only when the file's own metadata names another family.
        """
        if self._differs:
            return f"{self._differs}: {self.hit} of {self.layers} layers fit"
        if not self.hit or self.hit >= self.layers - self.absent:
            return ""  # if no layer acts, the activation raises an error
        such = next((f", such as {one.key}" for one in self.unused if one.cause in _LEFT_OUT), "")
        left = self.layers - self.absent - self.hit
        return f"{left} of {self.layers} layers {'is' if left == 1 else 'are'} left out{such}"

    @property
    def doubt(self) -> str:
        """Return `warning`; empty if it says that layers are left out, as the unused keys tell which and why."""
        return "" if self.hit < self.layers - self.absent and not self._differs else self.warning

    @property
    def _differs(self) -> str:
        """Return for which family the file was made, and which one the model is of; empty where it may fit."""
        own, model = self.family, self.model
        misfit = 2 * self.hit < max(1, self.layers - self.absent)  # then hints at the model's family are believed
        if own is None or model is None or not own.differs(model, hints=misfit):
            return ""
        counts = self.hit < self.layers or (own.sure and own.named)
        return f"made for {own.titles}, the loaded model is {model.likely}" if counts else ""

    def reasons(self) -> dict[str, list[str]]:
        """Return reason -> the keys that are unused for it."""
        grouped: dict[str, list[str]] = {}
        for item in self.unused:
            grouped.setdefault(item.reason, []).append(item.key)
        return grouped

    def why(self) -> str:
        """Return the reasons and their numbers of keys, in one line."""
        return "; ".join(
            f"{reason} ({len(keys)} {'key' if len(keys) == 1 else 'keys'})" for reason, keys in self.reasons().items()
        )

    def summary(self) -> str:
        """Return one line for a log, with what is wrong at the end."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.items())
        rank = "" if self.ranks is None else f", rank {' to '.join(map(str, dict.fromkeys(self.ranks)))}"
        hit = f"{self.hit} of {self.layers} layers" if self.resolved else f"{self.layers} layers"
        if self.noise:
            hit += f", in {self.noise} noise only"
        line = f"{self.name}: {hit} ({kinds}{rank}; {self.format}, {self.architecture or 'unknown architecture'})"
        line = "; ".join(filter(None, [line, self.doubt, *self.notes]))
        if self.unused:
            line += f"; {len(self.unused)} {'key' if len(self.unused) == 1 else 'keys'} unused: {self.why()}"
        return line

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


@dataclass(frozen=True, slots=True)
class Uncalled:
    """A layer with adapters that the model never called, so that they do nothing."""

    component: str
    path: str
    """Of the layer in the component."""
    reason: str
    expected: bool = False
    """Whether a setting of the user leaves it out, such as CLIP skip."""


@dataclass(frozen=True, slots=True)
class ActivationReport:
    """One stack against one model, entry by entry."""

    entries: tuple[NetworkReport, ...]
    merged: int = 0
    """Layers whose weight holds the adapters."""
    live: Mapping[str, int] = field(default_factory=dict)
    """Why layers were not merged though the stack asks for it -> how many."""
    uncalled: tuple[Uncalled, ...] = ()
    """Layers that were never called, of the components that were."""
    changed: int = 0
    """Layers of the model that have adapters."""
    idle: Mapping[int, str] = field(default_factory=dict)
    """Entries that have no effect, by their positions -> why."""
    partly_idle: Mapping[int, str] = field(default_factory=dict)
    """Entries that act on text encoders alone, by their positions -> where not, and why."""
    unlimited: Mapping[int, str] = field(default_factory=dict)
    """Entries that act in full though they have a region or a schedule, by their positions -> why."""
    too_strong: Mapping[int, str] = field(default_factory=dict)
    """The strongest entries, by their positions, if a denoiser's output was not finite -> since which call."""

    def summary(self) -> str:
        """Return one line per entry, one on merging if it was requested, and one on layers that were never called."""
        lines = [self._line(i, entry) for i, entry in enumerate(self.entries)]
        return "\n".join([*lines, *filter(None, [self.merging, self.silence])])

    def without_effect(self, i: int) -> str:
        """Return why an entry has no effect, or no effect on some components; empty where it has."""
        if i in self.idle:
            return f"no effect: {self.idle[i]}"
        return f"no effect {self.partly_idle[i]}" if i in self.partly_idle else ""

    def _line(self, i: int, entry: NetworkReport) -> str:
        effect = f"it has {self.without_effect(i)}" if self.without_effect(i) else ""
        return "; ".join(filter(None, (entry.summary(), effect, self.unlimited.get(i), self.too_strong.get(i))))

    @property
    def silence(self) -> str:
        """Return which layers with adapters were never called, and why; empty where all were."""
        if not self.uncalled:
            return ""
        by_reason: dict[str, list[str]] = {}
        for one in self.uncalled:
            by_reason.setdefault(one.reason, []).append(f"{one.component}.{one.path}")
        parts, were = [], "was" if len(self.uncalled) == 1 else "were"
        for reason, paths in by_reason.items():
            more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
            parts.append(f"{', '.join(paths[:_SHOWN])}{more} ({reason})")
        return f"{len(self.uncalled)} of {self.changed} layers {were} never called: {'; '.join(parts)}"

    @property
    def merging(self) -> str:
        """Return one line on merging; empty where it was not requested."""
        if not (self.merged or self.live):
            return ""
        layers = "layer" if self.merged == 1 else "layers"
        return f"{self.merged} {layers} merged" + "".join(f"; {n} live: {reason}" for reason, n in self.live.items())


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The memory of an engine, in bytes."""

    placed: Mapping[str, int]
    """Device -> adapters on it."""
    streaming: int
    """How many layers are streamed."""
    host_copies: int
    """Copies in the computer's memory of layers that are streamed."""
    files: int
    """Tensors of the files that are kept open. They are mapped: the system decides how much of them is in memory."""
    backups: int
    """Copies of weights that were merged into."""
    scratch: int
    """Effective weights and the like, of all engines of the process."""
    parked: int = 0
    """Adapters of earlier stacks, in the computer's memory."""
    static: int = 0
    """Memory of compiled models for adapters, active or not; active ones count as placed, too."""
