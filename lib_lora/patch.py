"""`forward` and `_apply` of the layer classes, replaced once per class, undone exactly.

Class-level and not per layer, because instance attributes are what accelerate and diffusers fight over: a hook that is
removed puts back what it once saw. A layer without a slot pays one attribute look-up. Only where a layer carries a
forward of its own, so that its class's is never run, is that one replaced; see `forwards.py`.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any

import torch
from torch import nn

from .compiler import forget_compiled
from .forwards import BaseForward as BaseForward
from .forwards import InstancePatch, own_method, patched, places, token_of
from .modules import device_of
from .slot import Slot

logger = logging.getLogger(__name__)

SLOT = "_remora_slot"

CLASSES: tuple[type[nn.Module], ...] = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.MultiheadAttention,
    nn.Embedding,
    nn.LayerNorm,
    nn.GroupNorm,
    *((nn.RMSNorm,) if hasattr(nn, "RMSNorm") else ()),  # torch 2.4 and later
)
"""Patched at installation, before any model exists; other classes when one of their layers first gets a slot."""


class ClassPatch:
    """The patch of one class.

    The replaced functions stay reachable through bound methods captured meanwhile. Forwards are inert for a layer whose
    slot names another patch, so no chain of wrappers, whatever its order, can add a delta twice.
    """

    def __init__(self, cls: type[nn.Module]) -> None:
        self.cls = cls
        self._owned = {name: cls.__dict__[name] for name in ("forward", "_apply", SLOT) if name in cls.__dict__}
        self.base_forward: BaseForward = cls.forward
        self.forward = patched(self, self.base_forward)
        self.apply = _patched_apply(cls._apply)
        self.put()

    def put(self) -> None:
        """Put the patch in place, on top of what the class had when the patch was made."""
        # read as a plain attribute with a class-level default: dynamo guards that, but not a missing dict key
        setattr(self.cls, SLOT, None)
        self.cls.forward = self.forward
        self.cls._apply = self.apply  # type: ignore[method-assign]
        forget_compiled()

    def in_force(self) -> bool:
        """Whether calling a layer of the class still comes here, directly or through a patch put on top."""
        return self.cls.__dict__.get("forward") is self.forward or _reaches(self)

    def replaces(self, function: object) -> bool:
        """Whether `function` is what the class had before, or what an earlier patch of it, undone since, put there."""
        other = token_of(function)
        return function is self.base_forward or (isinstance(other, ClassPatch) and other.cls is self.cls)

    def knows(self, function: object) -> bool:
        """Whether `function` is the class's forward, of whatever time: then calling it comes here, or will."""
        return function is self.cls.forward or self.replaces(function)

    def undo(self) -> None:
        """Put the class back as it was found; what others put on top meanwhile is theirs and stays."""
        for name, ours in (("forward", self.forward), ("_apply", self.apply), (SLOT, None)):
            if self.cls.__dict__.get(name, self) is not ours:
                continue
            if name in self._owned:
                setattr(self.cls, name, self._owned[name])
            else:
                delattr(self.cls, name)


_patches: dict[type[nn.Module], ClassPatch] = {}
_carriers: weakref.WeakSet[nn.Module] = weakref.WeakSet()
Function = Callable[..., Any]
_adopted: weakref.WeakKeyDictionary[nn.Module, list[tuple[weakref.ref[Any], str, Function, Function]]] = (
    weakref.WeakKeyDictionary()
)
"""Layer -> (holder, attribute, function found there, ours). Functions, not methods, which would keep the layer."""


def install(classes: Iterable[type[nn.Module]] = ()) -> None:
    """Patch layer classes. Harmless when done already; best done before any model is loaded or compiled.

    Args:
        classes: those of the host, beside torch's. One that has its forward from another class needs no patch.
    """
    for cls in (*CLASSES, *(cls for cls in classes if "forward" in cls.__dict__)):
        _ensure(cls)


def uninstall() -> None:
    """Take every slot away and put every class back as it was found."""
    for layer in list(_carriers):
        detach(layer)
    for layer in list(_adopted):
        _disown(layer)
    for cls in list(_patches):
        _patches.pop(cls).undo()


def ensure_in_force() -> bool:
    """Install again what another extension undid (A1111's `patches.undo` puts back what it once saw).

    Returns:
        Whether anything had to be installed again; slots must then be attached anew.
    """
    again = False
    for cls, patch in list(_patches.items()):
        if not patch.in_force():
            logger.warning("%s.forward was put back by another extension; patched again", cls.__name__)
            _patches[cls] = _renewed(patch)
            again = True
    return again or any(_is_hidden(layer) for layer in _carriers)


def _is_hidden(layer: nn.Module) -> bool:
    """Whether the layer was given a forward of its own, another class or a new patch since its slot was attached."""
    slot = slot_of(layer)
    return slot is not None and not is_attached(layer, slot)


def _renewed(patch: ClassPatch) -> ClassPatch:
    """A patch that is in force again, without a chain that grows each time others put back what they once saw."""
    present = patch.cls.__dict__.get("forward")
    earlier = token_of(present)
    if isinstance(earlier, ClassPatch) and earlier.cls is patch.cls:
        earlier.put()
        return earlier
    if present is patch.base_forward:
        patch.put()
        return patch
    patch.undo()  # what is left of it, or the next one would take it for the class's own
    return ClassPatch(patch.cls)


def attach(layer: nn.Module, slot: Slot) -> None:
    """Give `layer` its slot, and make sure that calls of the layer reach it."""
    patch = _ensure(owner(type(layer)))
    _withdraw(layer, slot)
    method = own_method(layer, patch.knows)
    if method is None:
        slot.patch = patch
        _adopt(layer, patch)
    else:
        slot.patch = own = InstancePatch(method)
        own.put(layer)
    setattr(layer, SLOT, slot)
    _carriers.add(layer)


