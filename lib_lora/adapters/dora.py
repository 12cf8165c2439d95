"""DoRA: a magnitude around any other kind, https://arxiv.org/abs/2402.09353.

V = W + dW, W' = W + m (V * d / |V| - W), the norms taken over each output row or each input column of V. The shape of
the magnitude tells which: LyCORIS' `dora_scale` is (out, 1, ...) or (1, in, ...), or (groups, 1, in / groups, ...) on a
grouped convolution. PEFT's `lora_magnitude_vector` and ai-toolkit's `magnitude` are rows whatever their shape, and of
an embedding the width. Trainers agree at m = 1. Elsewhere this is what LyCORIS 4 and the web UIs mean: the multiplier
scales the complete effect, so that 0 is the base.

Beside the layer this is no more than the inner adapter and a vector s = d / |V|: for rows s * (y + dW x) - y, for
columns the inner adapter and W on s * x. |V| is computed once for each weight, see `placement.resident`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import Self

from ..tensors import wide
from ._modifier import Modifier
from ._operation import Operation
from ._rows import placed, taken, unfit
from .base import Adapter, At, Factors, Form, InputEffect, Origin, OutputEffect, Params, Rows, Shapes, Site, Tensors
from .ia3 import ScaledInput, ScaledOutput

Axis = Literal["row", "column", "group"]

_AXES: tuple[Axis, Axis] = ("row", "column")
_ROWS = "lora_magnitude_vector"
_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, slots=True)
class _ScaledOutput(OutputEffect):
    """s * (y + inner) - y, without an inner pair."""

    sigma: Tensor  # (out,)
    excess: Tensor  # (out,), sigma - 1, computed before it was rounded
    inner: OutputEffect

    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        change, whole = y * (op.per_channel(self.excess) * multiplier), multiplier.new_ones(1)
        return change + self.inner.delta_of_product(x, y, whole, op) * (op.per_channel(self.sigma) * multiplier)


@dataclass(frozen=True, slots=True)
class _OnScaledInput(OutputEffect):
    """An inner effect of s * x."""

    sigma: Tensor  # (in,)
    inner: OutputEffect
    reads_output = False

    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        x = x * op.per_channel(self.sigma)
        return self.inner.delta_of_product(x, op.base(x) if self.inner.reads_output else y, multiplier, op)


@dataclass(frozen=True, slots=True, eq=False)
class DoRA(Modifier):
    inner: Adapter
    magnitude: Tensor  # (out,), (in,) or (groups * in / groups,)
    axis: Axis
    site: Site
    sigma: Tensor | None = None  # like the magnitude; known once the base weight is

    name = "dora"
    params = Params(frozenset({"dora_scale"}))
    kinds = frozenset({"linear", "conv", "attention", "embedding"})
    reads_base = True

    @classmethod
    def takes(cls, shapes: Shapes) -> frozenset[str]:
        return frozenset({"dora_scale", _ROWS} & shapes.keys())

    @classmethod
    def around(cls, inner: Adapter, params: Tensors, site: Site, origin: Origin) -> Self:
        magnitude = params.get(_ROWS)
        if magnitude is None:
            magnitude = params["dora_scale"]
            axis = _axis(magnitude, site)
        else:
            dim = int(site.kind == "embedding")
            axis = _AXES[dim] if magnitude.numel() == site.shape[dim] else None
        if axis is None:
            raise unfit(f"a magnitude ({site.shape[0]}, 1, …) or (1, {site.shape[1]}, …)", magnitude)
        return cls(inner, magnitude.reshape(-1), axis, site)

    @property
    def by_rows(self) -> bool:
        return self.inner.by_rows and self.sigma is not None and self.axis != "group"

    def take(self, rows: Rows) -> Adapter | None:
        # along columns, the norms are of all rows
        return super(DoRA, self).take(rows) if self.axis == "row" or self.sigma is not None else None

    def around_part(self, inner: Adapter, rows: Rows) -> Self | None:
        if self.axis == "group":
            return None
        found = replace(self, inner=inner, site=self.site.take(rows))
        if self.axis == "column":
            return found
        sigma = None if self.sigma is None else taken(self.sigma, rows)
        return replace(found, magnitude=taken(self.magnitude, rows), sigma=sigma)

    def on(self, read: Callable[[], Tensor], rank: int | None = None) -> Adapter:
        weight = read()
        dtype = wide(weight.dtype, self.magnitude.dtype)
        found = replace(self, inner=self.inner.on(lambda: weight, rank))
        return replace(found, sigma=found._sigma(weight, dtype, rank).to(self.magnitude.device))

    def delta_weight(self, at: At) -> Tensor:
        base = at.base
        sigma = self._sigma(base, at.dtype, at.rank) if self.sigma is None else self.sigma
        sigma = at.put(sigma) if self.axis != "row" or self.sigma is None else at.cut(sigma)
        split = self._split(base + self.inner_delta(at))
        scaled = split * (sigma.view(1, -1, 1, 1) if self.axis == "row" else sigma.view(split.shape[0], 1, -1, 1))
        return (scaled.reshape(base.shape) - base).mul_(at.multiplier)

    def form(self, rank: int | None = None) -> Form | None:
        form = self.inner.form(rank)
        if form is None or form.on_input or self.axis == "group":
            return None
        return replace(form, on_output=True) if self.axis == "row" else replace(form, on_input=True)

    def factors(self, rank: int | None = None) -> Factors:
        factors = self.inner.factors(rank)
        sigma = self._known()
        if self.axis == "row":
            return Factors(factors.down, factors.up.to(sigma.dtype) * sigma.unsqueeze(1))
        down = factors.down.to(sigma.dtype)
        return Factors(down * sigma.view(1, -1, *(1,) * (down.ndim - 2)), factors.up)

    def input_effect(self, device: torch.device, dtype: torch.dtype) -> InputEffect:
        return ScaledInput(placed(self._known() - 1, device, dtype))

    def output_effect(self, device: torch.device, dtype: torch.dtype) -> OutputEffect:
        inner = self.output_effect_of_inner(device, dtype)
        sigma = self._known()
        if self.axis == "row":
            excess = placed(sigma - 1, device, dtype)
            return ScaledOutput(excess) if inner is None else _ScaledOutput(placed(sigma, device, dtype), excess, inner)
        assert inner is not None
        return _OnScaledInput(placed(sigma, device, dtype), inner)

    def _known(self) -> Tensor:
        assert self.sigma is not None  # once `on` has seen the base weight
        return self.sigma

    def _sigma(self, weight: Tensor, dtype: torch.dtype, rank: int | None) -> Tensor:
        """Return d / |V|, of the magnitude's shape."""
        at = At(weight.device, dtype, rank=rank, weight=weight.to(dtype))
        squares = self._split(at.base + self.inner_delta(at)).square()
        total = squares.sum((2, 3) if self.axis == "row" else (1, 3)).flatten()
        return self.magnitude.to(total) / total.sqrt().clamp_min(_TINY)

    def _split(self, whole: Tensor) -> Tensor:
        """Return a weight as (groups, out / groups, in / groups, kernel); without groups but along these."""
        groups = self.site.groups if self.axis == "group" else 1
        return whole.reshape(groups, -1, whole.shape[1], math.prod(whole.shape[2:]))


def _axis(magnitude: Tensor, site: Site) -> Axis | None:
    """Read the axis of the norm from the shape of a `dora_scale`; return None if it fits nothing."""
    shape, out, inside = tuple(magnitude.shape), site.shape[0], site.shape[1]
    if len(shape) == len(site.shape) + 1 and shape[:3] == (site.groups, 1, inside):
        return "group" if magnitude.numel() == site.groups * inside else None
    if shape[:1] == (out,) and magnitude.numel() == out:
        return "row"
    return "column" if shape[:2] == (1, inside) and magnitude.numel() == inside else None
