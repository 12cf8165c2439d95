"""What became of a file: what was used, what was not, and why. Data only; hosts decide how to show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Unused:
    """A key that has no effect."""

    key: str
    reason: str
    """Why, in words that other keys of the same fate share."""
    detail: str = ""
    """What is particular to this key: the layer, the shape wanted and got."""


@dataclass(frozen=True, slots=True)
class NetworkReport:
    """One file against one model."""

    path: Path
    format: str
    """Spelling of the keys; several, joined by `+`, where a file mixes them."""
    architecture: str | None
    """Name of the model family the file was made for; None where nothing tells."""
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
    """False where the file was read without a model, so that `hit` says nothing."""
    changed: int = 0
    """Layers of the model that are changed: three for one of the file that is q, k and v."""
    components: frozenset[str] = frozenset()
    """Those of the model that have a layer which the file changes."""

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.stem

    def reasons(self) -> dict[str, list[str]]:
        """Reason -> the keys that go unused for it."""
        grouped: dict[str, list[str]] = {}
        for item in self.unused:
            grouped.setdefault(item.reason, []).append(item.key)
        return grouped

    def causes(self) -> str:
        """The reasons with how many keys each concerns, in one line."""
        return "; ".join(f"{len(keys)} {reason}" for reason, keys in self.reasons().items())

    def summary(self) -> str:
        """One line for a log or under a row of the stack."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.items())
        rank = "" if self.ranks is None else f", rank {_range(*self.ranks)}"
        hit = f"{self.hit} of {self.layers} layers" if self.resolved else f"{self.layers} layers"
        line = f"{self.name}: {hit} ({kinds}{rank}; {self.format}, {self.architecture or 'unknown architecture'})"
        if self.unused:
            line += f"; {len(self.unused)} keys unused: {self.causes()}"
        return line

    def to_json(self) -> dict[str, object]:
        """Plain data for `json.dumps`."""
        return {
            "file": str(self.path),
            "name": self.name,
            "format": self.format,
            "architecture": self.architecture,
            "kinds": dict(self.kinds),
            "ranks": None if self.ranks is None else list(self.ranks),
            "hit": self.hit if self.resolved else None,
            "layers": self.layers,
            "changed": self.changed if self.resolved else None,
            "bytes": self.nbytes,
            "unused": self.reasons(),
            "details": {item.key: item.detail for item in self.unused if item.detail},
            "metadata": dict(self.metadata),
        }


@dataclass(frozen=True, slots=True)
class ActivationReport:
    """One stack against one model, entry by entry."""

    entries: tuple[NetworkReport, ...]
    merged: int = 0
    """Layers whose weight holds the adapters."""
    live: Mapping[str, int] = field(default_factory=dict)
    """Why layers were not merged though the stack asks for it -> how many."""

    def summary(self) -> str:
        """One line per entry, and one on merging where that was asked for."""
        lines = [entry.summary() for entry in self.entries]
        if self.merged or self.live:
            reasons = "".join(f"; {count} live: {reason}" for reason, count in self.live.items())
            lines.append(f"{self.merged} layers merged{reasons}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """What an engine takes, in bytes."""

    placed: Mapping[str, int]
    """Device -> adapters that are there now."""
    staging: int
    """Buffers on devices through which layers are streamed. Those that are there for a call count as placed, too."""
    streaming: int
    """How many layers are streamed."""
    home: int
    """Copies in the computer's memory of layers that are streamed."""
    files: int
    """Tensors of the files that are kept open. They are mapped: in memory as far as the system likes to cache them."""
    backups: int
    """Copies of weights that were merged into."""
    scratch: int
    """Effective weights and the like, of all engines of the process."""

    def summary(self) -> str:
        """One line for a log."""
        placed = ", ".join(f"{nbytes >> 20} MB on {device}" for device, nbytes in self.placed.items())
        streams = f", {self.streaming} layers streamed" if self.streaming else ""
        others = ", ".join(f"{name} {getattr(self, name) >> 20} MB" for name in ("home", "files", "backups", "scratch"))
        return f"adapters: {placed or 'nothing placed'}{streams}; {others}"


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
