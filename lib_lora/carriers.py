"""The layers that carry slots of one engine: what serves them is put in place for all of them, or for none."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping

from torch import nn

from . import patch
from .errors import ComponentError, LoraError
from .slot import Slot, Way


class Carriers:
    """Layers with slots. Held weakly."""

    def __init__(self) -> None:
        self._token = object()
        self._layers: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def publish(
        self,
        ways: Mapping[nn.Module, Way],
        settle: Callable[[], None],
        resting: Callable[[], Collection[nn.Module]],
        *,
        keep: bool,
        sound: bool = False,
    ) -> None:
        """Have these ways serve their layers, and no others. Or leave all as it was.

        Args:
            ways: by layer; those that serve already go on as they are.
            settle: called when nothing is placed, unless something stays.
            resting: gives the layers that are not where they compute, so that placing beside them would be in vain.
            keep: whether what served before is parked, and not released.
            sound: whether the layers with slots have just been found to call them.

        Raises:
            ComponentError: another engine serves one of the layers.
        """
        held = {layer: slot for layer in self._layers if (slot := self._own(layer)) is not None}
        before = {layer: slot.way for layer, slot in held.items()}
        after = dict(ways.items())  # a dictionary of weak keys would look up each again
        known = held if sound else {}
        try:
            slots = {layer: known.get(layer) or self._slot(layer) for layer in after}
            leaving = [(layer, old) for layer, old in before.items() if old is not after.get(layer)]
            self._end(leaving, keep=keep)  # before the new ones are placed: never both on a device
            for layer in before.keys() - after.keys():
                self._leave(layer, before[layer])
            if len(leaving) == len(before):
                settle()
            for layer, way in after.items():
                slots[layer].way = way
            coming = [(layer, way) for layer, way in after.items() if way is not before.get(layer)]
            new = [(layer, way) for layer, way in coming if not way.resume(layer)]
            idle = resting() if new else ()
            for layer, way in new:
                if way.at_rest or layer not in idle:
                    way.prefetch(layer)
        except BaseException:
            self._restore(before)
            raise

    def park(self, ways: Mapping[nn.Module, Way]) -> None:
        """Have these ways serve no more."""
        own = list(ways.items())
        self._end(own, keep=True)
        for layer, way in own:
            self._leave(layer, way)

    @staticmethod
    def _end(ways: Iterable[tuple[nn.Module, Way | None]], *, keep: bool) -> None:
        """Park ways, or release them."""
        for layer, way in ways:
            if way is not None and keep:
                way.park(layer)
            elif way is not None:
                way.release(layer)

    def reattach(self, ways: Mapping[nn.Module, Way]) -> None:
        """Have these ways serve their layers again, whose forward was replaced meanwhile."""
        for layer, way in list(ways.items()):
            self._slot(layer).way = way

    def detach(self) -> None:
        """Take the slots of all layers away, also where putting back the weights of one fails."""
        failed: LoraError | None = None
        for layer in list(self._layers):
            try:
                patch.detach(layer)
            except LoraError as error:
                failed = failed or error
        self._layers.clear()
        if failed is not None:
            raise failed

    def _restore(self, ways: Mapping[nn.Module, Way | None]) -> None:
        for layer in list(self._layers):
            slot = patch.slot_of(layer)
            if slot is not None and slot.way is not None and slot.way is not ways.get(layer):
                slot.way.release(layer)
            if layer not in ways:
                patch.detach(layer)
                self._layers.discard(layer)
        for layer, way in ways.items():
            self._slot(layer).way = way
            if way is not None and not way.resume(layer) and way.at_rest:
                way.prefetch(layer)

    def _leave(self, layer: nn.Module, way: Way | None) -> None:
        """Take the slot of a layer away, and leave its way what it keeps."""
        slot = patch.slot_of(layer)
        if slot is not None and slot.way is way:
            slot.way = None
        patch.detach(layer)
        self._layers.discard(layer)

    def _own(self, layer: nn.Module) -> Slot | None:
        slot = patch.slot_of(layer)
        return None if slot is None or slot.owner is not self._token else slot

    def _slot(self, layer: nn.Module) -> Slot:
        slot = patch.slot_of(layer)
        if slot is None or slot.owner is not self._token:
            if slot is not None and slot.way is not None:
                raise ComponentError(f"a {type(layer).__name__} is served by another Engine; deactivate that one first")
            slot = Slot(self._token, layer)
        elif patch.is_attached(layer, slot):
            return slot  # and known
        patch.attach(layer, slot)
        self._layers.add(layer)
        return slot


def carries(layer: nn.Module, way: Way) -> bool:
    """Whether a way serves a layer."""
    slot = patch.slot_of(layer)
    return slot is not None and slot.way is way
