"""Base weights as they are stored: which reader knows one, its numbers, and whether it changed since it was read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ComponentError
from ..registry import discover_classes
from . import readers
from .readers.base import WeightReader, is_wrapper, stored


def read_base_weight(layer: nn.Module, param: str) -> Tensor:
    """Return a base weight in its logical shape and a dtype that computes, not to be written to.

    Raises:
        ComponentError: no reader knows its storage.
    """
    with torch.no_grad():
        return weight_reader(layer, param).read(layer, param)


_SAMPLES = 64


WeightMark = tuple[int | None, bytes]
"""A base weight at the time it was read: its version counter and some of its numbers."""


def mark_weight(layer: nn.Module, param: str) -> WeightMark | None:
    """Return the mark of a weight as it is stored now; None if its numbers are elsewhere."""
    weight = stored(layer, param)
    if weight is None:
        return None
    version = None if weight.is_inference() else weight._version
    while is_wrapper(weight):
        inner: Any = weight
        weight = getattr(inner, inner.__tensor_flatten__()[0][0])
        assert isinstance(weight, Tensor)
    if weight.device.type == "meta" or weight.layout != torch.strided or not weight.numel():
        return None
    span = 1 + sum((size - 1) * stride for size, stride in zip(weight.shape, weight.stride(), strict=True))
    count = min(span, _SAMPLES)
    samples = weight.detach().as_strided((count,), (span // count,), weight.storage_offset())
    return version, bytes(samples.to("cpu", copy=True).view(torch.uint8).tolist())


def weight_reader(layer: nn.Module, param: str) -> type[WeightReader]:
    """Return the reader of a weight; raise ComponentError where there is none."""
    reader = reader_of(layer, param)
    if reader is None:
        raise ComponentError(f"the weight of a {type(layer).__name__} cannot be read: unknown quantization")
    return reader


def has_plain_weight(layer: nn.Module, param: str) -> bool:
    """Return whether a base weight is stored as numbers to compute with, so that reading it costs nothing."""
    reader = reader_of(layer, param)
    return reader is not None and reader.plain


def holds_values(layer: nn.Module, param: str) -> bool:
    """Return whether a parameter holds the weight itself, in a floating dtype, without a scale beside it."""
    reader = reader_of(layer, param)
    return reader is not None and reader.holds_values


def reader_of(layer: nn.Module, param: str) -> type[WeightReader] | None:
    """Return the first reader that knows the storage of a weight; None if there is none."""
    known = discover_classes(readers, WeightReader)  # type: ignore[type-abstract]
    return next((reader for reader in known if reader.matches(layer, param)), None)
