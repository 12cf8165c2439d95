"""What calls of a model show: which layers with adapters are never called, and when an output was first not finite.

Every slot notes that its layer was called. After the first call of a component, the layers that were not called have no
effect: other code computes in their place, such as a fused kernel or a forward that was replaced. Models that torch
compiles are trusted: their calls are decided when they are compiled.

A strength that is too high makes the numbers of a half precision dtype overflow, and the picture black. Each output of
a denoiser is looked at on its device: nothing waits for the device until the report is asked for.
"""

from __future__ import annotations

import logging
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from ..compiler import compiling, is_compiled, may_have_compiled, tracing
from ..files.components import TEXT_ENCODER, is_denoiser, role
from ..placement.budget import is_out_of_memory
from ..report import ActivationReport, Uncalled
from ..strengths.model_call import hook_of
from . import hooks
from .wrapped import is_wrapped, plain_part

logger = logging.getLogger(__name__)


Layers = Mapping[tuple[str, str], nn.Module]
"""Component and path -> layer."""
_BLOCK = re.compile(r"(?P<list>.*)\.(?P<number>\d+)\.")
_FAST_PATH = (nn.TransformerEncoder, nn.TransformerEncoderLayer)
_NEVER = 1 << 40  # no call has this number
_LONGEST = 200  # characters of an error


class Watch:
    """Watches the calls of the components of a model that have adapters.

    Code that is compiled has the hooks of its model, and is compiled again where these come or go. So none comes to a
    compiled component, and none leaves it.

    Args:
        before_call: called with the name of a component that is about to be called, before other hooks of ours.
        out_of_memory: called when a call of a component failed by it, so that the next one has more room.
    """

    def __init__(self, before_call: Callable[[str], None], out_of_memory: Callable[[], None]) -> None:
        self._before_call, self._out_of_memory = before_call, out_of_memory
        self._watched: dict[str, _Calls] = {}

    def begin(self, components: Mapping[str, nn.Module], layers: Layers | None) -> None:
        """Watch the calls from now on, and forget the calls before.

        Args:
            components: of the model, by name.
            layers: report after the first call which of these were not called; None keeps the layers as they were.
        """
        for name, component in components.items():
            if name not in self._watched and not may_have_compiled(component):
                self._watched[name] = _Calls(name, component, self._before_call, self._out_of_memory)
        self.pause()
        for layer in () if layers is None else layers.values():
            slot = layer.__dict__.get(hooks.SLOT)
            if slot is not None:  # perhaps of a plan before
                slot.called = False
        for calls in self._watched.values():
            unseen = calls.latest.unseen
            if layers is not None:
                unseen = weakref.WeakValueDictionary({key: one for key, one in layers.items() if key[0] == calls.name})
            calls.latest = _Activation(unseen)
            calls.in_force = True

    def pause(self) -> None:
        """Take no call as one of an activation, before the layers change: a call that runs misses some of them."""
        for calls in self._watched.values():
            calls.in_force = False

    def end(self, components: Mapping[str, nn.Module]) -> None:
        """Stop watching; the hooks of components that were compiled meanwhile stay."""
        for name, calls in list(self._watched.items()):
            calls.in_force = False
            if name not in components or not may_have_compiled(components[name]):
                self._watched.pop(name).unhook.close()

    def called(self) -> set[str]:
        """Return the components that were called since `begin`."""
        return {name for name, calls in self._watched.items() if calls.latest.number}

    def not_finite(self) -> dict[str, int]:
        """Return component -> number of the first call with an output that is not finite; waits for the device."""
        tensors = {name: calls.latest.first_not_finite for name, calls in self._watched.items()}
        firsts = {name: int(first) for name, first in tensors.items() if first is not None}
        return {name: first for name, first in firsts.items() if first != _NEVER}

    def broken(self) -> str:
        """Return the error by which a call failed since `begin`; empty if none did, or another call made up for it."""
        return next((calls.latest.broken for calls in self._watched.values() if calls.latest.broken), "")

    def uncalled(self, components: Mapping[str, nn.Module], layers: Layers) -> tuple[Uncalled, ...]:
        """Return the layers that were not called in any call of their component that ended."""
        called = (_reached(layers) - self._watched.keys()) | self.called()
        parts = [(name, part) for name, part in sorted(components.items()) if name in called and not is_compiled(part)]
        return tuple(layer for name, part in parts for layer in _uncalled_in(name, part, layers))

    def silent(self, components: Mapping[str, nn.Module], layers: Layers) -> frozenset[str]:
        """Return the denoisers that were called while no layer of theirs with adapters was."""
        uncalled = {layer.component for layer in self.uncalled(components, layers) if is_denoiser(layer.component)}
        return frozenset(uncalled - _reached(layers))


@dataclass(eq=False)
class _Activation:
    """The calls of one component that began and ended in one activation."""

    unseen: Layers | None = None
    """The layers to report on after the next call; held weakly."""
    number: int = 0
    first_not_finite: Tensor | None = None
    broken: str = ""
    """The error of a call."""
    had_no_room: bool = False
    """Whether that was for want of memory: the caller may try again."""


