"""The one engine of this process, between a host and the library."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from lib_lora import ActivationReport, Engine, Entry, LoraError, Stack

from .catalog import Catalog, CatalogFile

if TYPE_CHECKING:
    from torch import Tensor

    from lib_lora import NetworkReport

    from .hosts import Host

Mode: TypeAlias = Literal["live", "merged", "auto"]
"""As in `lib_lora.Stack`."""
Storage: TypeAlias = Literal["file", "bfloat16", "float8"]
"""As in `lib_lora.Engine`."""

logger = logging.getLogger(__name__)


class Wish(Protocol):
    """One LoRA asked for by name; a prompt's tag is one."""

    @property
    def name(self) -> str: ...

    @property
    def multiplier(self) -> float | Mapping[str, float]: ...

    @property
    def rank(self) -> int | None: ...


@dataclass(frozen=True)
class Active:
    """One LoRA in force."""

    name: str
    """As asked for."""
    file: CatalogFile
    report: NetworkReport


@dataclass(frozen=True)
class Activation:
    """What a generation runs with."""

    active: tuple[Active, ...] = ()
    skipped: tuple[str, ...] = ()
    """One sentence for each LoRA that was asked for and left out."""
    report: ActivationReport = field(default_factory=lambda: ActivationReport(()))
    """What the engine says of `active`, and of what was merged."""
    notes: tuple[str, ...] = ()
    """One sentence for each embedding that came with a LoRA and cannot be used."""

    def lines(self) -> tuple[str, ...]:
        """One line per LoRA, and one on merging where that was asked for."""
        return tuple(self.report.summary().splitlines())


@dataclass(frozen=True)
class Memory:
    """How the engine keeps LoRA."""

    storage: Storage = "file"
    """How they are stored on a device: in the dtype they are computed in, or in fewer bytes."""
    device_budget: int | None = None
    """Bytes they may take of a device; None is no limit."""
    cache_bytes: int | None = None
    """Bytes that files kept open after use may have together; None is no limit."""


@dataclass(frozen=True)
class Settings:
    """What the user's settings mean for a generation."""

    skip_bad: bool = False
    """A name or file that fails is left out, logged and reported."""
    mode: Mode = "live"
    in_order: bool = False
    memory: Memory = Memory()


class Session:
    """Turns LoRA names into a stack in force on the host's model; used by one generation at a time."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.catalog = Catalog(host.adapter_dirs)
        self.last = Activation()
        """What the latest generation ran with."""
        self._engine: Engine | None = None
        self._memory = Memory()  # of the engine
        self._said: set[str] = set()

    def begin(
        self,
        wishes: Sequence[Wish],
        settings: Settings = Settings(),
        calls: int | None = None,
    ) -> Activation:
        """Put these LoRAs in force in place of all others; none switches all off.

        Args:
            wishes: the LoRAs, in order.
            settings: how they act, and what becomes of one that fails.
            calls: how often the generation will call the model; None where nobody knows.

        Raises:
            LoraError: a name or a file failed, and is not to be skipped; what was in force before stays so.
        """
        skipped: list[str] = []
        named = self._found(wishes, settings.skip_bad, skipped)
        while True:
            try:
                report = self._activate(named, settings, calls)
                break
            except LoraError as error:
                culprit = getattr(error, "index", None)  # ActivationError and StackError name the entry
                if culprit is None:
                    raise
                _skip_or_raise(error, settings.skip_bad, skipped)
                del named[culprit]
        active = tuple(Active(wish.name, file, one) for (wish, file), one in zip(named, report.entries, strict=True))
        self.last = Activation(active, tuple(skipped), report, self._lend_embeddings(active))
        return self.last

    def end(self) -> None:
        """Switch all LoRAs off; the model is as it was without any."""
        try:
            self.host.use_embeddings({})
        finally:
            if self._engine is not None:
                self._engine.deactivate()

    def model_changed(self) -> None:
        """Follow the host to another model; nothing is in force on the new one until a generation begins."""
        self.close()
        logger.debug("remora: serving %s", ", ".join(self.host.components()) or "no model")

    def close(self) -> None:
        """Take everything off the model; a later `begin` starts anew."""
        self.end()
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _found(self, wishes: Sequence[Wish], skip_bad: bool, skipped: list[str]) -> list[tuple[Wish, CatalogFile]]:
        named = []
        for wish in wishes:
            try:
                named.append((wish, self.catalog.find(wish.name)))
            except LoraError as error:
                _skip_or_raise(error, skip_bad, skipped)
        return named

    def _activate(
        self, named: Sequence[tuple[Wish, CatalogFile]], settings: Settings, calls: int | None
    ) -> ActivationReport:
        entries = [Entry(file.path, wish.multiplier, wish.rank) for wish, file in named]
        stack = Stack(entries, mode=settings.mode, in_order=settings.in_order, calls=calls)
        report = self._engine_with(settings.memory).activate(stack)
        for line in report.summary().splitlines():
            logger.info("remora: %s", line)
        return report

    def _engine_with(self, memory: Memory) -> Engine:
        """The engine, made anew where LoRA are to be kept in another way."""
        if self._engine is not None and self._memory != memory:
            self.close()
        if self._engine is None:
            self._engine = make_engine(self.host, memory)
            self._memory = memory
        return self._engine

    def _lend_embeddings(self, active: Sequence[Active]) -> tuple[str, ...]:
        """Hand the host what came with the LoRAs; returns a sentence for each embedding that cannot be used."""
        try:
            embeddings, notes = self._bundled(active)
            notes += self.host.use_embeddings(embeddings)
        except BaseException:
            self.end()
            raise
        for note in notes:
            if note not in self._said:
                self._said.add(note)
                logger.warning("remora: %s", note)
        return tuple(notes)

    def _bundled(self, active: Sequence[Active]) -> tuple[dict[str, Mapping[str, Tensor]], list[str]]:
        embeddings: dict[str, Mapping[str, Tensor]] = {}
        owners: dict[str, Active] = {}  # by the name as tokenizers see it
        notes = []
        for one, own in zip(active, self._engine.embeddings if self._engine is not None else (), strict=True):
            for name, parts in own.items():
                owner = owners.setdefault(name.lower(), one)
                if owner is one:
                    embeddings[name] = parts
                elif owner.file != one.file:
                    notes.append(f"embedding {name!r} is that of {owner.name}; the one of {one.name} is not used")
        return embeddings, notes


def make_engine(host: Host, memory: Memory) -> Engine:
    """Make the engine for the host's model."""
    return Engine(host.components(), checkpoints=host.checkpoints())


def _skip_or_raise(error: LoraError, skip_bad: bool, skipped: list[str]) -> None:
    if not skip_bad:
        raise error
    logger.warning("remora: skipped: %s", error)
    skipped.append(str(error))
