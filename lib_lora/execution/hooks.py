"""Hooks on layers: `forward` and `_apply` of the layer classes, replaced once per class and undone exactly.

The class is patched and not each layer, because accelerate and diffusers restore the instance attributes that they
found. A layer without adapters pays one attribute look-up. A few layers have a forward of their own, which is called
instead of their class's; there the layer's own forward is replaced. Each hooked layer has a `Slot`, which names its
executor; `HookedLayers` are the layers of one engine.

Engines share the patches of classes and nothing else. A lock guards these, and the attributes that hooks put on classes
and layers; no code of others runs under it.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from operator import is_
from types import FunctionType, MethodType, SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import nn

from ..compiler import compiling, forget_compiled, is_in_compiled
from ..errors import ArgumentError, ComponentError, listed, shown
from ..placement import schemes
from ..placement.budget import is_out_of_memory
from ..tensors import device_of
from . import opaque
from .arguments import BaseForward
from .wrapped import is_wrapped, run_unwrapped

if TYPE_CHECKING:
    from ..placement.resident import Resident

logger = logging.getLogger(__name__)

SLOT, _PATCH = "_remora_slot", "_remora_patch"
_CPU = torch.device("cpu")

Executor: TypeAlias = "Resident[Any]"
"""Computes one layer with its adapters: `low_rank.py`, `dense.py` or `merged.py`."""


class Slot:
    """The hook on one layer: its executor, and the patch that may call it.

    A plain attribute of the layer, never a Module, Parameter or buffer, so that no host finds it in a state dict, an
    fp8 cast or an offload map. Copies of the layer start without one.
    """

    __slots__ = ("__weakref__", "called", "executor", "key", "layer", "patch", "replaced")

    def __init__(self, layer: nn.Module) -> None:
        self.layer = weakref.ref(layer)
        self.key = opaque.key_for(self)
        self.patch: Patch | None = None
        self.replaced: BaseForward | None = None
        """The function that the layer, or a hook of it, had in place of the patch's; a method would keep the layer."""
        self.executor: Executor | None = None
        self.called = False
        """Whether the layer was called since `Watch.begin`, calls of compiled code aside."""

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        return None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # an unpickled layer has no adapters


class Patch:
    """A forward of ours in place of another, which it calls: of a class, or of one layer with a forward of its own.

    A layer's own forward may hold the layer, so only the layer refers to the patch of it.
    """

    def __init__(self, replaced: BaseForward) -> None:
        # one of ours is of an earlier patch that others put back, or of the layer that this one is a deep copy of
        earlier = patch_in(replaced)
        self.base_forward: BaseForward = replaced if earlier is None else earlier.base_forward
        self.forward = _calling_executor(self, self.base_forward)


def _calling_executor(patch: Patch, base_forward: BaseForward) -> BaseForward:
    """Make a forward that calls the executor of a layer's slot, if that slot names `patch`.

    Bound methods that were captured still call the forwards of patches that were undone. As each acts for its own
    slots alone, no chain of wrappers adds a delta twice.
    """
    # no globals: `made` has the globals of another module
    is_compiling, in_operation, has_run_out = compiling, opaque.call, is_out_of_memory
    plain, wrapped, unwrapped = torch.Tensor, is_wrapped, run_unwrapped

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        slot: Slot | None = getattr(self, "_remora_slot", None)  # the default is for calls captured before an undo
        # the executor is read once: another thread may take it off
        if slot is None or slot.patch is not patch or (executor := slot.executor) is None:
            return base_forward(self, *args, **kwargs)
        if args and type(args[0]) is not plain and wrapped(args[0]):
            slot.called = True
            return unwrapped(executor, self, base_forward, args, kwargs)
        if is_compiling():  # first, so that a graph does not guard `called`
            if executor.account.device is None and not executor.merges:  # to place its tensors would break the graph
                y = in_operation(self, base_forward, args, kwargs)
                if y is not None:
                    return y
            return executor.run(self, base_forward, args, kwargs)
        if not slot.called:
            slot.called = True
        try:
            return executor.run(self, base_forward, args, kwargs)
        except RuntimeError as error:
            if not has_run_out(error):
                raise
        # only here are the failure and all that it held gone
        return executor.run_in_less_memory(self, base_forward, args, kwargs)

    return _in_place_of(base_forward, cast(FunctionType, forward))


