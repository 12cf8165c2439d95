"""Dataclasses of tensors, SVD of products, page-locked memory, torch's modes, and walks over modules."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.jit import ScriptModule
from typing_extensions import Self

COMPUTING = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""Dtypes of numbers to compute with; fp8 and packed weights are cast first. Torch adds each to a wider one in one
kernel, which computes in the wider one.
"""
LARGEST = torch.finfo(torch.float32).max
"""The largest number that adapters are computed with."""
FEW, MANY = 32_767, 1 << 22
"""Numbers that torch gives to one thread, and so many that it is worth while to give them to several.

Threads wait for each other: in a file of a thousand tensors that takes seconds where other programs compute, too.
"""


class TensorFields:
    """Mixin for dataclasses whose fields hold tensors, other such dataclasses, tuples of both, or other values."""

    __slots__ = ()

    exact: ClassVar[frozenset[str]] = frozenset()
    """Fields that a coarser storage must leave as they are: an error in them is not in proportion to the delta."""

    def tensors(self) -> list[tuple[str, Tensor]]:
        """Return (field name, tensor) of every tensor; one in the field `inner` has a name such as `inner.down`."""
        found: list[tuple[str, Tensor]] = []
        for name in _fields_with_tensors(type(self)):
            value = getattr(self, name)
            many = isinstance(value, tuple)
            for i, item in enumerate(value if many else (value,)):  # a generator would take a call for each
                label = f"{name}.{i}" if many else name
                if isinstance(item, Tensor):
                    found.append((label, item))
                elif isinstance(item, TensorFields):
                    for below, tensor in item.tensors():
                        found.append((f"{label}.{below}", tensor))
        return found

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors."""
        total, left = 0, [self]
        for holder in left:  # which grows
            for name in _fields_with_tensors(type(holder)):
                value = getattr(holder, name)
                for item in value if isinstance(value, tuple) else (value,):
                    if isinstance(item, Tensor):
                        total += item.numel() * item.element_size()
                    elif isinstance(item, TensorFields):
                        left.append(item)
        return total

    def placed(self, device: torch.device) -> Self:
        """Copy all tensors to `device`, in the same dtypes; the file, which may be replaced, shares no memory."""
        return self.mapped(lambda tensor: tensor.to(device, copy=True))

    def mapped(self, change: Callable[[Tensor], object], *, exact: bool = True) -> Self:
        """Replace every tensor, in the order of `tensors()`, by the result of `change`.

        The fields in `exact` are left out if `exact` is false.
        """
        new: dict[str, object] = {}
        for name in _field_names(type(self)):
            value = new[name] = getattr(self, name)
            if value is None or name not in _fields_with_tensors(type(self)) or (not exact and name in self.exact):
                continue
            many = isinstance(value, tuple)
            items: list[object] = []
            for item in value if many else (value,):
                if isinstance(item, Tensor):
                    items.append(change(item))
                else:
                    items.append(item.mapped(change, exact=exact) if isinstance(item, TensorFields) else item)
            new[name] = tuple(items) if many else items[0]
        return type(self)(**new)  # `replace` takes several times as long


_NO_TENSORS = re.compile(r"(?:int|float|bool|str|None|tuple|<class '|'>|[\[\], .|])+")
_field_names: Any = cache(lambda cls: tuple([field.name for field in fields(cls)]))
_fields_with_tensors: Any = cache(
    lambda cls: tuple([field.name for field in fields(cls) if not _NO_TENSORS.fullmatch(str(field.type))])
)
"""The fields of a dataclass that may hold tensors, by their types."""


def wide(*dtypes: torch.dtype) -> torch.dtype:
    """Return the dtype to compute with weights in: fp32, or fp64 if one of `dtypes` is. fp8 has no sums."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def capturing(device: torch.device) -> bool:
    """Return whether a CUDA graph is being captured, which reads strengths from tensors alone."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


_refused_pins: set[str] = set()
"""Types of devices that refused page-locked memory, as in containers and under WSL."""


def page_locked(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return new memory of the computer from which copies to a device do not wait; ordinary memory if there is none."""
    pins = device.type in ("cuda", "xpu") and device.type not in _refused_pins
    try:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=pins)
    except RuntimeError:
        if not pins:
            raise
        _refused_pins.add(device.type)
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")


