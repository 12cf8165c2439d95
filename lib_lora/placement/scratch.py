"""One buffer per use, device and dtype, grown to the largest layer and shared by all of them."""

from __future__ import annotations

import threading
import weakref

import torch
from torch import Tensor

_Key = tuple[str, torch.device, torch.dtype]


class _Buffers:
    """The buffers of one thread, which go when it ends."""

    def __init__(self) -> None:
        self.by_use: dict[_Key, Tensor] = {}


class _Own(threading.local):
    def __init__(self) -> None:
        self.buffers = _Buffers()
        _all.add(self.buffers)


_all: weakref.WeakSet[_Buffers] = weakref.WeakSet()
_own = _Own()


def take(use: str, like: Tensor, dtype: torch.dtype) -> Tensor:
    """Return memory in the shape of `like`, on its device, with any content.

    Valid until the same thread takes for the same `use` again.
    """
    buffers, key = _own.buffers.by_use, (use, like.device, dtype)
    buffer = buffers.get(key)
    if buffer is None or buffer.numel() < like.numel():
        with torch.inference_mode(False):  # or calls in other modes could not write to it
            buffer = buffers[key] = torch.empty(like.numel(), device=like.device, dtype=dtype)
    return buffer[: like.numel()].view(like.shape)


def nbytes() -> int:
    """Return the bytes of all buffers of the process."""
    every = [buffer for buffers in list(_all) for buffer in list(buffers.by_use.values())]
    return sum(buffer.numel() * buffer.element_size() for buffer in every)


def free() -> None:
    """Give all buffers back; the next call makes new ones."""
    for buffers in list(_all):
        buffers.by_use.clear()
