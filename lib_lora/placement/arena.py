"""The tensors of a plan in the computer's memory, page-locked where that is granted, from which devices get them.

The tensors of a layer are a piece: one run of bytes, in the dtypes in which they are computed. Pieces lie one behind
the other in a few large chunks. A plan that comes into force is a copy of each chunk, and a layer that an offload
scheme brings for one call is a copy of its piece. From page-locked memory no copy waits for the device.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from ..tensors import TensorFields, copied, page_locked

_SMALLEST, _LARGEST = 1 << 20, 64 << 20
"""Bytes of the first chunk, and of any but the first few; a larger layer has a chunk of its own."""
_ALIGNMENT = 512  # bytes, as CUDA's own allocator has it: kernels are chosen by it, and their bits with them

T = TypeVar("T", bound=TensorFields)
Dtypes: TypeAlias = "tuple[torch.dtype, torch.dtype]"
"""Of the output and the input of the layer."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece(Generic[T]):
    """The tensors of one layer in the computer's memory."""

    content: T
    """Its tensors are windows of the chunk."""
    chunk: Tensor
    """Bytes, (n,)."""
    start: int
    stop: int
    dtypes: Dtypes | None
    """None of adapters as their files have them, of which the tensors of a layer are made on its device."""

    @property
    def nbytes(self) -> int:
        """Return the bytes that it takes."""
        return self.stop - self.start


class Arena:
    """The pieces of one plan."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # the thread that calls the model may place a layer while another one activates
        self._chunk, self._taken = torch.empty(0, dtype=torch.uint8, device="cpu"), 0

    def add(self, content: T, device: torch.device, dtypes: Dtypes | None) -> Piece[T]:
        """Copy the tensors of a layer into a new piece, from which `device` will get them."""
        with self._lock:
            nbytes = sum([_extent(tensor) for _, tensor in content.tensors()])
            if self._taken + nbytes > self._chunk.shape[0]:
                size = min(max(2 * self._chunk.shape[0], _SMALLEST), _LARGEST)
                self._chunk, self._taken = page_locked((max(size, nbytes),), torch.uint8, device), 0
            chunk, start = self._chunk, self._taken

            def put(tensor: Tensor) -> Tensor:
                first, strides = self._taken // tensor.element_size(), tensor.stride()
                self._taken += _extent(tensor)
                place = chunk.view(tensor.dtype).as_strided(tensor.shape, strides, first)
                # an expanded tensor has its numbers once
                once = [min(size, 1) if not stride else size for size, stride in zip(place.shape, strides, strict=True)]
                copied(tensor.as_strided(once, strides), place.as_strided(once, strides, first))
                return place

            return Piece(content.mapped(put), chunk, start, self._taken, dtypes)


def all_to_device(pieces: Iterable[Piece[T]], device: torch.device) -> Iterator[T]:
    """Yield the tensors of pieces in new memory of a device, which is one copy for all neighbours in a chunk."""
    groups = list[list[Piece[T]]]()
    for piece in pieces:
        if groups and piece.chunk is groups[-1][-1].chunk and piece.start == groups[-1][-1].stop:
            groups[-1].append(piece)
        else:
            groups.append([piece])
    for group in groups:
        first = group[0].start
        buffer = group[0].chunk[first : group[-1].stop].to(device, copy=True, non_blocking=True)

        def window(here: Tensor, first: int = first, buffer: Tensor = buffer) -> Tensor:
            offset = int(here.storage_offset()) - first // here.element_size()
            return buffer.view(here.dtype).as_strided(here.shape, here.stride(), offset)

        for piece in group:
            yield piece.content.mapped(window)


def _extent(tensor: Tensor) -> int:
    """Return the bytes from the first to the last entry, aligned."""
    if not tensor.numel():
        return 0
    last = sum([(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)])
    return -(-(last + 1) * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
