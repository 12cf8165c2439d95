"""A simulated accelerator: tensors that claim another device, compute real numbers and refuse mixed operands.

The device type is `lazy`, which every build of torch knows and none implements. A tensor there is a wrapper around a
CPU tensor; a dispatch mode unwraps, checks, runs and wraps again, so a result has the same bits as on the CPU. What
torch refuses on real hardware is refused here with torch's own words. Streams, autocast and a random state of the
device's own are not simulated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

TYPE = "lazy"
COUNT = 2
CPU = torch.device("cpu")

_aten = torch.ops.aten
_CROSSING = frozenset({_aten._to_copy.default, _aten.copy_.default, _aten.set_.source_Tensor})
_INDEXING = frozenset({_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default})
_BASE = getattr(torch._C, "TensorBase", None) or torch._C._TensorBase  # type: ignore[attr-defined]  # before torch 2.2
_PLAIN_DATA = _BASE.data  # the getter and setter below the property that `simulated` installs


def device(index: int = 0) -> torch.device:
    """One of the simulated devices."""
    return torch.device(TYPE, index)


class SimulatedTensor(Tensor):
    """Claims to live on a simulated device; the numbers are in a CPU tensor inside."""

    _data: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as a plain tensor

    @staticmethod
    def __new__(cls, data: Tensor, where: torch.device | None = None, requires_grad: bool = False) -> Any:
        if isinstance(data, SimulatedTensor):
            data, where = data._data, data.device
        if where is None:  # accelerate makes a parameter "of the class the last one had" out of a plain tensor
            return nn.Parameter(data, requires_grad=requires_grad)
        self = Tensor._make_wrapper_subclass(
            cls,
            data.size(),
            strides=data.stride(),
            storage_offset=data.storage_offset(),
            dtype=data.dtype,
            layout=data.layout,
            device=where,
            requires_grad=requires_grad,
        )
        self._data = data.detach()
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    def data_ptr(self) -> int:
        return self._data.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self._data.untyped_storage()

    def tolist(self) -> Any:
        return self._data.tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"SimulatedTensor({self._data!r}, device={self.device})"


class _Mode(TorchDispatchMode):
    """Sends every operation, those on plain tensors included, through `_run`: only so can factories be caught."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})


@contextmanager
def _literals_copied() -> Iterator[None]:
    """Let `torch.tensor([...], device=...)` pass through dispatch; torch's own copies in C++.

    The functions are exchanged. A mode would do the same, but is asked at every call of any function.
    """
    before = {name: getattr(torch, name) for name in ("tensor", "as_tensor")}

    def copying(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @wraps(function)
        def made(*args: Any, device: Any = None, **kwargs: Any) -> Tensor:
            result = function(*args, **kwargs)
            return result if device is None else result.to(device)

        return made

    for name, function in before.items():
        setattr(torch, name, copying(function))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(torch, name, function)


@dataclass
class Shortage:
    """Allocations that fail, counted from when it began."""

    failing: Collection[int]
    """Which ones, by their number; all others succeed."""
    count: int = 0

    def allocate(self) -> None:
        self.count += 1
        if self.count in self.failing:
            raise OutOfMemoryError("lazy out of memory. Tried to allocate some.")


OutOfMemoryError: type[RuntimeError] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
_shortage: Shortage | None = None


@contextmanager
def short_of_memory(*failing: int) -> Iterator[Shortage]:
    """Let the allocations of these numbers fail, from 1: empty tensors, and copies from elsewhere."""
    global _shortage
    _shortage = Shortage(failing)
    try:
        yield _shortage
    finally:
        _shortage = None


@contextmanager
def simulated() -> Iterator[None]:
    """Simulate the devices `lazy:0` and `lazy:1` inside the block; nothing of it is left behind.

    The test is skipped on a torch that cannot exchange a parameter in place.
    """
    if not hasattr(torch.utils, "swap_tensors"):
        pytest.skip("the simulated accelerator needs torch 2.3")
    with ExitStack() as stack:
        stack.enter_context(_module_registered())
        stack.enter_context(_data_swappable())
        stack.enter_context(_literals_copied())
        stack.enter_context(_Mode())
        yield


def _run(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    tensors: list[Tensor] = []
    _collect(args, tensors)
    if kwargs:
        _collect(kwargs.values(), tensors)
    wrappers = [t for t in tensors if isinstance(t, SimulatedTensor)]
    wanted = kwargs.get("device")
    if not wrappers and (wanted is None or torch.device(wanted).type != TYPE):
        return func(*args, **kwargs)
    _refuse_mixed(func, args, tensors)
    target = torch.device(wanted) if wanted is not None else wrappers[0].device
    if _shortage is not None and wanted is not None and target.type == TYPE:
        _shortage.allocate()
    if func is _aten.copy_.default:
        target = args[0].device
    if wanted is not None and target.type == TYPE:
        kwargs = {**kwargs, "device": CPU}
    out = func(*map(_unwrapped, args), **{name: _unwrapped(value) for name, value in kwargs.items()})
    if target.type != TYPE:
        return args[0] if func is _aten.copy_.default else out
    if (target.index or 0) >= COUNT:
        raise RuntimeError(f"invalid device ordinal: {target}")
    return _wrapped(out, wrappers, device(target.index or 0))


def _collect(values: Iterable[Any], found: list[Tensor]) -> None:
    """Add the tensors among what an operation takes: tensors, numbers, and lists of them."""
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            _collect(value, found)


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)([_mapped(change, one) for one in value])
    return change(value)


def _unwrapped(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)([_unwrapped(one) for one in value])
    return value._data if isinstance(value, SimulatedTensor) else value


def _wrapped(out: Any, known: Sequence[SimulatedTensor], where: torch.device) -> Any:
    """Wrap each result; one that was changed in place is the tensor that came in."""
    by_id = {id(t._data): t for t in known}

    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, SimulatedTensor):
            return value
        same = by_id.get(id(value))
        return SimulatedTensor(value, where) if same is None else same

    return _mapped(wrap, out)


