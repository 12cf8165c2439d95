"""The tensors of a plan in the computer's memory, page-locked where that is granted, from which devices get them.

The tensors of a layer are a piece: one run of bytes, in the dtypes in which they are computed. Pieces lie one behind
the other in a few large chunks. A plan that comes into force is a copy of each chunk, and a layer that an offload
scheme brings for one call is a copy of its piece. From page-locked memory no copy waits for the device.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from ..tensors import TensorFields, page_locked

_SMALLEST, _LARGEST = 1 << 20, 64 << 20
"""Bytes of the first chunk, and of any but the first few; a larger layer has a chunk of its own."""
_ALIGNMENT = 512  # bytes, as CUDA's own allocator has it: kernels are chosen by it, and their bits with them

T = TypeVar("T", bound=TensorFields)
Dtypes: TypeAlias = "tuple[torch.dtype, torch.dtype]"
"""Of the output and the input of the layer."""
Empty: TypeAlias = "Callable[..., Tensor]"
"""Gives memory, as `torch.empty` does."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece(Generic[T]):
    """The tensors of one layer in the computer's memory."""

    content: T
    """Its tensors are windows of the chunk."""
    chunk: Tensor
    """Bytes, (n,)."""
    start: int
    stop: int
    dtypes: Dtypes

    @property
    def nbytes(self) -> int:
        """Return the bytes that it takes."""
        return self.stop - self.start


class Arena:
    """The pieces of one plan. A piece is filled under the lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # the thread that calls the model may place a layer while another one activates
        self._chunk = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._views: dict[torch.dtype, Tensor] = {}
        """The chunk in other dtypes."""
        self._filled = self._taken = 0
        """The bytes of the pieces in the chunk, and with what `empty` has given away since."""

    def empty(self, target: torch.device, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory in the chunk for a tensor of the piece that is added next, as `torch.empty` returns new memory.

        `target` is the device that will get the piece.
        """
        count = math.prod(shape)
        start = self._take(count * dtype.itemsize, target)
        return self._view(dtype).narrow(0, start // dtype.itemsize, count).view(*shape)

    def add(self, content: T, device: torch.device, dtypes: Dtypes) -> Piece[T]:
        """Make the tensors of a layer a piece, from which `device` will get them; copy them unless they lie there."""
        tensors, first, base = content.tensors(), self._filled, self._chunk.data_ptr()
        places = [tensor.data_ptr() - base for _, tensor in tensors]
        if not places or min(places) < first or max(places) >= self._taken:
            first = self._take(sum([_extent(tensor) for _, tensor in tensors]), device)

            def copied(tensor: Tensor) -> Tensor:
                nonlocal first
                copy = self._view(tensor.dtype).as_strided(
                    tensor.shape, tensor.stride(), first // tensor.element_size()
                )
                first += _extent(tensor)
                return copy.copy_(tensor)

            start = first
            content, first = content.mapped(copied), start
        self._filled = self._taken
        return Piece(content, self._chunk, first, self._taken, dtypes)

    def _take(self, nbytes: int, device: torch.device) -> int:
        """Return where so many bytes begin in the chunk, which is a new one if they do not fit."""
        nbytes = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        if self._taken + nbytes > self._chunk.shape[0]:
            size = min(max(2 * self._chunk.shape[0], _SMALLEST), _LARGEST)
            self._chunk = page_locked((max(size, nbytes),), torch.uint8, device)
            self._views, self._filled, self._taken = {}, 0, 0
        start, self._taken = self._taken, self._taken + nbytes
        return start

    def _view(self, dtype: torch.dtype) -> Tensor:
        view = self._views.get(dtype)
        if view is None:
            view = self._views[dtype] = self._chunk.view(dtype)
        return view


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
