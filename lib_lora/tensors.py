"""Declare an adapter's tensors once, as annotated fields; size and listing follow from the declaration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

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