def is_attached(layer: nn.Module, slot: Slot) -> bool:
    """Whether `layer` carries `slot` under the patch that calls of it come to."""
    if layer.__dict__.get(SLOT) is not slot or slot.patch is None:
        return False
    patch = slot.patch
    if isinstance(patch, ClassPatch) and "forward" not in layer.__dict__ and type(layer).forward is patch.cls.forward:
        return _patches.get(patch.cls) is patch
    return patch is _serving(layer)


def detach(layer: nn.Module) -> None:
    """Take the slot away; the layer is as it was."""
    slot = layer.__dict__.pop(SLOT, None)
    _carriers.discard(layer)
    if slot is None:
        return
    way, slot.way = slot.way, None
    _withdraw(layer, slot)
    _disown(layer)
    if way is not None:
        way.release(layer)


def slot_of(layer: nn.Module) -> Slot | None:
    """The slot `layer` carries, if any."""
    slot: Slot | None = getattr(layer, SLOT, None)
    return slot


def _ensure(cls: type[nn.Module]) -> ClassPatch:
    patch = _patches.get(cls)
    if patch is None:
        patch = _patches[cls] = ClassPatch(cls)
    return patch


def owner(cls: type[nn.Module]) -> type[nn.Module]:
    """Return the class whose `forward` a layer of class `cls` runs."""
    return next(base for base in cls.__mro__ if "forward" in base.__dict__)


def _serving(layer: nn.Module) -> ClassPatch | InstancePatch | None:
    """The patch that calls of `layer` come to."""
    patch = _patches.get(owner(type(layer)))
    method = None if patch is None else own_method(layer, patch.knows)
    return patch if method is None else InstancePatch.behind(method)


def _withdraw(layer: nn.Module, slot: Slot) -> None:
    """Give the layer its own forward back, if the slot's patch has replaced that."""
    if isinstance(slot.patch, InstancePatch):
        slot.patch.undo(layer)
    slot.patch = None


def _adopt(layer: nn.Module, patch: ClassPatch) -> None:
    """Reach a layer whose hooks, or those that are gone, captured the class's forward before the patch was there."""
    for holder, attribute in places(layer):
        captured = getattr(holder, attribute)
        if not isinstance(captured, MethodType) or captured.__func__ is patch.forward:
            continue
        if patch.replaces(captured.__func__):
            found = (weakref.ref(holder), attribute, captured.__func__, patch.forward)
            _adopted.setdefault(layer, []).append(found)
            setattr(holder, attribute, MethodType(patch.forward, layer))


def _disown(layer: nn.Module) -> None:
    """Put back what `_adopt` replaced, as far as it is still there."""
    for holder, attribute, original, ours in _adopted.pop(layer, ()):
        # a hook that was removed meanwhile has put what it kept on the layer itself
        for place, name in ((holder(), attribute), (layer, "forward")):
            if place is not None and getattr(vars(place).get(name), "__func__", None) is ours:
                setattr(place, name, MethodType(original, layer))


def _patched_apply(base_apply: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    def _apply(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        moved = base_apply(self, *args, **kwargs)
        slot: Slot | None = getattr(self, "_remora_slot", None)
        if slot is not None and slot.way is not None:  # whichever patch it names: following twice is following once
            device = device_of(self)
            if device is not None:
                slot.way.follow(self, device)
        return moved

    return _apply


class _Probe:
    """A way that only notes that it was reached."""

    reached = False
    at_rest = False
    parked_bytes = 0

    def run(self, layer: nn.Module, base_forward: BaseForward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.reached = True
        return args[0]

    def follow(self, layer: nn.Module, device: torch.device) -> None:
        """Nothing is placed."""

    def prefetch(self, layer: nn.Module) -> None:
        """Nothing is placed."""

    def release(self, layer: nn.Module) -> None:
        """Nothing is placed."""

    def park(self, layer: nn.Module) -> None:
        """Nothing is placed."""

    def resume(self, layer: nn.Module) -> bool:
        """Nothing is kept."""
        return False

    def forget_stale(self, layer: nn.Module) -> None:
        """Nothing is kept."""


def _reaches(patch: ClassPatch) -> bool:
    """Call the class's present forward on a tiny layer and see whether it comes down to the patch."""
    layer = _tiny_layer(patch.cls)
    probe, slot = _Probe(), Slot(patch, layer)
    slot.patch, slot.way = patch, probe
    setattr(layer, SLOT, slot)
    try:
        patch.cls.forward(layer, torch.empty(0, device="cpu"))
    except Exception:  # a foreign wrapper may fail on a layer without its own marks; then it did not reach us
        logger.debug("probing %s.forward failed", patch.cls.__name__, exc_info=True)
    return probe.reached


def _tiny_layer(cls: type[nn.Module]) -> nn.Module:
    """A layer that wrappers such as A1111's manual cast can handle; of a host's class, as far as that is known."""
    if cls in CLASSES:
        sizes = {1: (nn.LayerNorm, getattr(nn, "RMSNorm", None)), 3: (nn.Conv1d, nn.Conv2d, nn.Conv3d)}
        count = next((count for count, classes in sizes.items() if cls in classes), 2)
        return cls(*(1,) * count, device="cpu")
    layer: nn.Module = object.__new__(cls)
    nn.Module.__init__(layer)
    layer.weight = nn.Parameter(torch.zeros(1, 1, device="cpu"), requires_grad=False)
    return layer
