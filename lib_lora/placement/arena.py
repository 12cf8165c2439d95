"""The tensors of a plan in the computer's memory, page-locked where that is granted, from which devices get them.

The tensors of a layer are a piece: one run of bytes, in the dtypes in which they are computed. Pieces lie one behind
the other in a few large chunks. A plan that comes into force is a copy of each chunk, and a layer that an offload
scheme brings for one call is a copy of its piece. From page-locked memory no copy waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ..tensors import TensorFields, page_locked

_SMALLEST, _LARGEST = 1 << 20, 64 << 20
"""Bytes of the first chunk, and of any but the first few; a larger layer has a chunk of its own."""
_ALIGNMENT = 512  # bytes, as CUDA's own allocator has it: kernels are chosen by it, and their bits with them

T = TypeVar("T", bound=TensorFields)


@dataclass(frozen=True, slots=True, eq=False)
class Piece(Generic[T]):
    """The tensors of one layer in the computer's memory."""

    content: T
    """Its tensors are windows of the chunk."""
    chunk: Tensor
    """Bytes, (n,)."""
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Return the bytes that it takes."""
        return self.stop - self.start

    def to_device(self, device: torch.device) -> T:
        """Copy the piece alone into new memory of a device."""
        buffer = self.chunk[self.start : self.stop].to(device, copy=True, non_blocking=True)
        return self._in(buffer, self.start)

    def _in(self, buffer: Tensor, first: int) -> T:
        """Return the tensors in a buffer that holds the chunk from its byte `first` on."""

        def window(here: Tensor) -> Tensor:
            offset = int(here.storage_offset()) - first // here.element_size()
            return _window(buffer, offset, here)

        return self.content.mapped(window)


class Arena:
    """The pieces of one plan."""

    def __init__(self) -> None:
        self._chunk: Tensor | None = None
        self._filled = 0

    def add(self, content: T, device: torch.device) -> Piece[T]:
        """Copy the tensors of a layer, from which `device` will get them."""
        nbytes = sum(_extent(tensor) for _, tensor in content.tensors())
        chunk = self._chunk
        if chunk is None or self._filled + nbytes > chunk.shape[0]:
            size = _SMALLEST if chunk is None else min(2 * chunk.shape[0], _LARGEST)
            self._chunk = chunk = page_locked((max(size, nbytes),), torch.uint8, device)
            self._filled = 0
        first = start = self._filled

        def copied(tensor: Tensor) -> Tensor:
            nonlocal start
            copy = _window(chunk, start // tensor.element_size(), tensor).copy_(tensor)
            start += _extent(tensor)
            return copy

        piece = Piece(content.mapped(copied), chunk, first, start)
        self._filled = start
        return piece


def all_to_device(pieces: Iterable[Piece[T]], device: torch.device) -> Iterator[T]:
    """Yield the tensors of pieces in new memory of a device, which is one copy for all neighbours in a chunk."""
    chunk, first, group = None, 0, list[Piece[T]]()

    def delivered() -> Iterator[T]:
        if group:
            buffer = group[0].chunk[first : group[-1].stop].to(device, copy=True, non_blocking=True)
            yield from [piece._in(buffer, first) for piece in group]

    for piece in pieces:
        if piece.chunk is not chunk or piece.start != group[-1].stop:
            yield from delivered()
            chunk, first, group = piece.chunk, piece.start, []
        group.append(piece)
    yield from delivered()


def _extent(tensor: Tensor) -> int:
    """Return the bytes from the first to the last entry, aligned."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return -(-(last + 1) * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT


def _window(buffer: Tensor, offset: int, like: Tensor) -> Tensor:
    """Return a view of a buffer from an entry on, with the dtype, shape and strides of `like`."""
    return buffer.view(like.dtype).as_strided(like.shape, like.stride(), offset)