def _refuse_mixed(func: Any, args: tuple[Any, ...], tensors: Sequence[Tensor]) -> None:
    if func in _CROSSING:
        return
    if func in _INDEXING:  # indices may be on the CPU
        tensors = [tensors[0], *(t for t in tensors[1:] if t.device != CPU)]
    # a CPU scalar mixes with everything, as on real hardware
    tensors = [t for t in tensors if t.dim() > 0 or t.device != CPU]
    if len({t.device for t in tensors}) < 2:
        return
    if func is _aten.convolution.default:
        _refuse_convolution(*args[:3])
    first, second = dict.fromkeys(str(t.device) for t in tensors)
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}!"
    )


def _refuse_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    for what, other in (("weight", weight), ("bias", bias)):
        if other is not None and other.device.type != x.device.type:
            more = " or input should be a MKLDNN tensor and weight is a dense tensor" if x.device == CPU else ""
            raise RuntimeError(f"Input type ({_name(x)}) and {what} type ({_name(other)}) should be the same{more}")


def _name(tensor: Tensor) -> str:
    """Name a tensor's type as torch's C++ does: torch.cuda.FloatTensor, but CUDABFloat16Type."""
    kind = tensor.device.type
    names = {torch.float32: "Float", torch.float64: "Double", torch.float16: "Half"}
    if tensor.dtype not in names:
        return f"{'CPU' if kind == 'cpu' else kind.capitalize()}BFloat16Type"
    return f"torch.{'' if kind == 'cpu' else f'{kind}.'}{names[tensor.dtype]}Tensor"


@contextmanager
def _module_registered() -> Iterator[None]:
    """Provide a `torch.lazy` in the meantime: diffusers imports it, and this torch lacks it."""
    module = ModuleType(f"torch.{TYPE}")
    facts: dict[str, Callable[..., object]] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "current_device": lambda: 0,
        "device_count": lambda: COUNT,
        "empty_cache": lambda: None,
        "synchronize": lambda *_: None,
        "mem_get_info": lambda *_: (1 << 34, 1 << 34),
    }
    vars(module).update(facts)
    torch._register_device_module(TYPE, module)
    try:
        yield
    finally:
        delattr(torch, TYPE)
        del sys.modules[module.__name__]


@contextmanager
def _data_swappable() -> Iterator[None]:
    """Let `tensor.data = other` and `module.to()` change a parameter in place, from any device to any other.

    On hardware both keep the parameter object. Here they would not: torch takes a plain and a wrapper tensor for
    incompatible, refuses `.data` and makes `.to()` replace the parameter.
    """
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    Tensor.data = property(_get_data, _set_data)  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        del Tensor.data  # the one below, of torch's C++ base class, shows again
        torch.__future__.set_swap_module_params_on_conversion(before)


def _get_data(self: Tensor) -> Tensor:
    return self.detach() if isinstance(self, SimulatedTensor) else _PLAIN_DATA.__get__(self)


def _set_data(self: Tensor, value: Tensor) -> None:
    if not isinstance(self, SimulatedTensor) and not isinstance(value, SimulatedTensor):
        _PLAIN_DATA.__set__(self, value)
        return
    fresh = value.detach()
    if isinstance(self, nn.Parameter):
        fresh = nn.Parameter(fresh, requires_grad=self.requires_grad)
    torch.utils.swap_tensors(self, fresh)
