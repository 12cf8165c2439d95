"""Floating-point numbers as they are, and float8 with a scale beside it.

Source: ComfyUI comfy/quant_ops.py, Forge backend/operations.py; `weights/readers/float8.py` reads the same of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from .base import EXACT, Packing, Rounding, StoredRows, StoredTensor, last_places, of_steps


class Plain(Packing):
    """The numbers themselves."""

    name = "plain"
    before = ()

    @classmethod
    def of(cls, weight: StoredTensor, beside: Mapping[str, StoredTensor]) -> Packing | None:
        return cls(weight, {}, weight.info.shape) if weight.info.dtype.is_floating_point else None

    def rows(self, start: int, stop: int) -> StoredRows:
        stored, scale = self.weight.rows(start, stop), torch.ones((), dtype=EXACT)
        return StoredRows(stored.dtype, (stored, scale), partial(_numbers, stored, scale), partial(_of, stored, scale))


class ScaledFloat8(Packing):
    """Float8 with one scale, or one for each row: `scale_weight` or `weight_scale`."""

    name = "scaled_float8"

    @classmethod
    def of(cls, weight: StoredTensor, beside: Mapping[str, StoredTensor]) -> Packing | None:
        dtype, shape, *_ = weight.info
        if not (weight.is_packed and dtype.is_floating_point and weight.key.endswith("weight")):
            return None
        path = weight.key.removesuffix("weight")
        for key in (f"{path}scale_weight", f"{weight.key}_scale"):
            if key in beside and math.prod(beside[key].info.shape) in (1, shape[0]):
                return cls(weight, {"scale": beside[key]}, shape)
        return None

    def rows(self, start: int, stop: int) -> StoredRows:
        stored, scale = self.weight.rows(start, stop), self.parts["scale"].whole().to(EXACT).reshape(-1, 1)
        scale = scale if len(scale) == 1 else scale[start:stop]
        return StoredRows(stored.dtype, (stored, scale), partial(_numbers, stored, scale), partial(_of, stored, scale))


def _numbers(stored: Tensor, scale: Tensor) -> Tensor:
    return stored.to(EXACT) * scale


def _of(stored: Tensor, scale: Tensor) -> Rounding:
    return of_steps(last_places(stored) * scale.abs())
