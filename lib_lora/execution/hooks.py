"""Hooks on layers: `forward` and `_apply` of the layer classes, replaced once per class and undone exactly.

The class is patched and not each layer, because accelerate and diffusers put back instance attributes as they once
found them. A layer without adapters pays one attribute look-up. A few layers carry a forward of their own, so that the
forward of their class is never called; there the layer's own one is replaced. `Slot` is what a layer carries,
`Carriers` are the layers that carry slots of one engine.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any, Protocol

import torch
from torch import nn

from ..compiler import compiling, forget_compiled
from ..errors import ComponentError, LoraError
from ..placement import schemes
from ..tensors import device_of
from ..weights.operation import BaseForward
from .opaque import key_for

logger = logging.getLogger(__name__)


def patched(token: object, base_forward: BaseForward) -> BaseForward:
    """A forward that lets the slot of a layer have its say, if that slot names `token` as the one who may ask it."""

    is_compiling = compiling  # of this function, not of its module, see below

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        slot: Slot | None = getattr(self, "_remora_slot", None)  # the default is for calls captured before an undo
        if slot is None or slot.patch is not token or slot.way is None:
            return base_forward(self, *args, **kwargs)
        if not is_compiling() and not slot.called:  # in this order: a graph is not to know that it was called
            slot.called = True
        return slot.way.run(self, base_forward, args, kwargs)

    made = _at_home_of(base_forward, forward)
    # such as the marks of torch.jit.ignore, and the name by which a function is pickled
    made.__dict__.update(getattr(base_forward, "__dict__", {}))
    made.__qualname__ = getattr(base_forward, "__qualname__", made.__qualname__)
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
    yield from schemes.captured(layer)


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


def has_foreign_forward(layer: nn.Module) -> bool:
    """Tell whether a layer carries a forward that is neither ours nor a hook's, so that it may never come here."""
    forward = layer.__dict__.get("forward")
    if forward is None or token_of(getattr(forward, "__func__", forward)) is not None:
        return False
    return not any(True for _ in schemes.captured(layer))


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


class Way(Protocol):
    """How the bindings of one layer are computed: `low_rank.py`, `dense.py` or `merged.py`."""

    @property
    def at_rest(self) -> bool:
        """Whether `prefetch` is due even for a layer that is not where it computes."""
        ...

    def run(self, layer: nn.Module, base_forward: BaseForward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Forward of the layer with its adapters."""
        ...

    def follow(self, layer: nn.Module, device: torch.device) -> None:
        """The layer moved: go there now, or drop what was placed where it no longer is."""
        ...

    def prefetch(self, layer: nn.Module) -> None:
        """Place beside the layer before the first call, where layer and dtype are known already."""
        ...

    def release(self, layer: nn.Module) -> None:
        """Leave nothing of ours in or beside the layer; the home copy stays."""
        ...

    def park(self, layer: nn.Module) -> None:
        """The same, but keep what makes coming back quicker and takes no room on a device."""
        ...

    def resume(self, layer: nn.Module) -> bool:
        """Have beside the layer what was kept, if it is of use there; whether it is, so that no `prefetch` is due."""
        ...

    def forget_stale(self, layer: nn.Module) -> None:
        """Drop what was worked out of a base weight that has changed since."""
        ...

    @property
    def parked_bytes(self) -> int:
        """What `park` keeps, or has kept, until `release`."""
        ...


class Slot:
    """What a layer carries: which way its adapters are computed, and which patch may call it.

    A plain attribute of the layer, never a Module, Parameter or buffer, so that no host finds it in a state dict, an
    fp8 cast or an offload map. Copies of the layer start without one.
    """

    __slots__ = ("__weakref__", "called", "key", "layer", "owner", "patch", "way")

    def __init__(self, owner: object, layer: nn.Module) -> None:
        self.owner = owner
        self.layer = weakref.ref(layer)
        self.key = key_for(self)
        self.patch: ClassPatch | InstancePatch | None = None
        self.way: Way | None = None
        self.called = False
        """Whether the layer was called since `watch.py` began to look, but for calls of compiled code."""

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        return None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # a pickled layer comes back without adapters


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
                detach(layer)
            except LoraError as error:
                failed = failed or error
        self._layers.clear()
        if failed is not None:
            raise failed

    def _restore(self, ways: Mapping[nn.Module, Way | None]) -> None:
        for layer in list(self._layers):
            slot = slot_of(layer)
            if slot is not None and slot.way is not None and slot.way is not ways.get(layer):
                slot.way.release(layer)
            if layer not in ways:
                detach(layer)
                self._layers.discard(layer)
        for layer, way in ways.items():
            self._slot(layer).way = way
            if way is not None and not way.resume(layer) and way.at_rest:
                way.prefetch(layer)

    def _leave(self, layer: nn.Module, way: Way | None) -> None:
        """Take the slot of a layer away, and leave its way what it keeps."""
        slot = slot_of(layer)
        if slot is not None and slot.way is way:
            slot.way = None
        detach(layer)
        self._layers.discard(layer)

    def _own(self, layer: nn.Module) -> Slot | None:
        slot = slot_of(layer)
        return None if slot is None or slot.owner is not self._token else slot

    def _slot(self, layer: nn.Module) -> Slot:
        slot = slot_of(layer)
        if slot is None or slot.owner is not self._token:
            if slot is not None and slot.way is not None:
                raise ComponentError(f"a {type(layer).__name__} is served by another Engine; deactivate that one first")
            slot = Slot(self._token, layer)
        elif is_attached(layer, slot):
            return slot  # and known
        attach(layer, slot)
        self._layers.add(layer)
        return slot


def carries(layer: nn.Module, way: Way) -> bool:
    """Whether a way serves a layer."""
    slot = slot_of(layer)
    return slot is not None and slot.way is way
