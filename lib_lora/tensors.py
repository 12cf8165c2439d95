"""Dataclasses of tensors, and quick walks over the modules of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

LARGEST = torch.finfo(torch.float32).max
"""The largest number that adapters are computed with."""


class TensorFields:
    """Mixin for dataclasses whose fields hold tensors, tuples of tensors, or others of their kind."""

    __slots__ = ()

    exact: ClassVar[frozenset[str]] = frozenset()
    """Fields that a coarser storage must leave as they are: an error in them is not in proportion to the delta."""

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (field name, tensor) of every tensor, `inner.down` being one of the field `inner`."""
        assert is_dataclass(self)
        for field in fields(self):
            value = getattr(self, field.name)
            for i, one in enumerate(value if isinstance(value, tuple) else (value,)):
                name = f"{field.name}.{i}" if isinstance(value, tuple) else field.name
                if isinstance(one, Tensor):
                    yield name, one
                elif isinstance(one, TensorFields):
                    yield from ((f"{name}.{below}", tensor) for below, tensor in one.tensors())

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(tensor.numel() * tensor.element_size() for _, tensor in self.tensors())

    def placed(self, device: torch.device) -> Self:
        """Copy all tensors to `device`, in the same dtypes; the file, which may be replaced, shares no memory."""
        assert is_dataclass(self)
        return replace(self, **{field.name: _placed(getattr(self, field.name), device) for field in fields(self)})

    def mapped(self, change: Callable[[Tensor], object], *, exact: bool = True) -> Self:
        """Replace every tensor by what `change` returns for it.

        Args:
            change: called once for each tensor, in the order of `tensors()`.
            exact: whether the fields that are listed as such are changed, too.
        """
        assert is_dataclass(self)
        names = [field.name for field in fields(self) if exact or field.name not in self.exact]
        return replace(self, **{name: _mapped(getattr(self, name), change, exact) for name in names})


def _mapped(value: object, change: Callable[[Tensor], object], exact: bool) -> object:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, TensorFields):
        return value.mapped(change, exact=exact)
    return tuple(_mapped(one, change, exact) for one in value) if isinstance(value, tuple) else value


def _placed(value: object, device: torch.device) -> object:
    if isinstance(value, Tensor):
        return value.to(device, copy=True)
    if isinstance(value, TensorFields):
        return value.placed(device)
    return tuple(_placed(one, device) for one in value) if isinstance(value, tuple) else value


def wide(*dtypes: torch.dtype) -> torch.dtype:
    """Return the dtype to compute with weights in: fp32, or fp64 if one of `dtypes` is. fp8 has no sums."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


@contextmanager
def plain_mode(device: torch.device) -> Iterator[None]:
    """Leave inference mode, autograd and autocast, whatever the host's forward runs under.

    Inference tensors could not be written in place later, and autocast would make products in half precision.
    """
    with ExitStack() as stack:  # entered for every layer that is placed, so only what is not so already
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if torch.is_grad_enabled():
            stack.enter_context(torch.no_grad())
        for kind in {"cpu", device.type}:
            if autocasts(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


_AUTOCASTING = frozenset({"cpu", "cuda", "xpu", "mps"})


def autocasts(kind: str) -> bool:
    """Return whether autocast is active on this type of device."""
    if kind not in _AUTOCASTING:
        return False
    try:
        return torch.is_autocast_enabled(kind)
    except TypeError:  # before torch 2.4 it speaks of CUDA only
        if kind == "cpu":
            return torch.is_autocast_cpu_enabled()
        return kind != "cuda" or torch.is_autocast_enabled()  # of others nothing tells


def every(module: nn.Module) -> list[nn.Module]:
    """List a module and all modules below it, without names; a module in several places occurs several times."""
    found = [module]
    for one in found:  # which grows
        below = one._modules
        if below:
            found.extend([child for child in below.values() if child is not None])
    return found


def device_of(layer: nn.Module) -> torch.device | None:
    """Return the device of the layer's own parameters."""
    for tensor in layer._parameters.values():
        if tensor is not None:
            return tensor.device
    return next((tensor.device for tensor in layer._buffers.values() if tensor is not None), None)
