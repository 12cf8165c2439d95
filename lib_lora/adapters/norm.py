"""Norm layers: `w_norm` is added to the weight, `b_norm` to the bias; either may be missing.

w' = w + m w_norm, b' = b + m b_norm, LyCORIS modules/norms.py. LayerNorm, GroupNorm and every kind of RMSNorm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from .base import At, Kind, Origin, Params, Proportional, Rows, Site, bias_for, shape_of, shape_text, taken


@dataclass(frozen=True, slots=True, eq=False)
class Norm(Proportional):
    """Change of a norm's weight and bias."""

    weight: Tensor | None  # (channels,)
    bias: Tensor | None  # (channels,)
    shape: tuple[int, ...]

    name: ClassVar[str] = "norm"
    params: ClassVar[Params] = Params(frozenset(), frozenset({"w_norm", "b_norm", "alpha"}))
    kinds: ClassVar[frozenset[Kind]] = frozenset({"norm"})

    @classmethod
    def claims(cls, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        return cls.params.claim(shapes) and bool({"w_norm", "b_norm"} & shapes.keys())

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Self:
        weight = params.get("w_norm")
        if weight is not None and weight.numel() != site.shape[0]:
            raise ValueError(f"want w_norm {site.shape}, got {shape_text(weight)}")
        weight = None if weight is None else weight.reshape(-1)
        return cls(weight, bias_for(site, "b_norm", params.get("b_norm")), site.shape)

    @classmethod
    def own_shape(cls, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
        return shapes.get("w_norm", shapes.get("b_norm"))

    @property
    def has_bias(self) -> bool:
        return self.bias is not None

    def delta_bias(self) -> Tensor:
        assert self.bias is not None
        return self.bias

    def take(self, rows: Rows) -> Self:
        weight, bias = (None if one is None else taken(one, rows) for one in (self.weight, self.bias))
        return replace(self, weight=weight, bias=bias, shape=shape_of(self.shape, rows))

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        if self.weight is None:
            return torch.zeros(self.shape, device=at.device, dtype=at.dtype), 1.0
        return at.put(self.weight), at.multiplier
