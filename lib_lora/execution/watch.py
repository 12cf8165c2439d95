"""Which layers with adapters are never called, and when the output of a denoiser was first not finite.

Every slot notes its first calls. Where one layer of a component is called and others are not, other code computes in
their place: a fused kernel, or a forward that was replaced. Models that torch compiles are trusted: their calls are
decided when they are compiled.

A strength that is too high makes the numbers of a half precision dtype overflow, and the picture black. Each output is
looked at on its device: nothing waits for the device until the report is asked for.
"""

from __future__ import annotations

import logging
import re
import weakref
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..compiler import compiling, has_compiled, is_compiled, tracing
from ..files.components import is_denoiser
from ..report import ActivationReport, Uncalled
from ..strengths.model_call import hook_of
from . import hooks
from .hooks import Slot

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
        slots = [(name, hooks.slot_of(layer)) for (name, _), layer in layers.items()]
        called = {name for name, slot in slots if name in known or (slot is not None and slot.calls)}
        parts = {name: part for name, part in components.items() if name in called and not is_compiled(part)}
        return tuple(one for name, part in sorted(parts.items()) for one in _of(name, part, layers))

    def silent(self, components: Mapping[str, nn.Module], layers: Layers) -> frozenset[str]:
        """Tell the components of which no layer was called."""
        slots = [(name, hooks.slot_of(layer)) for (name, _), layer in layers.items()]
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
            slot = hooks.slot_of(layer)
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
    slots = {path: hooks.slot_of(layer) for path, layer in own.items()}
    silent = [path for path, slot in slots.items() if slot is not None and not slot.calls]
    reached = [path for path in slots if path not in silent]
    parents = {} if component is None or not silent else dict(component.named_modules())
    for path in silent:
        yield _why(name, path, own[path], parents, reached)


def _why(name: str, path: str, layer: nn.Module, modules: Mapping[str, nn.Module], reached: Sequence[str]) -> Uncalled:
    slot = hooks.slot_of(layer)
    if slot is not None and not hooks.is_attached(layer, slot):
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


_NEVER = 1 << 40  # no call has this number


class Outputs:
    """Looks at what the denoisers of a model compute.

    Code that is compiled has the hooks of its model, and is compiled anew where these come or go. So once something
    was compiled, none comes or goes.
    """

    def __init__(self) -> None:
        self.stops: list[Callable[[], None]] = []
        """Each takes a hook off."""
        self._of: dict[str, _Output] = {}

    def begin(self, components: Mapping[str, nn.Module]) -> None:
        """Look at the calls from now on, and forget those before."""
        if not self.stops and not has_compiled():
            self._of = {name: _Output() for name in components if is_denoiser(name)}
            for name, output in self._of.items():
                hook = components[name].register_forward_hook(hook_of(components[name], output.look, compiled=True))
                self.stops.append(hook.remove)
        for output in self._of.values():
            output.begin()

    def end(self) -> None:
        """Look no more."""
        if not has_compiled():
            self.stop()
        for output in self._of.values():
            output.wanted = False

    def stop(self) -> None:
        """Take the hooks off, and forget what was seen."""
        self._of = {}
        while self.stops:
            self.stops.pop()()

    @property
    def called(self) -> frozenset[str]:
        """The components that were called."""
        return frozenset(name for name, output in self._of.items() if output.calls)

    def not_finite(self) -> dict[str, int]:
        """Component -> number of the first call with an output that is not finite, from 1; waits for the device."""
        found = {name: output.first() for name, output in self._of.items()}
        return {name: first for name, first in found.items() if first is not None}


class _Output:
    """What was seen of the output of one component."""

    def __init__(self) -> None:
        self.wanted = False
        self.calls = 0
        self._first: Tensor | None = None

    def begin(self) -> None:
        self.wanted, self.calls, self._first = True, 0, None

    def look(self, _: nn.Module, __: tuple[Any, ...], output: object) -> None:
        """Be the hook."""
        if compiling() or tracing() or not self.wanted:
            return
        self.calls += 1
        found = _tensor(output)
        if found is None or found.is_meta or not found.is_floating_point() or _captured(found):
            return
        with torch.no_grad():
            now = torch.where(torch.isfinite(found).all(), _NEVER, self.calls)
            known = self._first
            self._first = now if known is None or known.device != now.device else torch.minimum(known, now)

    def first(self) -> int | None:
        found = _NEVER if self._first is None else int(self._first)
        return None if found == _NEVER else found


def _tensor(output: object) -> Tensor | None:
    """What a denoiser returns: a tensor, the first of several, or diffusers' output with a name for it."""
    if isinstance(output, Mapping):
        output = tuple(output.values())
    if isinstance(output, list | tuple):
        output = output[0] if output else None
    return output if isinstance(output, Tensor) else None


def _captured(tensor: Tensor) -> bool:
    """Whether a CUDA graph is recorded, which would replay what is computed with the number of this call."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