def _in_place_of(base_forward: BaseForward, forward: FunctionType) -> BaseForward:
    """Return a function that other code takes for a class's own forward."""
    # `torch.jit.script` reads the source behind `__wrapped__` and looks its names up in the globals of our function
    scope = getattr(base_forward, "__globals__", forward.__globals__)
    made: Any = FunctionType(forward.__code__, scope, forward.__name__, forward.__defaults__, forward.__closure__)
    # among them the marks of torch.jit.ignore, and the name by which a function is pickled
    made.__dict__.update(getattr(base_forward, "__dict__", {}))
    made.__qualname__ = getattr(base_forward, "__qualname__", made.__qualname__)
    made.__wrapped__ = base_forward  # inspect.signature() looks here
    return cast(BaseForward, made)


_CODE = _calling_executor(cast(Any, None), nn.Module.forward).__code__
_CELL = _CODE.co_freevars.index("patch")


def patch_in(function: object) -> Patch | None:
    """Return the patch whose forward `function` is; None for any other function.

    All these forwards share their code. Wrappers copy a function's attributes, and never its code.
    """
    if getattr(function, "__code__", None) is not _CODE:
        return None
    patch: Patch = cast(FunctionType, function).__closure__[_CELL].cell_contents  # type: ignore[index]
    return patch


