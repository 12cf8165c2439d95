"""What calls of a model show: which layers with adapters are never called, and when an output was first not finite.

Every slot notes that its layer was called. After the first call of a component that ends, the layers that were not
called have no effect: other code computes in their place, such as a fused kernel or a forward that was replaced. Models
that torch compiles are trusted: their calls are decided when they are compiled.

A strength that is too high makes the numbers of a half precision dtype overflow, and the picture black. Each output of
a denoiser is looked at on its device: nothing waits for the device until the report is asked for.
"""

from __future__ import annotations

import logging
import re
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..compiler import compiling, has_compiled, is_compiled, tracing
from ..files.components import is_denoiser
from ..report import ActivationReport, Uncalled
from ..strengths.model_call import hook_of
from . import hooks

logger = logging.getLogger(__name__)


Layers = Mapping[tuple[str, str], nn.Module]
"""Component and path -> layer."""
_BLOCK = re.compile(r"(?P<list>.*)\.(?P<number>\d+)\.")
_FAST_PATH = (nn.TransformerEncoder, nn.TransformerEncoderLayer)
_NEVER = 1 << 40  # no call has this number


class Watch:
    """Watches the calls of the components of a model that have adapters.

    Code that is compiled has the hooks of its model, and is compiled again where these come or go. So once something
    was compiled, none comes or goes.
    """

    def __init__(self) -> None:
        self.stops = ExitStack()
        """Takes the hooks off."""
        self._of: dict[str, _Calls] = {}

    def begin(self, components: Mapping[str, nn.Module], layers: Layers | None) -> None:
        """Watch the calls from now on, and forget the calls before.

        Args:
            components: of the model, by name.
            layers: report after the first call which of these were not called; None keeps the layers as they were.
        """
        if not self._of and not has_compiled():
            self._of = {name: _Calls(name) for name in components}
            for name, calls in self._of.items():
                hook = hook_of(components[name], calls.watch, compiled=True)
                self.stops.callback(components[name].register_forward_hook(hook).remove)
        for calls in self._of.values():
            calls.wanted, calls.number, calls.first_not_finite = True, 0, None
            if layers is not None:
                own = {place: layer for place, layer in layers.items() if place[0] == calls.name}
                calls.layers = weakref.WeakValueDictionary(own)
        for layer in () if layers is None else layers.values():
            slot = hooks.slot_of(layer)
            if slot is not None:  # perhaps of a plan before
                slot.called = False

    def end(self) -> None:
        """Stop watching."""
        if not has_compiled():
            self.stop()
        for calls in self._of.values():
            calls.wanted = False

    def stop(self) -> None:
        """Take the hooks off, and forget all calls."""
        self._of = {}
        self.stops.close()

    def not_finite(self) -> dict[str, int]:
        """Return component -> number of the first call with an output that is not finite; waits for the device."""
        found = {name: calls.first_not_finite for name, calls in self._of.items()}
        firsts = {name: int(first) for name, first in found.items() if first is not None}
        return {name: first for name, first in firsts.items() if first != _NEVER}

    def uncalled(self, components: Mapping[str, nn.Module], layers: Layers) -> tuple[Uncalled, ...]:
        """Return the layers that were not called in any call of their component that ended."""
        reached = self._reached(layers)
        called = {name for name in components if (self._of[name].number if name in self._of else name in reached)}
        parts = {name: part for name, part in components.items() if name in called and not is_compiled(part)}
        return tuple(one for name, part in sorted(parts.items()) for one in _of(name, part, layers))

    def silent(self, components: Mapping[str, nn.Module], layers: Layers) -> frozenset[str]:
        """Return the denoisers that were called while no layer of theirs with adapters was."""
        uncalled = {one.component for one in self.uncalled(components, layers) if is_denoiser(one.component)}
        return frozenset(uncalled - self._reached(layers))

    @staticmethod
    def _reached(layers: Layers) -> set[str]:
        """Return the components of which a layer was called."""
        slots = [(name, hooks.slot_of(layer)) for (name, _), layer in layers.items()]
        return {name for name, slot in slots if slot is not None and slot.called}


