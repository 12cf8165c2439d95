"""One buffer per use, device and dtype, grown to the largest layer and shared by all of them."""

from __future__ import annotations

from threading import get_ident

import torch
from torch import Tensor

_buffers: dict[tuple[int, str, torch.device, torch.dtype], Tensor] = {}


def take(use: str, like: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory in the shape of `like`, on its device; what is in it is anything.

    Valid until the same thread takes for the same `use` again.
    """
    key = (get_ident(), use, like.device, dtype)
    buffer = _buffers.get(key)
    if buffer is None or buffer.numel() < like.numel():
        with torch.inference_mode(False):  # or calls in other modes could not write to it
            buffer = _buffers[key] = torch.empty(like.numel(), device=like.device, dtype=dtype)
    return buffer[: like.numel()].view(like.shape)


def nbytes() -> int:
    """Bytes of all buffers of the process."""
    return sum(buffer.numel() * buffer.element_size() for buffer in list(_buffers.values()))


def free() -> None:
    """Give all buffers back; the next call makes new ones."""
    _buffers.clear()
