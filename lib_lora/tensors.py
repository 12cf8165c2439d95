"""Tensors of adapters: declared once as annotated fields, and handled in a mode of our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor


class TensorFields:
    """Mixin for dataclasses whose fields hold tensors."""

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (field name, tensor) of every field that holds one."""
        assert is_dataclass(self)
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                yield field.name, value

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors in the dtype they have."""
        return sum(tensor.numel() * tensor.element_size() for _, tensor in self.tensors())


@contextmanager
def plain_mode(device: torch.device) -> Iterator[None]:
    """Compute as written, whatever mode the host's forward runs under.

    Inference tensors could not be written in place later, and autocast would make products in half precision.
    """
    with ExitStack() as stack:  # entered for every layer that is placed, so only what is not so already
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if torch.is_grad_enabled():
            stack.enter_context(torch.no_grad())
        for kind in {"cpu", device.type} & _AUTOCASTING:
            if _autocasts(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


_AUTOCASTING = frozenset({"cpu", "cuda", "xpu", "mps"})


def _autocasts(kind: str) -> bool:
    try:
        return torch.is_autocast_enabled(kind)
    except TypeError:  # before torch 2.4 it speaks of CUDA only
        return True
