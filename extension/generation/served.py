"""The model that the host has loaded, and the engine on it."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import lib_lora
from lib_lora import Stack, is_denoiser

from .request import Memory

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lib_lora import BlockNames, Clock, Engine, Family, Rows

    from ..hosts import Host
    from .outcomes import Active

logger = logging.getLogger(__name__)


class ServedModel:
    """Keeps an engine on the host's present model, and knows whether LoRA have an effect there."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.fault = ""
        """Why the host could not be taken over for the present model; empty if it was."""
        self.engine: Engine | None = None
        """None until LoRA are activated, and after the host changed its model."""
        self._memory = Memory()  # of the engine
        self._rows: Rows | None = None
        self._clock: Clock | None = None
        self._family: Family | None = None
        self._blocks: BlockNames | None = None
        self._known: Mapping[str, weakref.ref[nn.Module]] = {}
        """The parts that `_family` and `_blocks` are about."""
        self._useless = ""
        self._useless_for: Mapping[str, weakref.ref[nn.Module]] = {}

    @property
    def components(self) -> Mapping[str, nn.Module]:
        """Return the parts of the host's present model that LoRA can change."""
        return self._host.components()

    @property
    def family(self) -> Family | None:
        """Return the family of the host's present model, or None if it is unknown."""
        self._look()
        return self._family

    @property
    def blocks(self) -> BlockNames:
        """Return the blocks of the host's present model; empty without a model."""
        self._look()
        if self._blocks is None:
            self._blocks = lib_lora.model_blocks(self.components)
        return self._blocks

    def _look(self) -> None:
        """Update the family, which is quick; `blocks` finds the blocks on demand."""
        parts, present = self.components, self._parts()
        if present != self._known:
            self._family, self._known = lib_lora.model_family(parts) if parts else None, present
            self._blocks = None

    def _parts(self) -> Mapping[str, weakref.ref[nn.Module]]:
        return {name: weakref.ref(part) for name, part in self.components.items()}

    # --- whether LoRA have an effect ---

    @property
    def useless(self) -> str:
        """Return why LoRA have no effect on the host's present model; empty if they have, or may have.

        The host may know; otherwise the first picture finds this out. The host's own LoRA applies the tags.
        """
        found = self._useless if self._useless and self._parts() == self._useless_for else ""
        return self.fault or found or self._host.cannot_serve()

    def try_again(self) -> None:
        """Forget why LoRA have no effect: the next picture finds it out anew."""
        self.fault = self._useless = ""
        self._useless_for = {}

    def look_for_layers(self) -> None:
        """Find out from the latest picture whether LoRA can change this model."""
        silent = frozenset[str]() if self.engine is None else self.engine.silent
        if self.engine is None or not silent or self.useless:
            return
        if not {name for name in self.engine.components if is_denoiser(name)} - silent:
            names = " and ".join(sorted(silent))
            so = "the web UI's own LoRA gets the tags" if self._host.has_own_lora else "no LoRA has an effect"
            self._useless, self._useless_for = (
                f"no layer of the {names} was called: something else computes in their place, such as a compiled "
                f"engine; {so}, until another model is loaded or Remora is turned off and on in the settings",
                self._parts(),
            )
            logger.warning("remora: %s", self.useless)

    # --- the engine ---

    @property
    def is_served(self) -> bool:
        """Return whether the engine is on the host's present model."""
        if self.engine is None:
            return False
        served, present = self.engine.components, self.components
        return served.keys() == present.keys() and all(served[name] is part for name, part in present.items())

    def engine_with(self, memory: Memory) -> Engine:
        """Return the engine on the host's present model; it is made again when `memory` changes."""
        if self._memory != memory or not self.is_served:
            self.leave()
        if self.engine is None:
            self.engine = make_engine(self._host, memory)
            self.engine.set_rows(self._rows)
            self.engine.set_clock(self._clock)
            self._memory = memory
        return self.engine

    def deactivate(self) -> None:
        """Take all LoRA off; their tensors are kept for the next batch."""
        try:
            self._host.use_embeddings({})
        finally:
            if self.engine is not None:
                self.engine.activate(Stack())

    def leave(self) -> None:
        """Remove the engine from the model."""
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.close()

    def set_rows(self, rows: Rows | None) -> None:
        """Set `lib_lora.Engine.set_rows`, for later batches too."""
        self._rows = rows
        if self.engine is not None:
            self.engine.set_rows(rows)

    def set_clock(self, clock: Clock | None) -> None:
        """Set `lib_lora.Engine.set_clock`, for later batches too."""
        self._clock = clock
        if self.engine is not None:
            self.engine.set_clock(clock)

    def bytes_to_place(self, active: Sequence[Active]) -> int:
        """Return the bytes of the GPU that these LoRA will take beside what they take now, by their files."""
        if self.engine is None:
            return 0
        needed, budget = sum(one.file.size for one in active), self._memory.device_budget
        placed = sum(nbytes for device, nbytes in self.engine.memory().placed.items() if device != "cpu")
        return max(0, (needed if budget is None else min(needed, budget)) - placed)

    def lend_embeddings(self, active: Sequence[Active]) -> list[str]:
        """Give the host the embeddings in the files of these LoRA; return one sentence for each it cannot use."""
        embeddings: dict[str, Mapping[str, Tensor]] = {}
        owners: dict[str, Active] = {}  # by the name as tokenizers see it
        notes = []
        for lora, bundled in zip(active, self.engine.embeddings if self.engine is not None else (), strict=True):
            for name, parts in bundled.items():
                owner = owners.setdefault(name.lower(), lora)
                if owner is lora:
                    embeddings[name] = parts
                elif owner.file != lora.file:
                    notes.append(f"embedding {name!r} is read from {owner.name}; the one in {lora.name} is ignored")
        return [*notes, *self._host.use_embeddings(embeddings)]


def make_engine(host: Host, memory: Memory) -> Engine:
    """Create the engine for the host's model."""
    return lib_lora.Engine(
        host.components(),
        checkpoints=host.checkpoints(),
        storage=memory.storage,
        device_budget=memory.device_budget,
        cache_bytes=memory.cache_bytes,
        rank_buckets=lib_lora.RANK_BUCKETS if memory.round_up else (),
        parked_bytes=memory.ready_bytes,
    )
