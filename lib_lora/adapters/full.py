"""Full difference: the file holds dW itself as `diff`, and db as `diff_b`; either may be missing.

W' = W + m diff, b' = b + m diff_b, LyCORIS modules/full.py; also what ComfyUI extracts of norms and embeddings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from .base import (
    At,
    DenseEffect,
    Form,
    Kind,
    Origin,
    Params,
    Proportional,
    Rows,
    Site,
    bias_for,
    placed,
    shape_of,
    shape_text,
    taken,
)


@dataclass(frozen=True, slots=True, eq=False)
class Full(Proportional):
    """dW as it is."""

    diff: Tensor | None  # (out, in, *kernel)
    bias: Tensor | None  # (out,)
    shape: tuple[int, ...]

    name: ClassVar[str] = "full"
    params: ClassVar[Params] = Params(frozenset(), frozenset({"diff", "diff_b", "alpha"}))
    kinds: ClassVar[frozenset[Kind]] = frozenset({"linear", "conv", "attention", "embedding", "norm"})
    by_rows: ClassVar[bool] = True
    by_columns: ClassVar[bool] = True

    @classmethod
    def claims(cls, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        return cls.params.claim(shapes) and bool({"diff", "diff_b"} & shapes.keys())

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Self:
        diff, bias = params.get("diff"), params.get("diff_b")
        if diff is not None and diff.numel() != math.prod(site.shape):
            raise ValueError(f"want diff {site.shape}, got {shape_text(diff)}")
        diff = None if diff is None else diff.reshape(site.shape)
        return cls(diff, bias_for(site, "diff_b", bias), site.shape)

    @classmethod
    def own_shape(cls, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
        return shapes.get("diff")

    @property
    def prefers_dense(self) -> bool:
        return self.diff is not None

    @property
    def has_bias(self) -> bool:
        return self.bias is not None

    def delta_bias(self) -> Tensor:
        assert self.bias is not None
        return self.bias

    def take(self, rows: Rows) -> Self:
        diff, bias = (None if one is None else taken(one, rows) for one in (self.diff, self.bias))
        return replace(self, diff=diff, bias=bias, shape=shape_of(self.shape, rows))

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        diff = torch.zeros(()).expand(self.shape) if self.diff is None else self.diff
        return at.cut(diff) if at.columns is None else at.across(diff), at.multiplier

    def form(self, rank: int | None = None) -> Form:
        return Form(on_output=self.diff is not None)

    def output_effect(self, device: torch.device, dtype: torch.dtype) -> DenseEffect:
        assert self.diff is not None
        return DenseEffect(placed(self.diff, device, dtype))
