"""The one engine of this process, between a host and the library."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lib_lora import Engine, Entry, LoraError, Stack

from .catalog import Catalog, CatalogFile

if TYPE_CHECKING:
    from lib_lora import NetworkReport

    from .hosts import Host

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


class Session:
    """Turns LoRA names into a stack in force on the host's model; used by one generation at a time."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.catalog = Catalog(host.adapter_dirs)
        self.last = Activation()
        """What the latest generation ran with."""
        self._engine: Engine | None = None

    def begin(self, wishes: Sequence[Wish], skip_bad: bool) -> Activation:
        """Put these LoRAs in force in place of all others; none switches all off.

        With `skip_bad` a name or file that fails is left out, logged and reported; otherwise:

        Raises:
            LoraError: a name or a file failed; what was in force before stays so.
        """
        named: list[tuple[Wish, CatalogFile]] = []
        skipped: list[str] = []
        for wish in wishes:
            try:
                named.append((wish, self.catalog.find(wish.name)))
            except LoraError as error:
                _skip_or_raise(error, skip_bad, skipped)
        while True:
            try:
                self.last = Activation(self._activate(named), tuple(skipped))
                return self.last
            except LoraError as error:
                culprit = getattr(error, "index", None)  # ActivationError and StackError name the entry
                if culprit is None:
                    raise
                _skip_or_raise(error, skip_bad, skipped)
                del named[culprit]

    def end(self) -> None:
        """Switch all LoRAs off; the model is as it was without any."""
        if self._engine is not None:
            self._engine.deactivate()

    def model_changed(self) -> None:
        """Follow the host to another model; nothing is in force on the new one until a generation begins."""
        components = self.host.components()
        if self._engine is None:
            self._engine = Engine(components)
        else:
            self._engine.components = components
        logger.debug("remora: serving %s", ", ".join(components) or "no model")

    def close(self) -> None:
        """Take everything off the model; a later `begin` starts anew."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _activate(self, named: Sequence[tuple[Wish, CatalogFile]]) -> tuple[Active, ...]:
        if self._engine is None:
            self.model_changed()
        assert self._engine is not None
        stack = Stack(Entry(file.path, wish.multiplier, wish.rank) for wish, file in named)
        report = self._engine.activate(stack)
        for network in report.entries:
            logger.info("remora: %s", network.summary())
        return tuple(
            Active(wish.name, file, network) for (wish, file), network in zip(named, report.entries, strict=True)
        )


def _skip_or_raise(error: LoraError, skip_bad: bool, skipped: list[str]) -> None:
    if not skip_bad:
        raise error
    logger.warning("remora: skipped: %s", error)
    skipped.append(str(error))