def copied(source: Tensor, place: Tensor) -> Tensor:
    """Copy a tensor into memory of the computer and return that; one thread copies if it is soon done, see `FEW`."""
    flat = place.is_contiguous() and source.is_contiguous() and place.shape == source.shape
    if not (flat and FEW < place.numel() <= MANY and place.device.type == source.device.type == "cpu"):
        return place.copy_(source)
    for one, other in zip(torch.split(place.view(-1), FEW), torch.split(source.view(-1), FEW), strict=True):
        one.copy_(other)
    return place


def on_cpu(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return vectors in the computer's memory, by one copy for each device and dtype."""
    found = list(tensors)
    for kind in {(one.device, one.dtype) for one in tensors}:
        own = [i for i, one in enumerate(tensors) if (one.device, one.dtype) == kind]
        together = torch.split(torch.cat([tensors[i] for i in own]).to("cpu"), [len(tensors[i]) for i in own])
        for i, part in zip(own, together, strict=True):
            found[i] = part
    return found


_AUTOCASTING = frozenset({"cpu", "cuda", "xpu", "mps"})


def _is_autocast_enabled(kind: str) -> bool:
    """Return whether autocast is active, before torch 2.4, which tells it of the CPU and of CUDA only."""
    if kind == "cpu":
        return torch.is_autocast_cpu_enabled()
    return kind != "cuda" or torch.is_autocast_enabled()


_is_enabled = _is_autocast_enabled if torch.__version__ < "2.4" else torch.is_autocast_enabled


def autocasts(kind: str) -> bool:
    """Return whether autocast is active on this type of device."""
    return kind in _AUTOCASTING and _is_enabled(kind)


def plain_mode(device: torch.device) -> AbstractContextManager[None]:
    """Leave inference mode, autograd and autocast, whatever the host's forward runs under.

    Inference tensors could not be written in place later, and autocast would make products in half precision.
    """
    autocasting = list(filter(_is_enabled, _AUTOCASTING & {"cpu", device.type}))
    if autocasting or torch.is_inference_mode_enabled():
        return _left_modes(autocasting)
    # for each layer that is placed, and each change of a strength
    return torch.no_grad() if torch.is_grad_enabled() else nullcontext()


@contextmanager
def _left_modes(autocasting: Collection[str]) -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad(), ExitStack() as stack:  # the first turns autograd on
        for kind in autocasting:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


_LEFT_OUT = (type(None), ScriptModule)


def every(module: nn.Module) -> list[nn.Module]:
    """List a module and all modules below it, without names; a module in several places occurs several times.

    A ScriptModule has no forward in Python, so it is left out.
    """
    modules = [module]
    for parent in modules:  # which grows
        if parent._modules:
            modules.extend([child for child in parent._modules.values() if not isinstance(child, _LEFT_OUT)])
    return modules


def device_of(layer: nn.Module) -> torch.device | None:
    """Return the device of the layer's own parameters."""
    for tensor in (*layer._parameters.values(), *layer._buffers.values()):
        if tensor is not None:
            return tensor.device
    return None


def core_of_product(up: Tensor, down: Tensor) -> Tensor:
    """Return the small matrix that has the singular values of a product of two thin matrices, by QR of both."""
    first, second = (torch.linalg.qr(one, mode="r").R for one in (up, down.T))
    core: Tensor = first @ second.T
    return core


def svd_of_product(up: Tensor, down: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the reduced SVD of a product of two thin matrices: U, the singular values and V^T."""
    (left, first), (right, second) = torch.linalg.qr(up), torch.linalg.qr(down.T)
    u, values, v = torch.linalg.svd(first @ second.T, full_matrices=False)
    return left @ u, values, v @ right.T
