"""Scales of a layer's input or output, channel by channel."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import Self

from ..tensors import wide
from ._operation import Operation
from ._rows import placed, taken, unfit
from .base import At, Form, InputEffect, OutputEffect, Proportional, Rows, Site


@dataclass(frozen=True, slots=True)
class ScaledInput(InputEffect):
    """The change of x by a scale of 1 + excess."""

    excess: Tensor  # (in,)

    def delta(self, x: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        return x * (op.per_channel(self.excess) * multiplier)

    def added(self, total: Tensor, x: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        return torch.addcmul(total, x, op.per_channel(self.excess) * multiplier)


@dataclass(frozen=True, slots=True)
class ScaledOutput(OutputEffect):
    """The change of y by a scale of 1 + excess, with the bias or without."""

    excess: Tensor  # (out,)
    with_bias: bool = False

    @property
    def reads_bias(self) -> bool:
        return self.with_bias

    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        return y * (op.per_channel(self.excess) * multiplier)

    def added(self, total: Tensor, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        return torch.addcmul(total, y, op.per_channel(self.excess) * multiplier)


@dataclass(frozen=True, slots=True, eq=False)
class Scale(Proportional):
    """W' = W * (1 + m e), along the inputs or the outputs; b' = b * (1 + m e) where the bias is meant too."""

    vector: Tensor  # (in,), (groups * in / groups,) or (out,)
    one: float
    """The neutral scale: e = vector - one."""
    on_input: bool
    with_bias: bool
    site: Site

    reads_base = widens_base = by_rows = True

    @property
    def bias_excess(self) -> Tensor | None:
        return self.vector.to(wide(self.vector.dtype)) - self.one if self.with_bias else None

    def take(self, rows: Rows) -> Self | None:
        if self.on_input and self.vector.numel() != self.site.shape[1]:
            return None  # which inputs are an output's depends on its group
        vector = self.vector if self.on_input else taken(self.vector, rows)
        return replace(self, vector=vector, site=self.site.take(rows))

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        shape = at.base.shape
        excess = at.put(self.vector) - self.one
        rows = slice(None) if at.rows is None else slice(*at.rows)
        if not self.on_input:
            factor = excess[rows].unsqueeze(1)
        elif excess.numel() == shape[1]:
            factor = excess.unsqueeze(0)
        else:  # each group of outputs has inputs of its own
            groups = self.site.groups
            factor = excess.view(groups, -1).repeat_interleave(self.site.shape[0] // groups, 0)[rows]
        return at.base * factor.reshape(*factor.shape, *(1,) * (len(shape) - 2)), at.multiplier

    def form(self, rank: int | None = None) -> Form:
        return Form(on_input=self.on_input, on_output=not self.on_input)

    def input_effect(self, device: torch.device, dtype: torch.dtype) -> InputEffect:
        return ScaledInput(self._placed_excess(device, dtype))

    def output_effect(self, device: torch.device, dtype: torch.dtype) -> OutputEffect:
        return ScaledOutput(self._placed_excess(device, dtype), self.with_bias)

    def _placed_excess(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        return placed(self.vector.to(device, wide(self.vector.dtype, dtype)) - self.one, device, dtype)


def check_channels(vector: Tensor, site: Site, name: str, *, on_input: bool) -> Tensor:
    """Check a vector over the inputs or the outputs; raise ValueError if it has another length."""
    wants = {site.shape[1], site.groups * site.shape[1]} if on_input else {site.shape[0]}
    if vector.numel() not in wants:
        raise unfit(f"{name} of {' or '.join(map(str, sorted(wants)))}", vector)
    return vector.reshape(-1)
