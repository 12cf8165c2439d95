"""Layers that have adapters and are never called, so that these do nothing: which, and why as far as can be told.

Every slot notes its first calls. Where one layer of a component is called, and others are not, other code computes in
their place: a fused kernel, or a forward that was replaced. Models that torch compiles are trusted: what they
call is decided when they are compiled.
"""

from __future__ import annotations

import logging
import re
import weakref
from collections.abc import Container, Iterator, Mapping, Sequence

from torch import nn

from . import patch
from .auto import is_compiled
from .report import ActivationReport, Uncalled
from .slot import Slot

logger = logging.getLogger(__name__)

Layers = Mapping[tuple[str, str], nn.Module]
"""Component and path -> layer."""
_BLOCK = re.compile(r"(?P<list>.*)\.(?P<number>\d+)\.")
_FAST_PATH = (nn.TransformerEncoder, nn.TransformerEncoderLayer)


class Watch:
    """Looks which layers of a model are called; when a component is called again, it says which were not."""

    def begin(self, components: Mapping[str, nn.Module], layers: Layers) -> None:
        """Look at the next call of each component that has layers with adapters."""
        for name in sorted({component for component, _ in layers}):
            component = components.get(name)
            if component is not None and not is_compiled(component):
                _Teller(name, component, {place: layer for place, layer in layers.items() if place[0] == name})

    def found(
        self, components: Mapping[str, nn.Module], layers: Layers, known: Container[str] = ()
    ) -> tuple[Uncalled, ...]:
        """Tell which layers were not called, of components that are known to be, or of which others were."""
        slots = [(name, patch.slot_of(layer)) for (name, _), layer in layers.items()]
        called = {name for name, slot in slots if name in known or (slot is not None and slot.calls)}
        parts = {name: part for name, part in components.items() if name in called and not is_compiled(part)}
        return tuple(one for name, part in sorted(parts.items()) for one in _of(name, part, layers))

    def silent(self, components: Mapping[str, nn.Module], layers: Layers) -> frozenset[str]:
        """Tell the components of which no layer was called."""
        slots = [(name, patch.slot_of(layer)) for (name, _), layer in layers.items()]
        called = {name for name, slot in slots if slot is not None and slot.calls}
        parts = {name: components.get(name) for name, _ in slots if name not in called}
        return frozenset(name for name, part in parts.items() if part is not None and not is_compiled(part))


class _Teller:
    """What the slots of a component tell of their calls to; once the first layer is called again, all were called."""

    def __init__(self, name: str, component: nn.Module, layers: Layers) -> None:
        self._name = name
        self._component = weakref.ref(component)
        self._layers: weakref.WeakValueDictionary[tuple[str, str], nn.Module] = weakref.WeakValueDictionary(
            dict(layers)
        )
        # by reference only: the slots hold this, and a circle would keep their numbers until the collector comes
        self._first: weakref.ref[Slot] | None = None
        for layer in layers.values():
            slot = patch.slot_of(layer)
            if slot is not None:  # perhaps of a plan before
                slot.calls, slot.tell = 0, self._hear

    def _hear(self, slot: Slot) -> None:
        if self._first is None:
            self._first = weakref.ref(slot)
        elif self._first() is slot and slot.calls == 2:
            component = self._component()
            layers = dict(self._layers)
            found = () if component is None else tuple(_of(self._name, component, layers))
            if any(not one.expected for one in found):
                logger.warning("%s", ActivationReport((), uncalled=found, changed=len(layers)).silence)


def _of(name: str, component: nn.Module | None, layers: Layers) -> Iterator[Uncalled]:
    own = {path: layer for (of, path), layer in layers.items() if of == name}
    slots = {path: patch.slot_of(layer) for path, layer in own.items()}
    silent = [path for path, slot in slots.items() if slot is not None and not slot.calls]
    reached = [path for path in slots if path not in silent]
    parents = {} if component is None or not silent else dict(component.named_modules())
    for path in silent:
        yield _why(name, path, own[path], parents, reached)


def _why(name: str, path: str, layer: nn.Module, modules: Mapping[str, nn.Module], reached: Sequence[str]) -> Uncalled:
    slot = patch.slot_of(layer)
    if slot is not None and not patch.is_attached(layer, slot):
        return Uncalled(name, path, "its forward was replaced by other code")
    above = [modules[upper] for upper in _above(path) if upper in modules]
    if any(isinstance(one, _FAST_PATH) for one in above):
        return Uncalled(name, path, "torch's fast path of TransformerEncoderLayer computes it in one kernel")
    if name.startswith("text_encoder") and _is_behind(path, reached):
        return Uncalled(name, path, "the text encoder ends before it, as with CLIP skip", expected=True)
    parent = type(above[0]).__name__ if above else "model"
    return Uncalled(name, path, f"the {parent} that it is in computes without it, as fused kernels do")


def _above(path: str) -> Iterator[str]:
    """Yield the paths of the modules that a layer is in, the nearest first."""
    while path:
        path = path.rpartition(".")[0]
        yield path


def _is_behind(path: str, reached: Sequence[str]) -> bool:
    """Tell whether a layer lies in a block behind all those of its list that were called."""
    own = _BLOCK.match(f"{path}.")
    if own is None:
        return False
    others = [
        found for one in reached if (found := _BLOCK.match(f"{one}.")) is not None and found["list"] == own["list"]
    ]
    return bool(others) and all(int(other["number"]) < int(own["number"]) for other in others)