@dataclass(eq=False)
class _Calls:
    """The calls of one component that ended."""

    name: str
    layers: Layers | None = None
    """The layers to report on after the next call; held weakly."""
    wanted: bool = False
    number: int = 0
    first_not_finite: Tensor | None = None

    def watch(self, component: nn.Module, _: tuple[Any, ...], output: object) -> None:
        """Note a call that ended; a forward hook."""
        if compiling() or tracing() or not self.wanted:
            return
        self.number += 1
        layers, self.layers = dict(self.layers or {}), None
        if layers and not is_compiled(component):
            found = tuple(_of(self.name, component, layers))
            if any(not one.expected for one in found):
                logger.warning("%s", ActivationReport((), uncalled=found, changed=len(layers)).silence)
        tensor = _numbers(output) if is_denoiser(self.name) else None
        if tensor is not None:
            with torch.no_grad():
                now = torch.where(torch.isfinite(tensor).all(), _NEVER, self.number)
                known = self.first_not_finite
                if known is not None and known.device == now.device:
                    now = torch.minimum(known, now)
                self.first_not_finite = now


def _of(name: str, component: nn.Module, layers: Layers) -> Iterator[Uncalled]:
    own = {path: layer for (of, path), layer in layers.items() if of == name}
    slots = {path: hooks.slot_of(layer) for path, layer in own.items()}
    silent = [path for path, slot in slots.items() if slot is not None and not slot.called]
    reached = [path for path in slots if path not in silent]
    modules = dict(component.named_modules()) if silent else {}
    for path in silent:
        slot, parts = slots[path], path.split(".")
        uppers = (".".join(parts[:count]) for count in range(len(parts) - 1, -1, -1))  # the nearest first
        above = [modules[upper] for upper in uppers if upper in modules]
        is_behind = False
        if (slot is not None and not hooks.is_attached(own[path], slot)) or hooks.has_foreign_forward(own[path]):
            why = "its forward was replaced by other code"
        elif any(isinstance(one, _FAST_PATH) for one in above):
            why = "torch's fast path of TransformerEncoderLayer computes it in one kernel"
        elif is_behind := name.startswith("text_encoder") and _is_behind(path, reached):
            why = "the text encoder ends before it, as with CLIP skip"
        else:
            parent = type(above[0]).__name__ if above else "model"
            why = f"the {parent} that it is in computes without it, as fused kernels do"
        yield Uncalled(name, path, why, expected=is_behind)


def _is_behind(path: str, reached: Sequence[str]) -> bool:
    """Tell whether a layer lies behind all called blocks of its list."""
    own = _BLOCK.match(f"{path}.")
    if own is None:
        return False
    others = [found for one in reached if (found := _BLOCK.match(f"{one}.")) and found["list"] == own["list"]]
    return bool(others) and max(int(other["number"]) for other in others) < int(own["number"])


def _numbers(output: object) -> Tensor | None:
    """Return the tensor that a denoiser returns, the only one or the first, if it has numbers to be looked at.

    None of a function transform, which ends with it; none that is fake; none while a CUDA graph is recorded, which
    would replay the check with the number of this call.
    """
    if isinstance(output, Mapping):  # diffusers' output
        output = tuple(output.values())
    if isinstance(output, list | tuple):
        output = output[0] if output else None
    if not isinstance(output, Tensor) or output.is_meta or not output.is_floating_point():
        return None
    fakes = sys.modules.get("torch._subclasses.fake_tensor")
    if fakes is not None and isinstance(output, fakes.FakeTensor):
        return None
    is_transformed = torch._C._functorch.is_functorch_wrapped_tensor(output)
    return None if is_transformed or (output.is_cuda and torch.cuda.is_current_stream_capturing()) else output
