"""Forwards of ours, and the places where a layer may carry a forward: on itself, and in hooks.

Most layers run the forward of their class. Some are given one of their own, as a bound method in the instance's
dictionary: earlier SDNQ and some loaders of scaled fp8 checkpoints convert layers that way. Then no patch of the class
is ever reached, and the layer's own method is replaced instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from torch import nn

from . import residency
from .compiler import compiling

if TYPE_CHECKING:
    from .slot import Slot

BaseForward = Callable[..., Any]


def patched(token: object, base_forward: BaseForward) -> BaseForward:
    """A forward that lets the slot of a layer have its say, if that slot names `token` as the one who may ask it."""

    is_compiling = compiling  # of this function, not of its module, see below

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        slot: Slot | None = getattr(self, "_remora_slot", None)  # the default is for calls captured before an undo
        if slot is None or slot.patch is not token or slot.way is None:
            return base_forward(self, *args, **kwargs)
        if not is_compiling() and slot.calls < 2:
            slot.note()
        return slot.way.run(self, base_forward, args, kwargs)

    made = _at_home_of(base_forward, forward)
    made.remora_patch = token  # type: ignore[attr-defined]
    made.__wrapped__ = base_forward  # type: ignore[attr-defined]  # inspect.signature() looks here
    return made


def _at_home_of(base_forward: BaseForward, forward: Any) -> FunctionType:
    """Make `forward` a function of the module of `base_forward`.

    `torch.jit.script` reads the source behind `__wrapped__` and looks its names up where the outer function is from.
    """
    home = getattr(base_forward, "__globals__", None)
    if not isinstance(home, dict):
        home = forward.__globals__  # no Python function, of which there is no source
    return FunctionType(forward.__code__, home, forward.__name__, forward.__defaults__, forward.__closure__)


def token_of(function: object) -> object:
    """Return the token that `function` was made for by `patched`; None for any other function.

    `functools.wraps` copies what marks a function of ours, so the mark has to lead back to the function.
    """
    token = getattr(function, "remora_patch", None)
    return token if getattr(token, "forward", None) is function else None


def places(layer: nn.Module) -> Iterator[tuple[object, str]]:
    """Yield (object, attribute) of every place where a forward of `layer` is kept, the outermost first."""
    if "forward" in layer.__dict__:
        yield layer, "forward"
    yield from residency.captured(layer)


class InstancePatch:
    """The patch of one layer that carries a forward of its own.

    Nothing of ours refers to it but the layer itself: a function made for one layer may hold that layer.

    Args:
        method: what the layer carries, see `own_method`.
    """

    def __init__(self, method: MethodType) -> None:
        earlier = self.behind(method)
        self._replaced = method.__func__
        # a deep copy of a patched layer brings the other layer's patch along
        self.base_forward: BaseForward = method.__func__ if earlier is None else earlier.base_forward
        self.forward = patched(self, self.base_forward)

    @staticmethod
    def behind(method: MethodType) -> InstancePatch | None:
        """The patch whose forward `method` is."""
        patch = token_of(method.__func__)
        return patch if isinstance(patch, InstancePatch) else None

    def put(self, layer: nn.Module) -> None:
        """Replace the method wherever it is kept."""
        _exchange(layer, self._replaced, self.forward)

    def undo(self, layer: nn.Module) -> None:
        """Put the method back; also where a hook has captured ours meanwhile."""
        _exchange(layer, self.forward, self.base_forward)


def own_method(layer: nn.Module, known: Callable[[object], bool]) -> MethodType | None:
    """The outermost forward that is a method bound to `layer`, of a function that is not `known` as its class's.

    Anything else that lies there (a hook's partial, a closure, another object's method) calls what it found, and is
    left alone.
    """
    for holder, attribute in places(layer):
        method = getattr(holder, attribute)
        if isinstance(method, MethodType) and method.__self__ is layer and not known(method.__func__):
            return method
    return None


def _exchange(layer: nn.Module, old: object, new: BaseForward) -> None:
    for holder, attribute in places(layer):
        if getattr(getattr(holder, attribute), "__func__", None) is old:
            setattr(holder, attribute, MethodType(new, layer))
