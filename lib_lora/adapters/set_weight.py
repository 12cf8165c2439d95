"""A weight put in the place of the layer's, as ComfyUI's `set_weight` does.

W' = W + m (v - W). ComfyUI knows no strength here; between 0 and 1 the line from W to v is what a strength can mean.
Source: ComfyUI comfy/lora.py, `set`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from ._operation import Operation
from .base import Adapter, At, Form, Kind, Origin, OutputEffect, Params, Rows, Site, placed, shape_text, taken


@dataclass(frozen=True, slots=True)
class _Instead(OutputEffect):
    value: Tensor  # (out, in, *kernel)

    exact: ClassVar[frozenset[str]] = frozenset({"value"})  # what acts is its small difference to the weight

    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        return (op.apply(x, self.value) - y) * multiplier


@dataclass(frozen=True, slots=True, eq=False)
class SetWeight(Adapter):
    """Another weight."""

    value: Tensor  # (out, in, *kernel)

    name: ClassVar[str] = "set_weight"
    params: ClassVar[Params] = Params(frozenset({"set_weight"}))
    kinds: ClassVar[frozenset[Kind]] = frozenset({"linear", "conv", "attention", "embedding", "norm"})
    reads_base: ClassVar[bool] = True
    by_rows: ClassVar[bool] = True
    by_columns: ClassVar[bool] = True
    prefers_dense: ClassVar[bool] = True
    exact: ClassVar[frozenset[str]] = frozenset({"value"})

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Self:
        value = params["set_weight"]
        if value.numel() != math.prod(site.shape):
            raise ValueError(f"want set_weight {site.shape}, got {shape_text(value)}")
        return cls(value.reshape(site.shape))

    @classmethod
    def own_shape(cls, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
        return shapes["set_weight"]

    def take(self, rows: Rows) -> Self:
        return replace(self, value=taken(self.value, rows))

    def delta_weight(self, at: At) -> Tensor:
        value = at.cut(self.value) if at.columns is None else at.across(self.value)
        return (value - at.base.reshape(value.shape)).mul_(at.multiplier)

    def form(self, rank: int | None = None) -> Form:
        return Form(on_output=True)

    def output_effect(self, device: torch.device, dtype: torch.dtype) -> OutputEffect:
        return _Instead(placed(self.value, device, dtype))
