"""One buffer per thread, use, device and dtype, grown to the largest layer and shared by all of them."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

_buffers: dict[tuple[int, str, torch.device, torch.dtype], Tensor] = {}
"""By the thread's number, and so on."""


def take(use: str, like: Tensor, dtype: torch.dtype) -> Tensor:
    """Return memory in the shape of `like`, on its device, with any content.

    Valid until the same thread takes for the same `use` again.
    """
    key = threading.get_ident(), use, like.device, dtype
    buffer = _buffers.get(key)
    if buffer is None or buffer.numel() < like.numel():
        _drop_ended()
        with torch.inference_mode(False):  # or calls in other modes could not write to it
            buffer = _buffers[key] = torch.empty(like.numel(), device=like.device, dtype=dtype)
    return buffer[: like.numel()].view(like.shape)


def nbytes() -> int:
    """Return the bytes of all buffers of the process."""
    _drop_ended()
    return sum(buffer.numel() * buffer.element_size() for buffer in list(_buffers.values()))


def free() -> None:
    """Give all buffers back; the next call makes new ones."""
    _buffers.clear()


def _drop_ended() -> None:
    """Drop the buffers of threads that ended."""
    running = {thread.ident for thread in threading.enumerate()}
    for key in list(_buffers):
        if key[0] not in running:
            _buffers.pop(key, None)