class _Calls:
    """The calls of one component, of which those are noted that begin and end in one activation."""

    def __init__(
        self, name: str, component: nn.Module, before_call: Callable[[str], None], out_of_memory: Callable[[], None]
    ) -> None:
        self.name, self.before_call, self.out_of_memory = name, before_call, out_of_memory
        self.latest, self.in_force = _Activation(), False  # in force: and no layer changes
        self.began: dict[int, _Activation | None] = {}
        """Thread -> the activation in which its present call began."""
        self.unhook = ExitStack()
        begin, end = (hook_of(component, note, compiled=True) for note in (self.begin, self.end))
        self.unhook.callback(component.register_forward_pre_hook(begin, prepend=True).remove)
        self.unhook.callback(component.register_forward_hook(end, always_call=True).remove)
        decoder = component._modules.get("decoder") if hasattr(component, "decode") else None
        if decoder is not None:  # of a VAE, which no pipeline calls itself: the end of a picture
            look = hook_of(decoder, lambda *_: None if compiling() or tracing() else self.before_call(self.name))
            self.unhook.callback(decoder.register_forward_pre_hook(look).remove)

    def begin(self, component: nn.Module, _: tuple[Any, ...]) -> None:
        """Note a call that begins; a forward pre-hook."""
        if not (compiling() or tracing()):
            if torch._C._functorch.peek_interpreter_stack() is None:  # numbers of a transform are read by nobody
                self.before_call(self.name)
            self.began[get_ident()] = self.latest if self.in_force else None

    def end(self, component: nn.Module, _: tuple[Any, ...], output: object) -> None:
        """Note a call that ended; a forward hook, which is called where the call failed, too."""
        if compiling() or tracing():
            return
        activation = self.began.pop(get_ident(), None)
        error = sys.exc_info()[1] if output is None else None  # an outer one, where the component returns nothing
        had_no_room = is_out_of_memory(error)
        if had_no_room:
            self.out_of_memory()
        if activation is None or not self._has(activation):
            return
        if error is not None:
            if isinstance(error, Exception) and not activation.broken:  # any other ends a call on purpose
                text = f"{type(error).__name__}: {error}".partition("\n")[0]
                activation.broken = f"a call of the {self.name} failed: {text[:_LONGEST]}"
                activation.had_no_room = had_no_room
            return
        activation.number += 1
        if activation.had_no_room:
            activation.broken, activation.had_no_room = "", False
        layers, activation.unseen = dict(activation.unseen or {}), None
        if layers and not is_compiled(component):
            uncalled = tuple(_uncalled_in(self.name, component, layers))
            if not all(layer.expected for layer in uncalled) and self._has(activation):
                logger.warning("%s", ActivationReport((), uncalled=uncalled, changed=len(layers)).silence)
        tensor = _numbers(output) if is_denoiser(self.name) else None
        if tensor is not None:
            with torch.no_grad():
                known = activation.first_not_finite
                first = torch.where(torch.isfinite(tensor).all(), _NEVER, activation.number)
                if known is not None and known.device == first.device:
                    first = torch.minimum(known, first)
                activation.first_not_finite = first

    def _has(self, activation: _Activation) -> bool:
        """Tell whether an activation is in force, with all its layers."""
        return self.in_force and activation is self.latest


def _reached(layers: Layers) -> set[str]:
    """Return the components of which a layer was called."""
    slots = [(name, hooks.slot_of(layer)) for (name, _), layer in layers.items()]
    return {name for name, slot in slots if slot is not None and slot.called}


def _uncalled_in(name: str, component: nn.Module, layers: Layers) -> Iterator[Uncalled]:
    slots = {path: (layer, hooks.slot_of(layer)) for (owner, path), layer in layers.items() if owner == name}
    uncalled = {path: (layer, slot) for path, (layer, slot) in slots.items() if slot is not None and not slot.called}
    modules = dict(component.named_modules()) if uncalled else {}
    for path, (layer, slot) in uncalled.items():
        parts = path.split(".")
        uppers = (".".join(parts[:count]) for count in range(len(parts) - 1, -1, -1))  # the nearest first
        above = [modules[upper] for upper in uppers if upper in modules]
        is_behind = False
        if not hooks.is_attached(layer, slot):
            why = "its forward was replaced by other code"
        elif any(isinstance(module, _FAST_PATH) for module in above):
            why = "torch's fast path of TransformerEncoderLayer computes it in one kernel"
        elif is_behind := role(name) == TEXT_ENCODER and _is_behind(path, [*slots.keys() - uncalled.keys()]):
            why = "the text encoder ends before it, as with CLIP skip"
        else:
            parent = type(above[0]).__name__ if above else "model"
            why = f"the {parent} that it is in computes without it, as fused kernels do"
        yield Uncalled(name, path, why, expected=is_behind)


def _is_behind(path: str, reached: Sequence[str]) -> bool:
    """Tell whether a layer lies behind all called blocks of its list."""
    own, *others = (_BLOCK.match(f"{name}.") for name in (path, *reached))
    numbers = [int(other["number"]) for other in others if own and other and other["list"] == own["list"]]
    return bool(own and numbers and max(numbers) < int(own["number"]))


def _numbers(output: object) -> Tensor | None:
    """Return the tensor that a denoiser returns, the only one or the first, if it has numbers to be looked at.

    None of a function transform, which ends with it; none that is fake; none while a CUDA graph is recorded, which
    would replay the check with the number of this call.
    """
    if isinstance(output, Mapping):  # diffusers' output
        output = tuple(output.values())
    if isinstance(output, list | tuple):
        output = output[0] if output else None
    output = plain_part(output) if is_wrapped(output) else output
    if not isinstance(output, Tensor) or output.is_meta or not output.is_floating_point():
        return None
    fakes = sys.modules.get("torch._subclasses.fake_tensor")
    if fakes is not None and isinstance(output, fakes.FakeTensor):
        return None
    is_transformed = torch._C._functorch.is_functorch_wrapped_tensor(output)
    return None if is_transformed or (output.is_cuda and torch.cuda.is_current_stream_capturing()) else output
