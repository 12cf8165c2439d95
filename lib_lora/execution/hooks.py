"""Hooks on layers: methods of the layer classes, replaced once per class and undone exactly.

`forward` calls the executor, `_apply` tells it of conversions, and before `_load_from_state_dict` a merged weight is
restored.

The class is patched and not each layer, because accelerate and diffusers restore the instance attributes that they
found. A layer without adapters pays one attribute look-up. A few layers have a forward of their own, which is called
instead of their class's; there the layer's own forward is replaced. Each hooked layer has a `Slot`, which names its
executor; `HookedLayers` are the layers of one engine.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from operator import is_
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any, TypeAlias, cast

import torch
from torch import nn

from ..compiler import compiling, forget_compiled
from ..errors import ComponentError, LoraError
from ..placement import schemes
from ..placement.resident import Resident, device_of
from .arguments import BaseForward
from .merged import MergedExecutor
from .opaque import key_for

logger = logging.getLogger(__name__)


def patched(token: object, base_forward: BaseForward) -> BaseForward:
    """Make a forward that calls the executor of a layer's slot, if that slot names the patch `token`."""

    is_compiling = compiling  # not a global: `made` has the globals of another module

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        slot: Slot | None = getattr(self, "_remora_slot", None)  # the default is for calls captured before an undo
        if slot is None or slot.patch is not token or slot.executor is None:
            return base_forward(self, *args, **kwargs)
        if not is_compiling() and not slot.called:  # in this order, so that a graph does not guard `called`
            slot.called = True
        return slot.executor.run(self, base_forward, args, kwargs)

    # `torch.jit.script` reads the source behind `__wrapped__` and looks its names up in the globals of our function
    scope = getattr(base_forward, "__globals__", forward.__globals__)
    made: Any = FunctionType(forward.__code__, scope, forward.__name__, forward.__defaults__, forward.__closure__)
    # among them the marks of torch.jit.ignore, and the name by which a function is pickled
    made.__dict__.update(getattr(base_forward, "__dict__", {}))
    made.__qualname__ = getattr(base_forward, "__qualname__", made.__qualname__)
    made.remora_patch = token
    made.__wrapped__ = base_forward  # inspect.signature() looks here
    return cast(BaseForward, made)


def token_of(function: object) -> object:
    """Return the token of a function that `patched` made; None for any other function.

    `functools.wraps` copies our mark to other functions, so the mark must lead back to the function.
    """
    token = getattr(function, "remora_patch", None)
    return token if getattr(token, "forward", None) is function else None


def places(layer: nn.Module) -> Iterator[tuple[object, str]]:
    """Yield (object, attribute) of every place where a forward of `layer` is kept, the outermost first."""
    if "forward" in layer.__dict__:
        yield layer, "forward"
    yield from schemes.captured(layer)


class InstancePatch:
    """The patch of one layer that has a forward of its own, see `own_method`.

    Only the layer refers to it: a function made for one layer may hold that layer.
    """

    def __init__(self, method: MethodType) -> None:
        # a deep copy of a patched layer has the patch of the other layer
        earlier = token_of(method.__func__)
        self.base_forward: BaseForward = getattr(earlier, "base_forward", method.__func__)
        self.forward = patched(self, self.base_forward)


def has_foreign_forward(layer: nn.Module) -> bool:
    """Tell whether a layer has a forward that is neither ours nor a hook's, so that ours may never be called."""
    forward = layer.__dict__.get("forward")
    ours = forward is None or token_of(getattr(forward, "__func__", forward)) is not None
    return not ours and not any(True for _ in schemes.captured(layer))


def own_method(layer: nn.Module, known: Callable[[object], bool]) -> MethodType | None:
    """Return the outermost forward that is a method bound to `layer`, of a function that is not `known` as its class's.

    Any other callable (a hook's partial, a closure, another object's method) calls the forward that it found.
    """
    for holder, attribute in places(layer):
        method = getattr(holder, attribute)
        if isinstance(method, MethodType) and method.__self__ is layer and not known(method.__func__):
            return method
    return None


def _exchange(layer: nn.Module, is_old: Callable[[object], bool], new: BaseForward) -> BaseForward | None:
    """Replace the methods of `layer` wherever one is kept whose function `is_old`; return the function of one of them.

    A hook that is removed moves its captured method to the layer itself, so no place is remembered.
    """
    found: BaseForward | None = None
    for holder, attribute in places(layer):
        method = getattr(holder, attribute)
        if isinstance(method, MethodType) and is_old(method.__func__):
            found = method.__func__
            setattr(holder, attribute, MethodType(new, layer))
    return found


