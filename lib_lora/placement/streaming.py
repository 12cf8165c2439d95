"""Adapters that are on a device for one call at a time: a copy of each in memory, and the way there.

A home copy is taken from what was placed the first time, so what arrives later has the same bits, and one layer is one
copy of bytes. On CUDA home copies are pinned, and a stream of its own copies the layer that will be next, as the last
pass had it, while the present one computes. Two buffers take turns: memory that a stream still reads is not written to
before an event says so, and however far the host runs ahead of the device, no third layer is ever there. On other
devices a layer is copied when it is called, into memory of its own.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ..tensors import TensorFields
from .storage import Stored

_ALIGNMENT = 512  # bytes, as CUDA's own allocator has it: kernels are chosen by it, and their bits with them

T = TypeVar("T", bound=TensorFields)


@dataclass(frozen=True, slots=True, eq=False)
class Placement(Generic[T]):
    """What was placed for a layer, and where."""

    device: torch.device
    dtype: torch.dtype
    """Of the layer's output."""
    input_dtype: torch.dtype
    stored: Stored[T]

    def is_for(self, device: torch.device, dtype: torch.dtype, input_dtype: torch.dtype) -> bool:
        """Whether it is what a call with these needs."""
        return self.device == device and self.dtype == dtype and self.input_dtype == input_dtype


P = TypeVar("P", bound=Placement[Any])


class Home(Generic[P]):
    """A copy in memory of what was placed.

    Args:
        placed: on the device.
        pinned: whether the copy is to lie in page-locked memory.
    """

    def __init__(self, placed: P, *, pinned: bool) -> None:
        self.nbytes = home_bytes(placed)
        self.flat = torch.empty(self.nbytes, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        self.follower: weakref.ref[Home[Any]] | None = None
        """The one that was fetched after it the last time."""
        start = 0

        def copied(tensor: Tensor) -> Tensor:
            nonlocal start
            copy = _window(self.flat, start // tensor.element_size(), tensor).copy_(tensor)
            start += _extent(tensor)
            return copy

        self.placed: P = replace(placed, stored=placed.stored.mapped(copied))

    def in_memory_of(self, buffer: Tensor) -> P:
        """What was placed, in a buffer on its device into which `flat` was copied."""
        there = self.placed.stored.mapped(lambda here: _window(buffer, int(here.storage_offset()), here))
        return replace(self.placed, stored=there)


def home_bytes(placed: Placement[Any]) -> int:
    """Bytes of a home copy."""
    return sum(_extent(tensor) for _, tensor in placed.stored.content.tensors())


def _extent(tensor: Tensor) -> int:
    """Bytes from the first to the last entry, aligned."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return -(-(last + 1) * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT


def _window(buffer: Tensor, offset: int, like: Tensor) -> Tensor:
    """A tensor of the dtype, shape and strides of `like`, so many of its entries behind the start of a buffer."""
    return buffer.view(like.dtype).as_strided(like.shape, like.stride(), offset)


class Lane:
    """The way to one device: a copy whenever one is asked for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def fetch(self, home: Home[P]) -> P:
        """What was placed, on the device. Valid until `done`."""
        return self.settle(home)

    def done(self, home: Home[Any]) -> None:
        """The call that `fetch` was for is over."""

    def settle(self, home: Home[P]) -> P:
        """What was placed, on the device and in memory of its own."""
        return home.in_memory_of(home.flat.to(self._device, copy=True))

    def forget(self) -> None:
        """Give up buffers that no call is using."""

    @property
    def nbytes(self) -> int:
        """Bytes of buffers on the device."""
        return 0


@dataclass(slots=True, eq=False)
class _Buffer:
    """Memory that layers take turns in."""

    data: Tensor
    free: Any
    """Event after which it may be written to."""
    ready: Any = None
    """Event after which it may be read."""
    home: weakref.ref[Home[Any]] | None = None
    """Whose copy is in it, or on its way."""
    lent: bool = False
    """Whether a call is using it."""


class CudaLane(Lane):
    """The way to a CUDA device, one layer ahead of use.

    Args:
        device: with its index.
        cuda: the interface to streams and events.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        super().__init__(device)
        self._cuda = cuda
        self._stream = cuda.Stream(device)
        self._buffers: list[_Buffer] = []
        self._last: weakref.ref[Home[Any]] | None = None

    def fetch(self, home: Home[P]) -> P:
        self._learn(home)
        buffer = self._buffer_of(home) or self._begin(home)
        if buffer is None:
            return self.settle(home)  # calls around this one use both
        buffer.lent = True
        self._cuda.current_stream(self._device).wait_event(buffer.ready)
        follower = None if home.follower is None else home.follower()
        if follower is not None and self._buffer_of(follower) is None:
            self._begin(follower)
        return home.in_memory_of(buffer.data)

    def done(self, home: Home[Any]) -> None:
        buffer = self._buffer_of(home)
        if buffer is not None and buffer.lent:
            buffer.free = self._cuda.current_stream(self._device).record_event()
            buffer.lent, buffer.home = False, None

    def forget(self) -> None:
        self._buffers = [buffer for buffer in self._buffers if buffer.lent]

    @property
    def nbytes(self) -> int:
        return sum(buffer.data.numel() for buffer in self._buffers)

    def _learn(self, home: Home[Any]) -> None:
        last = None if self._last is None else self._last()
        if last is not None:
            last.follower = weakref.ref(home)
        self._last = weakref.ref(home)

    def _buffer_of(self, home: Home[Any]) -> _Buffer | None:
        return next((one for one in self._buffers if one.home is not None and one.home() is home), None)

    def _begin(self, home: Home[Any]) -> _Buffer | None:
        """Have the home copy of a layer copied to a buffer; None if there is none that may be used."""
        buffer = self._vacant(home.nbytes)
        if buffer is None:
            return None
        with self._cuda.stream(self._stream):
            self._stream.wait_event(buffer.free)
            buffer.data[: home.nbytes].copy_(home.flat, non_blocking=True)
            buffer.ready = self._stream.record_event()
        buffer.home = weakref.ref(home)
        return buffer

    def _vacant(self, nbytes: int) -> _Buffer | None:
        buffer = next((one for one in self._buffers if not one.lent), None)
        if buffer is None and len(self._buffers) == 2:
            return None
        if buffer is not None and buffer.data.numel() < nbytes:
            self._buffers.remove(buffer)
            buffer = None  # never the old and the new at once
        if buffer is None:
            buffer = self._new(nbytes)
            self._buffers.append(buffer)
        return buffer

    def _new(self, nbytes: int) -> _Buffer:
        data = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        current = self._cuda.current_stream(self._device)
        data.record_stream(self._stream)
        return _Buffer(data, current.record_event())  # what used this memory before may not be over yet


def lane_to(device: torch.device) -> Lane:
    """The best way to a device."""
    return CudaLane(device) if device.type == "cuda" else Lane(device)
