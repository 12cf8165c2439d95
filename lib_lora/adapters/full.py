"""Full difference: the file holds dW itself as `diff`, and db as `diff_b`; either may be missing.

W' = W + m diff, b' = b + m diff_b, LyCORIS modules/full.py; also what ComfyUI extracts of norms and embeddings.

Of norm layers LyCORIS has `w_norm` and `b_norm` (modules/norms.py): LayerNorm, GroupNorm and every kind of RMSNorm.
BEFT has `beft_bias` alone, https://arxiv.org/abs/2509.15974, huggingface/peft tuners/beft/layer.py. A layer without a
bias gets one.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ._operation import Operation
from ._rows import unfit
from .base import Adapter, At, Form, Kind, Origin, Params, ProductEffect, Proportional, Shapes, Site, Tensors, bias_for


@dataclass(frozen=True, slots=True, eq=False)
class Full(Proportional, ProductEffect):
    diff: Tensor | None  # (out, in, *kernel)
    bias: Tensor | None  # (out,)
    shape: tuple[int, ...]

    name = "full"
    names: ClassVar[tuple[str, str]] = ("diff", "diff_b")
    """Of the weight's change, and of the bias's."""
    params = Params(frozenset(), frozenset({*names, "alpha"}))
    kinds: ClassVar[frozenset[Kind]] = frozenset({"linear", "conv", "attention", "embedding", "norm"})
    row_fields = ("diff", "bias", "shape")
    by_rows = True

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        diff, bias = (params.get(name) for name in cls.names)
        if diff is not None and diff.numel() != math.prod(site.shape):
            raise unfit(f"{cls.names[0]} {site.shape}", diff)
        diff = None if diff is None else diff.reshape(site.shape)
        return cls(diff, bias_for(site, cls.names[1], bias), site.shape)

    @classmethod
    def own_shape(cls, shapes: Shapes) -> tuple[int, ...] | None:
        return shapes.get(cls.names[0])

    @property
    def prefers_dense(self) -> bool:
        return self.diff is not None

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        diff = torch.zeros(()).expand(self.shape) if self.diff is None else self.diff
        return at.cut(diff), at.multiplier

    def form(self, rank: int | None = None) -> Form:
        return Form(on_output=self.diff is not None)

    def product(self, x: Tensor, op: Operation) -> Tensor:
        assert self.diff is not None
        return op.apply(x, self.diff)


class Norm(Full):
    name = "norm"
    names = ("w_norm", "b_norm")
    params = Params(frozenset(), frozenset({*names, "alpha"}))
    kinds = frozenset({"norm"})

    @classmethod
    def own_shape(cls, shapes: Shapes) -> tuple[int, ...] | None:
        return shapes.get("w_norm", shapes.get("b_norm"))


class BEFT(Full):
    name = "beft"
    names = ("", "beft_bias")
    params = Params(frozenset({"beft_bias"}))
    kinds = frozenset({"linear"})