Executor: TypeAlias = Resident[Any]
"""Computes one layer with its adapters: `low_rank.py`, `dense.py` or `merged.py`."""


class Slot:
    """The hook on one layer: its executor, and the patch that may call it.

    A plain attribute of the layer, never a Module, Parameter or buffer, so that no host finds it in a state dict, an
    fp8 cast or an offload map. Copies of the layer start without one.
    """

    __slots__ = ("__weakref__", "called", "executor", "found", "key", "layer", "owner", "patch")

    def __init__(self, owner: object, layer: nn.Module) -> None:
        self.owner = owner
        self.layer = weakref.ref(layer)
        self.key = key_for(self)
        self.patch: ClassPatch | InstancePatch | None = None
        self.executor: Executor | None = None
        self.found: BaseForward | None = None
        """The function that the layer, or a hook of it, had in place of the patch's; a method would keep the layer."""
        self.called = False
        """Whether the layer was called since `Watch.begin`, calls of compiled code aside."""

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        return None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # an unpickled layer has no adapters


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

    Bound methods that were captured meanwhile still call the replaced functions. A forward of ours does nothing for a
    layer whose slot names another patch, so no chain of wrappers can add a delta twice, in any order.
    """

    def __init__(self, cls: type[nn.Module]) -> None:
        self.cls = cls
        self.base_forward: BaseForward = cls.forward
        self.forward = patched(self, self.base_forward)
        base_apply: Callable[..., nn.Module] = cls._apply
        base_load: Callable[..., None] = cls._load_from_state_dict

        def _apply(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
            executor = executor_of(self)  # of any patch: the second move does nothing
            with executor.converting(self) if isinstance(executor, MergedExecutor) else nullcontext():
                moved = base_apply(self, *args, **kwargs)
            if executor is not None:
                move_to_layer(executor, self)
            return moved

        def _load_from_state_dict(self: nn.Module, state: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
            executor = executor_of(self)
            if isinstance(executor, MergedExecutor):
                executor.before_load(self, state, prefix)
            base_load(self, state, prefix, *args, **kwargs)

        self._ours: dict[str, Any] = {"forward": self.forward, SLOT: None}
        self._ours |= {"_apply": _apply, "_load_from_state_dict": _load_from_state_dict}
        self._owned = {name: cls.__dict__[name] for name in self._ours if name in cls.__dict__}
        self.put()

    def put(self) -> None:
        """Put the patch in place, on top of what the class had when the patch was made."""
        for name, ours in self._ours.items():  # of them `SLOT`: dynamo guards a default, but not a missing dict key
            setattr(self.cls, name, ours)
        forget_compiled()

    def in_force(self) -> bool:
        """Tell whether calls of the class's layers still reach the patch, directly or through one put on top."""
        return self.cls.__dict__.get("forward") is self.forward or _reaches(self)

    def replaces(self, function: object) -> bool:
        """Tell whether `function` is what the class had before, or an earlier patch of it that was undone since."""
        other = token_of(function)
        return function is self.base_forward or (isinstance(other, ClassPatch) and other.cls is self.cls)

    def knows(self, function: object) -> bool:
        """Tell whether `function` is the class's forward, now or before."""
        return function is self.cls.forward or self.replaces(function)

    def undo(self) -> None:
        """Restore the class as it was found; patches that others put on top stay."""
        for name, ours in self._ours.items():
            if self.cls.__dict__.get(name, self) is ours:
                delattr(self.cls, name)
                if name in self._owned:
                    setattr(self.cls, name, self._owned[name])


