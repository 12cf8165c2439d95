"""Marks of base weights as they are stored, which tell whether one changed since it was read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .readers.base import is_wrapper, stored

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
