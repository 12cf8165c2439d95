"""LN tuning: a trained copy of a norm, W' = W + m (w - W), b' = b + m (v - b), https://arxiv.org/abs/2312.11420.

`ln_tuning_layers.weight` is w and `ln_tuning_layers.bias` v. PEFT copies layers of any kind so. It knows no strength;
between 0 and 1 the line from one to the other is what a strength can mean. Source: huggingface/peft
tuners/ln_tuning/layer.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor
from typing_extensions import Self

from .base import At, Kind, Origin, Params, Proportional, Rows, Site, bias_for, shape_text, taken, widened

_WEIGHT, _BIAS = "ln_tuning_layers.weight", "ln_tuning_layers.bias"


@dataclass(frozen=True, slots=True, eq=False)
class LNTuning(Proportional):
    """Another weight and another bias."""

    value: Tensor  # as the weight
    bias: Tensor | None  # (channels,)

    name: ClassVar[str] = "ln_tuning"
    params: ClassVar[Params] = Params(frozenset({_WEIGHT}), frozenset({_BIAS}))
    kinds: ClassVar[frozenset[Kind]] = frozenset({"norm", "linear", "conv", "attention", "embedding"})
    reads_base: ClassVar[bool] = True
    widens_base: ClassVar[bool] = True
    by_rows: ClassVar[bool] = True
    exact: ClassVar[frozenset[str]] = frozenset({"value", "bias"})

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Self:
        value = params[_WEIGHT]
        if value.numel() != math.prod(site.shape):
            raise ValueError(f"want {_WEIGHT} {site.shape}, got {shape_text(value)}")
        return cls(value.reshape(site.shape), bias_for(site, _BIAS, params.get(_BIAS)))

    @classmethod
    def own_shape(cls, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
        return shapes[_WEIGHT]

    @property
    def has_bias(self) -> bool:
        return self.bias is not None

    def change_of_bias(self, bias: Tensor | None) -> Tensor | None:
        if self.bias is None or bias is None:
            return self.bias
        return widened(self.bias, bias) - bias

    def take(self, rows: Rows) -> Self:
        bias = None if self.bias is None else taken(self.bias, rows)
        return replace(self, value=taken(self.value, rows), bias=bias)

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        value = at.cut(self.value)
        return value - at.base.reshape(value.shape), at.multiplier