_patches: dict[type[nn.Module], ClassPatch] = {}
_hooked: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""The layers that have a slot."""


def install(classes: Iterable[type[nn.Module]] = ()) -> None:
    """Patch layer classes. Harmless when done already; best done before any model is loaded or compiled.

    Args:
        classes: layer classes of the host, in addition to torch's. A class that inherits its forward needs no patch.
    """
    for cls in (*CLASSES, *(cls for cls in classes if "forward" in cls.__dict__)):
        _ensure(cls)


def uninstall() -> None:
    """Remove every slot and restore every class as it was found."""
    for layer in list(_hooked):
        detach(layer)
    for cls in list(_patches):
        _patches.pop(cls).undo()


def ensure_in_force() -> bool:
    """Install patches again that another extension undid, as A1111's `patches.undo` does.

    Returns:
        Whether a patch was installed again, or a layer is not reached; slots must then be attached again.
    """
    again = False
    for cls, patch in list(_patches.items()):
        if not patch.in_force():
            logger.warning("%s.forward was put back by another extension; patched again", cls.__name__)
            _patches[cls] = _renewed(patch)
            again = True
    slots = ((layer, layer.__dict__.get(SLOT)) for layer in list(_hooked))
    # a layer may have got a forward of its own, another class or a new patch meanwhile
    return again or any(slot is not None and not is_attached(layer, slot) for layer, slot in slots)


def _renewed(patch: ClassPatch) -> ClassPatch:
    """Install a patch again, without a chain that grows each time others undo it."""
    present = patch.cls.__dict__.get("forward")
    earlier = patch if present is patch.base_forward else token_of(present)
    if isinstance(earlier, ClassPatch) and earlier.cls is patch.cls:
        earlier.put()
        return earlier
    patch.undo()  # or the next patch would take the slot and `_apply` for the class's own
    return ClassPatch(patch.cls)


def attach(layer: nn.Module, slot: Slot) -> None:
    """Give `layer` its slot, and make sure that calls of the layer reach it."""
    patch = _ensure(owner(type(layer)))
    _withdraw(layer, slot)
    method = own_method(layer, patch.knows)
    if method is None:
        slot.patch = patch
        slot.found = _exchange(layer, lambda one: one is not patch.forward and patch.replaces(one), patch.forward)
    else:
        slot.patch = own = InstancePatch(method)
        _exchange(layer, partial(is_, method.__func__), own.forward)
        slot.found = own.base_forward
    setattr(layer, SLOT, slot)
    _hooked.add(layer)


def is_attached(layer: nn.Module, slot: Slot) -> bool:
    """Tell whether `layer` has `slot`, under the patch that calls of the layer reach."""
    patch = slot.patch
    if patch is None or layer.__dict__.get(SLOT) is not slot:
        return False
    if isinstance(patch, ClassPatch) and "forward" not in layer.__dict__ and type(layer).forward is patch.cls.forward:
        return _patches.get(patch.cls) is patch
    of_class = _patches.get(owner(type(layer)))
    method = None if of_class is None else own_method(layer, of_class.knows)
    return patch is (of_class if method is None else token_of(method.__func__))


def detach(layer: nn.Module, *, release: bool = True) -> None:
    """Remove the slot, and release its executor; the layer is as it was."""
    slot = layer.__dict__.pop(SLOT, None)
    _hooked.discard(layer)
    if slot is None:
        return
    executor, slot.executor = slot.executor, None
    _withdraw(layer, slot)
    if release and executor is not None:
        executor.release(layer)


def slot_of(layer: nn.Module) -> Slot | None:
    """Return the slot of a layer; None where it has none."""
    slot: Slot | None = getattr(layer, SLOT, None)
    return slot


def executor_of(layer: nn.Module) -> Executor | None:
    """Return the executor of a layer; None where it has none."""
    slot = slot_of(layer)
    return None if slot is None else slot.executor


def _ensure(cls: type[nn.Module]) -> ClassPatch:
    patch = _patches.get(cls)
    if patch is None:
        patch = _patches[cls] = ClassPatch(cls)
    return patch


def owner(cls: type[nn.Module]) -> type[nn.Module]:
    """Return the class whose `forward` a layer of class `cls` runs."""
    return next(base for base in cls.__mro__ if "forward" in base.__dict__)


def _withdraw(layer: nn.Module, slot: Slot) -> None:
    """Restore the forwards of the layer and its hooks that the slot's patch replaced."""
    if slot.patch is not None and slot.found is not None:
        _exchange(layer, partial(is_, slot.patch.forward), slot.found)
    slot.patch = slot.found = None


def _reaches(patch: ClassPatch) -> bool:
    """Call the class's present forward on a tiny layer and tell whether it calls the patch."""
    layer, calls = _tiny_layer(patch.cls), list[object]()
    slot = Slot(patch, layer)
    slot.patch = patch
    # A1111's manual cast also moves the layer
    slot.executor = cast(Executor, SimpleNamespace(run=lambda *call: calls.append(call), move=lambda *_, **__: None))
    setattr(layer, SLOT, slot)
    try:
        patch.cls.forward(layer, torch.empty(0, device="cpu"))
    except Exception:  # a foreign wrapper may fail on a layer without its own marks, or on our result
        logger.debug("probing %s.forward failed", patch.cls.__name__, exc_info=True)
    return bool(calls)


