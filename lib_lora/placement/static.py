"""Shapes and addresses that stay from stack to stack, for models that are compiled or captured in CUDA graphs.

A compiled graph has the shapes of its tensors. Ranks are rounded up to a few sizes and filled with zeros, so most
stacks have the same shapes, and nothing is compiled again.

A captured graph has the addresses of what it reads, and torch captures it again where one has changed. So the tensors
of a layer are copied into the memory of the tensors before, if they have the same shapes, and so are the strengths, of
which each layer has its own. This memory is kept while nothing is in force, until the engine is deactivated.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..errors import StorageError, shown
from ..tensors import TensorFields

RANK_BUCKETS = (8, 16, 32, 64, 128, 256, 512)
"""Sizes that lose little: files have ranks of powers of two, and a few zeros cost less than half of what they fill."""


def check_buckets(buckets: Sequence[int]) -> tuple[int, ...]:
    """Return sizes as they are used.

    Raises:
        StorageError: they are no whole numbers from 1, each larger than the one before.
    """
    good = isinstance(buckets, Sequence) and all(type(size) is int and size > 0 for size in buckets)
    if not good or any(one >= other for one, other in pairwise(buckets)):
        raise StorageError(f"rank buckets are whole numbers from 1 in rising order, not {shown(buckets)}")
    return tuple(buckets)


def padded_rank(rank: int, buckets: Sequence[int]) -> int:
    """Return the least size that holds a rank: above the largest, a multiple of it."""
    largest = buckets[-1]
    return next((size for size in buckets if size >= rank), -(-rank // largest) * largest)


T = TypeVar("T", bound=TensorFields)

_WITHOUT_GRAPHS = frozenset({"cpu", "meta", "mps"})


class StaticMemory:
    """The memory, by layer and by what it is for. Layers are held weakly."""

    def __init__(self) -> None:
        self._layers: weakref.WeakKeyDictionary[nn.Module, dict[int, Tensor]] = weakref.WeakKeyDictionary()
        self._vectors: dict[tuple[str, torch.device, torch.dtype], Tensor] = {}
        self._given_up = False

    def settled(self, layer: nn.Module, content: T, device: torch.device) -> T:
        """Copy placed tensors into the memory that the layer had before, as far as it fits; else keep their own."""
        if not self._keeps(device):
            return content
        former, number = self._layers.setdefault(layer, {}), 0

        def kept(tensor: Tensor) -> Tensor:
            nonlocal number
            number += 1
            own = former.setdefault(number, tensor)
            alike = [(one.shape, one.stride(), one.dtype, one.device) for one in (own, tensor)]
            if alike[0] != alike[1]:
                former[number] = own = tensor
            elif own is not tensor:
                own.copy_(tensor)
            return own

        return content.mapped(kept)

    def vector(self, name: str, like: Tensor) -> Tensor:
        """Copy a vector, (n,), into the memory that one of its name had on the device before, with room to grow."""
        if not self._keeps(like.device):
            return like
        key = name, like.device, like.dtype
        own = self._vectors.get(key)
        if own is None or own.shape[0] < like.shape[0]:
            room = 1 << (like.shape[0] - 1).bit_length()
            own = self._vectors[key] = torch.empty(room, device=like.device, dtype=like.dtype)
        return own[: like.shape[0]].copy_(like)

    def forget(self, layer: nn.Module, now_on: torch.device) -> None:
        """Give back what a layer had elsewhere."""
        former = self._layers.get(layer, {})
        for number in [number for number, tensor in former.items() if tensor.device != now_on]:
            del former[number]

    def clear(self) -> None:
        """Give all of it back that nothing in force uses."""
        self._layers.clear()
        self._vectors.clear()
        self._given_up = False

    def give_up(self) -> None:
        """Give all of it back and keep nothing more, as a device ran out of memory."""
        self.clear()
        self._given_up = True

    @property
    def nbytes(self) -> int:
        """Return the bytes that are kept, in force or not."""
        tensors = [tensor for own in list(self._layers.values()) for tensor in list(own.values())]
        vectors = list(self._vectors.values())
        return sum(tensor.numel() * tensor.element_size() for tensor in (*tensors, *vectors))

    def _keeps(self, device: torch.device) -> bool:
        """Tell whether memory is kept on a device; the plan cache keeps the computer's memory."""
        return not self._given_up and device.type not in _WITHOUT_GRAPHS