def _serving_executors(cls: type[nn.Module]) -> dict[str, Callable[..., Any]]:
    """Make the methods of a class by which executors follow the moves of their layers and the loading of weights."""
    former = {name: cls.__dict__.get(name) for name in ("_apply", "_load_from_state_dict")}

    def base(name: str, layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # what a class inherits is looked up at each call: A1111 replaces `nn.Module`'s while it loads a model
        function = former[name]
        return (
            getattr(super(cls, layer), name)(*args, **kwargs) if function is None else function(layer, *args, **kwargs)
        )

    def _apply(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        executor = executor_of(layer)
        with nullcontext() if executor is None else executor.converting(layer):
            moved = base("_apply", layer, *args, **kwargs)
        if executor is not None:
            move_to_layer(executor, layer)  # of any patch: the second move does nothing
        return moved

    def _load_from_state_dict(layer: nn.Module, state: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        executor = executor_of(layer)
        if executor is not None:
            executor.before_load(layer, state, prefix)
        base("_load_from_state_dict", layer, state, prefix, *args, **kwargs)

    return {"_apply": _apply, "_load_from_state_dict": _load_from_state_dict}


class ClassPatch(Patch):
    """The patch of a class, on top of what the class has. The class alone keeps it, so that it goes with the class."""

    def __init__(self, cls: type[nn.Module]) -> None:
        super().__init__(cls.forward)
        self.cls = cls
        # the slot is read as a plain attribute with a class-level default: dynamo guards that, but not a missing key
        self._ours: dict[str, Any] = {SLOT: None, _PATCH: self, "forward": self.forward, **_serving_executors(cls)}
        self._former = {name: cls.__dict__[name] for name in self._ours if name in cls.__dict__}
        for name, ours in self._ours.items():
            setattr(cls, name, ours)
        _patches.add(cls)

    def is_in_force(self) -> bool:
        """Tell whether calls of the class's layers reach the patch, directly or through one put on top."""
        if self.cls.__dict__.get("forward") is self.forward:
            return True
        layer = object.__new__(self.cls)
        nn.Module.__init__(layer)
        layer.weight = nn.Parameter(torch.zeros(1, 1, device=_CPU), requires_grad=False)
        slot = Slot(layer)
        setattr(layer, SLOT, slot)
        # A1111's manual cast also moves the layer
        stand_in: Any = SimpleNamespace(run=lambda *_: None, move=lambda *_, **__: None, converting=nullcontext)
        slot.patch, slot.executor = self, stand_in
        try:
            self.cls.forward(layer, torch.empty(0, device=_CPU))
        except Exception:  # a foreign wrapper may fail on a layer without its own marks, or on our result
            logger.debug("probing %s.forward failed", self.cls.__name__, exc_info=True)
        return slot.called

    def replaces(self, function: object) -> bool:
        """Tell whether `function` is what the class had before, or the forward of an earlier patch of it."""
        other = patch_in(function)
        return function is self.base_forward or (isinstance(other, ClassPatch) and other.cls is self.cls)

    def undo(self) -> None:
        """Restore the class as it was found; patches that others put on top stay."""
        with _lock:
            for name, ours in reversed(self._ours.items()):  # the slot last: a call may be in our forward
                if name not in self.cls.__dict__ or self.cls.__dict__[name] is not ours:
                    continue
                if name in self._former:  # in one step: another thread may call a layer of this class
                    setattr(self.cls, name, self._former[name])
                else:
                    delattr(self.cls, name)
            if _PATCH not in self.cls.__dict__:
                _patches.discard(self.cls)


CLASSES: tuple[type[nn.Module], ...] = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.MultiheadAttention, nn.Embedding, nn.LayerNorm, nn.GroupNorm),
    *((nn.RMSNorm,) if hasattr(nn, "RMSNorm") else ()),  # torch 2.4 and later
)
"""Patched with the first engine, or at `install`; other classes when an engine gets a model that has them."""

_lock = threading.RLock()
_patches: weakref.WeakSet[type[nn.Module]] = weakref.WeakSet()
_engines: weakref.WeakSet[HookedLayers] = weakref.WeakSet()
_stays_installed = False


def defining_class(cls: type[nn.Module]) -> type[nn.Module]:
    """Return the class whose `forward` a layer of class `cls` runs."""
    for base in cls.__mro__:
        if "forward" in base.__dict__:
            return base
    return nn.Module


def patch_of(cls: type[nn.Module]) -> ClassPatch | None:
    """Return the patch of the forward that layers of class `cls` run; None where it has none."""
    patch: ClassPatch | None = defining_class(cls).__dict__.get(_PATCH)
    return patch


def install(classes: Iterable[type[nn.Module]] = ()) -> None:
    """Patch layer classes until `uninstall`. Harmless when done already.

    An engine patches what its model needs, and the last engine takes the patches off. A host calls this before any
    model is loaded or compiled, so that they stay.

    Args:
        classes: layer classes of the host, in addition to torch's. A class that inherits its forward needs no patch.

    Raises:
        ArgumentError: they are no classes of modules.
    """
    example = "a list of classes of modules, as [host.Linear]"
    classes = listed(classes, "classes", example)
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
            raise ArgumentError(f"classes must be {example}, not {shown(classes)}")
    global _stays_installed
    _stays_installed = True
    _patch_classes(classes)


def uninstall() -> None:
    """Remove every slot and restore every class as it was found."""
    global _stays_installed
    _stays_installed = False
    with ExitStack() as stack:  # which goes on where one fails
        for patch in _all_patches():
            stack.callback(patch.undo)
        with _lock:
            engines = list(_engines)
        for layers in engines:
            stack.callback(layers.detach)


def _all_patches() -> list[ClassPatch]:
    with _lock:
        return [cls.__dict__[_PATCH] for cls in list(_patches)]


def _patch_classes(classes: Iterable[type[nn.Module]]) -> None:
    """Patch torch's layer classes and each of `classes` that defines a forward; leave patched ones as they are."""
    with _lock:
        missing = [cls for cls in {*CLASSES, *classes} if "forward" in cls.__dict__ and _PATCH not in cls.__dict__]
        for cls in missing:
            ClassPatch(cls)
    forget_compiled(missing)


def slot_of(layer: nn.Module) -> Slot | None:
    """Return the slot of a layer; None where it has none."""
    return getattr(layer, SLOT, None)


def executor_of(layer: nn.Module) -> Executor | None:
    """Return the executor of a layer; None where it has none."""
    slot = slot_of(layer)
    return None if slot is None else slot.executor


def _kept_forwards(layer: nn.Module) -> list[tuple[object, str, MethodType]]:
    """List (object, attribute, method) of every place where a forward of `layer` is kept, the outermost first.

    Any other callable there (a hook's partial, a closure, another object's method) calls the forward that it found.
    """
    places = [(layer, "forward"), *schemes.captured(layer)] if "forward" in layer.__dict__ else []
    found = [(holder, attribute, getattr(holder, attribute)) for holder, attribute in places]
    return [one for one in found if isinstance(one[2], MethodType) and one[2].__self__ is layer]


def _own_forward(layer: nn.Module, patch: ClassPatch) -> BaseForward | None:
    """Return the function of the outermost forward that `layer` keeps and that its class never had."""
    functions = [method.__func__ for *_, method in _kept_forwards(layer)]
    return next((one for one in functions if one is not patch.cls.forward and not patch.replaces(one)), None)


def _exchange(layer: nn.Module, is_old: Callable[[object], bool], new: BaseForward) -> BaseForward | None:
    """Replace the methods of `layer` wherever one is kept whose function `is_old`; return the function of one of them.

    A hook that is removed moves its captured method to the layer itself, so no place is remembered.
    """
    replaced: BaseForward | None = None
    for holder, attribute, method in _kept_forwards(layer):
        if is_old(method.__func__):
            replaced = method.__func__
            setattr(holder, attribute, MethodType(new, layer))
    return replaced


def _withdraw(layer: nn.Module, slot: Slot) -> None:
    """Restore the forwards of the layer and its hooks that the slot's patch replaced."""
    if slot.patch is not None and slot.replaced is not None:
        _exchange(layer, partial(is_, slot.patch.forward), slot.replaced)
    slot.patch = slot.replaced = None


def is_attached(layer: nn.Module, slot: Slot) -> bool:
    """Tell whether `layer` has `slot`, under the patch that calls of the layer reach."""
    patch, forward = patch_of(type(layer)), layer.__dict__.get("forward")
    own = None if patch is None else _own_forward(layer, patch)
    reached = patch if own is None else patch_in(own)
    if reached is None or slot.patch is not reached or layer.__dict__.get(SLOT) is not slot:
        return False
    is_ours = forward is None or patch_in(getattr(forward, "__func__", forward)) is not None
    return is_ours or any(schemes.captured(layer))  # a forward that is no hook's either may never call ours


class HookedLayers:
    """The layers that one engine has hooked, held weakly."""

    def __init__(self) -> None:
        self._slots: weakref.WeakKeyDictionary[nn.Module, Slot] = weakref.WeakKeyDictionary()
        self._layers: list[weakref.ref[nn.Module]] = []
        self._forwards: list[int] = []
        """The ids of the forwards that these layers and their classes had when their slots were last looked at."""

    def patch(self, classes: Iterable[type[nn.Module]]) -> None:
        """Patch torch's layer classes and others, at least until `close`."""
        _engines.add(self)
        _patch_classes(classes)

    def ensure_in_force(self) -> None:
        """Install patches again that other code undid, as A1111's `patches.undo` does; have calls reach all slots.

        A layer may also have got a forward of its own or another class meanwhile.
        """
        undone = [patch for patch in _all_patches() if not patch.is_in_force()]
        for patch in undone:
            patch.undo()  # or the next patch would take `_apply` for the class's own
            logger.warning("%s.forward was put back by another extension; patched again", patch.cls.__name__)
        if undone:
            _patch_classes([patch.cls for patch in undone])
        slots = self._snapshot()
        patches = {cls: patch_of(cls) for cls in set(map(type, slots))}
        for layer, slot in slots.items():
            own = layer.__dict__
            if "forward" in own or own.get(SLOT) is not slot or slot.patch is not patches[type(layer)]:
                self._attach(layer)

    def note_forwards(self) -> None:
        """Notice forwards that other code puts on layers or their classes from now on."""
        self._layers = [weakref.ref(layer) for layer in self._snapshot()]
        self._forwards = self._forwards_now()

    def has_other_forwards(self) -> bool:
        """Tell whether a layer or its class has got another forward since `note_forwards`."""
        return self._forwards_now() != self._forwards

    def _forwards_now(self) -> list[int]:
        layers = [layer for it in self._layers if (layer := it()) is not None]
        classes: dict[type[nn.Module], None] = dict.fromkeys(map(type, layers))
        return [*map(id, [layer.__dict__.get("forward") for layer in layers]), *[id(cls.forward) for cls in classes]]

    def swap(
        self,
        executors: Mapping[nn.Module, Executor],
        reset: Callable[[], None],
        resting: Callable[[], Collection[nn.Module]],
        headroom: Callable[[torch.device], bool] | None,
    ) -> None:
        """Replace the executors of all layers, except where one stays; on any error the old ones are restored.

        Args:
            executors: by layer.
            reset: called when nothing is placed, unless an executor stays.
            resting: returns the offloaded layers, beside which nothing is placed before their first call.
            headroom: tells whether the tensors of the old executors may stay on a device, for later; None drops them.

        Raises:
            ComponentError: another engine serves one of the layers.
        """
        after, before = dict(executors.items()), self._executors()
        self.patch(map(defining_class, set(map(type, after))))
        leaving = {layer: old for layer, old in before.items() if old is not after.get(layer)}
        new = {layer: executor for layer, executor in after.items() if executor is not before.get(layer)}
        try:
            for layer in [layer for layer in new if layer not in before]:
                self._attach(layer)
            for layer, old in leaving.items():  # before the new ones are placed, so that a device never has both
                old.rest(layer, headroom)
            for layer in before.keys() - after.keys():
                self._take_off(layer)
            if len(leaving) == len(before):
                reset()
            slots = self._snapshot()
            for layer, executor in new.items():
                slots[layer].executor = executor
            from ..placement.resident import place_together  # with the engine, not when a host starts

            place_together(new, resting() if new else ())
        except BaseException:
            self._restore(before)
            raise

    def hold(self, executors: Mapping[nn.Module, Executor]) -> bool:
        """Tell whether the layers have these executors."""
        return self._executors() == dict(executors.items())

    def detach(self) -> None:
        """Detach all layers: first no layer has an adapter, then memory and weights are given back.

        A merged layer gets its weight back first, as only its executor holds a weight that a call reads.

        Raises:
            LoraError: the weights of a layer cannot be restored; all others are.
        """
        with ExitStack() as stack:
            for layer, executor in self._executors().items():
                if executor.merges:
                    stack.callback(self._release, layer, executor)
                else:
                    self._take_off(layer)
                    stack.callback(executor.release, layer)

    def close(self) -> None:
        """Detach all layers; where no engine is left, restore the classes."""
        try:
            self.detach()
        finally:
            with _lock:
                _engines.discard(self)
                for patch in () if _stays_installed or len(_engines) else _all_patches():
                    if not is_in_compiled(patch.cls):  # or that code would be compiled again
                        patch.undo()

    def _release(self, layer: nn.Module, executor: Executor) -> None:
        """Give a merged layer its weight back, and take the slot off; an interruption does both or neither."""
        try:
            executor.release(layer)
        finally:
            self._take_off(layer)

    def _restore(self, executors: Mapping[nn.Module, Executor]) -> None:
        for layer, executor in self._executors().items():
            if executor is not executors.get(layer):
                executor.release(layer)
        for layer in self._snapshot().keys() - executors.keys():
            self._take_off(layer)
        with ExitStack() as stack:  # where a weight cannot be merged into again, the other layers are restored
            for layer, executor in executors.items():
                self._attach(layer).executor = executor
                stack.callback(move_to_layer, executor, layer, now=executor.merges)

    def _snapshot(self) -> dict[nn.Module, Slot]:
        with _lock:
            return dict(self._slots.items())

    def _executors(self) -> dict[nn.Module, Executor]:
        slots = self._snapshot()
        return {layer: executor for layer, slot in slots.items() if (executor := slot.executor) is not None}

    def _attach(self, layer: nn.Module) -> Slot:
        """Have calls of a layer reach its slot, which is made where there is none."""
        with _lock:
            slot, present, cls = self._slots.get(layer), layer.__dict__.get(SLOT), type(layer)
            if present is not None and present is not slot:
                text = f"a {cls.__name__} is served by another Engine, perhaps of a pipeline with the same components"
                raise ComponentError(f"{text}; use that one, or deactivate it first")
            if slot is None:
                slot = self._slots[layer] = Slot(layer)
            patch = patch_of(cls) or ClassPatch(defining_class(cls))
            if "forward" not in layer.__dict__:
                slot.patch, slot.replaced = patch, None
            elif not is_attached(layer, slot):
                _withdraw(layer, slot)
                own = _own_forward(layer, patch)
                slot.patch = patch if own is None else Patch(own)
                is_old = (
                    partial(is_, own) if own is not None else lambda it: it is not patch.forward and patch.replaces(it)
                )
                replaced = _exchange(layer, is_old, slot.patch.forward)
                slot.replaced = replaced if own is None else slot.patch.base_forward
            setattr(layer, SLOT, slot)
            return slot

    def _take_off(self, layer: nn.Module) -> None:
        """Remove the slot, so that the layer is as it was."""
        with _lock:
            slot = self._slots.pop(layer, None)
            if slot is not None:
                if layer.__dict__.get(SLOT) is slot:
                    delattr(layer, SLOT)
                slot.executor = None
                _withdraw(layer, slot)


def move_to_layer(executor: Executor, layer: nn.Module, *, now: bool = False) -> None:
    """Move an executor to the device of its layer; see `Resident.move`."""
    device = device_of(layer)
    if device is not None:
        executor.move(layer, device, now=now)