def _tiny_layer(cls: type[nn.Module]) -> nn.Module:
    """Make a layer that other wrappers, such as A1111's manual cast, can handle if its class is one of torch's."""
    if cls in CLASSES:
        sizes = {1: (nn.LayerNorm, getattr(nn, "RMSNorm", None)), 3: (nn.Conv1d, nn.Conv2d, nn.Conv3d)}
        count = next((count for count, classes in sizes.items() if cls in classes), 2)
        return cls(*(1,) * count, device="cpu")
    layer: nn.Module = object.__new__(cls)
    nn.Module.__init__(layer)
    layer.weight = nn.Parameter(torch.zeros(1, 1, device="cpu"), requires_grad=False)
    return layer


_HOST = torch.device("cpu")


class HookedLayers:
    """The layers that one engine has hooked."""

    def __init__(self) -> None:
        self._token = object()

    def swap(
        self,
        executors: Mapping[nn.Module, Executor],
        reset: Callable[[], None],
        resting: Callable[[], Collection[nn.Module]],
        *,
        keep: bool,
        checked: bool = False,
    ) -> None:
        """Replace the executors of all layers; on any error the old ones are restored.

        Args:
            executors: by layer; an executor that its layer has already stays as it is.
            reset: called when nothing is placed, unless an executor stays.
            resting: returns the offloaded layers, beside which nothing is placed before their first call.
            keep: leave the tensors of the old executors in the computer's memory, for later.
            checked: whether `ensure_in_force` has just found that calls reach all slots.

        Raises:
            ComponentError: another engine serves one of the layers.
        """
        slots = self._slots()
        before = {layer: slot.executor for layer, slot in slots.items()}
        after = dict(executors.items())  # a dictionary of weak keys would look up each again
        try:
            for layer in after:
                if not checked or layer not in slots:
                    slots[layer] = self._slot(layer)
            leaving = {layer: old for layer, old in before.items() if old is not after.get(layer)}
            for layer, old in leaving.items():  # before the new ones are placed, so that a device never has both
                if old is not None and keep and not old.reads_base:  # others may write to base weights meanwhile
                    old.move(layer, _HOST)
                elif old is not None:
                    old.release(layer)
            for layer in before.keys() - after.keys():
                detach(layer, release=False)
            if len(leaving) == len(before):
                reset()
            for layer, executor in after.items():
                slots[layer].executor = executor
            new = {layer: executor for layer, executor in after.items() if executor is not before.get(layer)}
            idle = resting() if new else ()
            for layer, executor in new.items():
                move_to_layer(executor, layer, now=executor.merges or layer not in idle)
        except BaseException:
            self._restore(before)
            raise

    def hold(self, executors: Mapping[nn.Module, Executor]) -> bool:
        """Tell whether all layers have these executors."""
        slots = ((slot_of(layer), executor) for layer, executor in list(executors.items()))
        return all(slot is not None and slot.executor is executor for slot, executor in slots)

    def detach(self) -> None:
        """Detach all layers, also where restoring the weights of one fails."""
        failed: LoraError | None = None
        for layer in self._slots():
            try:
                detach(layer)
            except LoraError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _restore(self, executors: Mapping[nn.Module, Executor | None]) -> None:
        for layer, slot in self._slots().items():
            if slot.executor is not None and slot.executor is not executors.get(layer):
                slot.executor.release(layer)
            if layer not in executors:
                detach(layer)
        for layer, executor in executors.items():
            self._slot(layer).executor = executor
            if executor is not None:
                move_to_layer(executor, layer, now=executor.merges)

    def _slots(self) -> dict[nn.Module, Slot]:
        found = {layer: layer.__dict__.get(SLOT) for layer in list(_hooked)}
        return {layer: slot for layer, slot in found.items() if slot is not None and slot.owner is self._token}

    def _slot(self, layer: nn.Module) -> Slot:
        slot = slot_of(layer)
        if slot is None or slot.owner is not self._token:
            if slot is not None and slot.executor is not None:
                raise ComponentError(f"a {type(layer).__name__} is served by another Engine; deactivate that one first")
            slot = Slot(self._token, layer)
        elif is_attached(layer, slot):
            return slot
        attach(layer, slot)
        return slot


def move_to_layer(executor: Executor, layer: nn.Module, *, now: bool = False) -> None:
    """Move an executor to the device of its layer; see `Resident.move`."""
    device = device_of(layer)
    if device is not None:
        executor.move(layer, device, now=now)
