"""Butterfly OFT as LyCORIS trains it, https://arxiv.org/abs/2311.06243: m block rotations of the outputs in a chain.

Q_i = B_i - B_i^T, shrunk to |Q| <= c over all factors, c = alpha * out, 0 being no bound; R_i = (I + Q_i)(I - Q_i)^-1;
W' = s * R_m ... R_1 W, not transposed as Diag-OFT's. Factor i acts on pairs of half blocks 2^i halves apart,
their channels alternating. The multiplier lerps each factor to I, m R_i + (1 - m) I, which is how LyCORIS trains and
previews, and differs from lerping the whole; s is 1 + m (s - 1), as in Diag-OFT.
Sources: LyCORIS modules/boft.py, functional/boft.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from ._operation import Operation
from ._rotation import (
    NormLimit,
    OutputTurn,
    Turn,
    bounded,
    cayley,
    check_butterfly,
    excess_of,
    mix_butterfly,
    number,
    rescaled,
    scale_for,
)
from .base import At, Origin, OutputEffect, Params, Rows, Site, taken
from .diag_oft import bound_of


@dataclass(frozen=True, slots=True)
class _ButterflyOutput(OutputEffect):
    """The change of y by the chain, then by the scale."""

    factors: Tensor  # (m, k, b, b)
    excess: Tensor | None  # (out,)

    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        turned = mix_butterfly(y, self.factors, op.channels, multiplier)
        return turned if self.excess is None else rescaled(y, turned, op.per_channel(self.excess) * multiplier)


@dataclass(frozen=True, slots=True, eq=False)
class BOFT(OutputTurn):
    """A chain of block rotations of the outputs."""

    turn: Turn  # (m, k, b, b)
    rescale: Tensor | None  # (out,)

    name: ClassVar[str] = "boft"
    params: ClassVar[Params] = Params(frozenset({"oft_blocks"}), frozenset({"alpha", "rescale"}))

    @classmethod
    def claims(cls, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        return cls.params.claim(shapes) and len(shapes["oft_blocks"]) == 4

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Self:
        factors, out = params["oft_blocks"], site.shape[0]
        check_butterfly(factors, out, "oft_blocks")
        bound = bound_of(factors, number(params, "alpha"), out, always=False)
        return cls(Turn(factors, partial(_solve, bound=bound)), scale_for(out, params.get("rescale")))

    def take(self, rows: Rows) -> Self | None:
        # the last factor has the halves of 2^(m - 1) blocks change places, those of as many channels in a row
        turn = self.turn.take(rows, 2 ** (len(self.turn.source) - 1))
        rescale = None if self.rescale is None else taken(self.rescale, rows)
        return None if turn is None else replace(self, turn=turn, rescale=rescale)

    def _turned(self, rows: Tensor, at: At) -> Tensor:
        return mix_butterfly(rows, at.put(self.turn.blocks(at.device, at.dtype)), -2, at.multiplier)

    def output_effect(self, device: torch.device, dtype: torch.dtype) -> OutputEffect:
        return _ButterflyOutput(self.turn.effect(device, dtype), excess_of(self.rescale, device, dtype))


def _solve(source: Tensor, bound: NormLimit | None) -> Tensor:
    """R - I with the channels of the two halves of a block one after the other, in the file they alternate."""
    turned = cayley(bounded(source - source.transpose(-1, -2), bound))
    size = source.shape[-1]
    if size % 2:
        return turned  # a single factor: nothing is paired
    order = torch.arange(size, device=source.device).view(-1, 2).t().flatten()
    return turned[..., order, :][..., order]
