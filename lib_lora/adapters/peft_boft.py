"""Butterfly OFT as PEFT trains it, https://arxiv.org/abs/2311.06243: rotations of the input, then a scale.

S = (A - A^T) / 2, R = (I - S)(I + S)^-1; x' = x R_m ... R_1 as a row, y = s * W x' + b, W as (out, in * kernel) and s
being `boft_s`. Factor i acts on pairs of half blocks 2^i halves apart. PEFT has no multiplier: it scales the
complete effect, W' = W + m (... - W).
Source: huggingface/peft tuners/boft/layer.py. (Without its CUDA extension PEFT trains one factor only.)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ._operation import Operation
from ._rotation import Turn, cayley, check_butterfly, excess_of, mix_butterfly, pointwise, rescaled
from ._rows import unfit
from .base import Adapter, At, Form, Origin, OutputEffect, Params, Site, Tensors


@dataclass(frozen=True, slots=True)
class _Turned(OutputEffect):
    """s * W (x + dx) - W x, which takes a second base call: the scale comes after the product."""

    factors: Tensor  # (m, k, b, b), the first to be applied first
    excess: Tensor  # (out,)

    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        change = op.base(mix_butterfly(x, self.factors, op.channels, descending=True))
        return rescaled(y, change, op.per_channel(self.excess)) * multiplier


@dataclass(frozen=True, slots=True, eq=False)
class PeftBOFT(Adapter):
    """A chain of block rotations of the input, and a scale of each output."""

    turn: Turn  # (m, k, b, b)
    scale: Tensor  # (out,)
    shape: tuple[int, ...]

    name = "peft_boft"
    params = Params(frozenset({"boft_R", "boft_s"}))
    row_fields = ("scale", "shape")

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        factors, scale, out = params["boft_R"], params["boft_s"], site.shape[0]
        check_butterfly(factors, site.inside, "boft_R")
        if scale.numel() != out:
            raise unfit(f"boft_s ({out}, 1)", scale)
        return cls(Turn(factors, _solve), scale.reshape(-1), site.shape)

    reads_base = by_rows = True

    def delta_weight(self, at: At) -> Tensor:
        rows = at.base.flatten(1)
        factors = at.put(self.turn.blocks(at.device, at.dtype)).transpose(-1, -2)
        turned = rescaled(rows, mix_butterfly(rows, factors, -1), (at.cut(self.scale) - 1).unsqueeze(1))
        return turned.mul_(at.multiplier).reshape(at.base.shape)

    def form(self, rank: int | None = None) -> Form | None:
        return Form(on_output=True) if pointwise(self.shape) else None

    def output_effect(self, device: torch.device, dtype: torch.dtype) -> OutputEffect:
        excess = excess_of(self.scale, device, dtype)
        assert excess is not None
        return _Turned(self.turn.effect(device, dtype), excess)


def _solve(source: Tensor) -> Tensor:
    """Return the matrix that acts on x as a column, less I: R^T - I."""
    return cayley((source - source.transpose(-1, -2)) / 2)
