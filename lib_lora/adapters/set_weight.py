"""A weight and a bias put in the place of the layer's, as ComfyUI's `set_weight` and `set_bias` do.

W' = W + m (v - W), b' = b + m (u - b). ComfyUI knows no strength here; between 0 and 1 the line from W to v is what a
strength can mean. Source: ComfyUI comfy/lora.py, `set`. A weight of several times as many rows is a bank of heads, see
`heads.py`.

LN tuning is the same, https://arxiv.org/abs/2312.11420: `ln_tuning_layers.weight` is v and `ln_tuning_layers.bias` u.
PEFT copies layers of any kind so. Source: huggingface/peft tuners/ln_tuning/layer.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..tensors import wide
from ._operation import Operation
from ._rows import placed, widened
from .base import Adapter, At, Form, Origin, OutputEffect, Params, Site, Tensors
from .full import Full
from .heads import Heads


@dataclass(frozen=True, slots=True)
class _Instead(OutputEffect):
    value: Tensor  # (out, in, *kernel)

    exact = frozenset({"value"})  # what acts is its small difference to the weight

    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        return (op.apply(x, self.value) - y) * multiplier


def minus_one(bias: Tensor) -> Tensor:
    """Return the factor of the layer's own bias where another takes its place, in a dtype that torch can compute in."""
    return torch.full_like(bias, -1.0, dtype=wide(bias.dtype))


@dataclass(frozen=True, slots=True)
class WithoutBias(OutputEffect):
    """The layer's bias taken away, as another is added in its place, and the change by an inner effect without it."""

    inner: OutputEffect | None

    @property
    def reads_output(self) -> bool:
        return self.inner is not None and self.inner.reads_output

    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        bias = op.bias(multiplier)
        taken = multiplier * 0.0 if bias is None else bias * -multiplier
        return taken if self.inner is None else taken + self.inner.delta(x, y, multiplier, op)


class SetWeight(Full):
    name = "set_weight"
    names = ("set_weight", "set_bias")
    params = Params(frozenset(), frozenset(names))
    reads_base = widens_base = True
    exact = frozenset({"diff", "bias"})

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        value, out = params.get(cls.names[0]), site.shape[0]
        rows = len(value) if value is not None and value.ndim == 2 and value.shape[1:] == site.shape[1:] else 0
        if cls is SetWeight and rows > out and rows % out == 0:
            return Heads.from_offsets(params[cls.names[0]], params.get(cls.names[1]), site, origin)
        return super().from_params(params, site, origin)

    @property
    def bias_excess(self) -> Tensor | None:
        return None if self.bias is None else minus_one(self.bias)

    def change_of_bias(self, bias: Tensor | None) -> Tensor | None:
        return self.bias if self.bias is None or bias is None else widened(self.bias, bias) - bias

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        if self.diff is None:
            return torch.zeros_like(at.base), 1.0
        value = at.cut(self.diff)
        return value - at.base.reshape(value.shape), at.multiplier

    def form(self, rank: int | None = None) -> Form:
        return Form(on_output=True)

    def output_effect(self, device: torch.device, dtype: torch.dtype) -> OutputEffect:
        instead = None if self.diff is None else _Instead(placed(self.diff, device, dtype))
        return WithoutBias(instead) if self.bias is not None or instead is None else instead


class LNTuning(SetWeight):
    name = "ln_tuning"
    names = ("ln_tuning_layers.weight", "ln_tuning_layers.bias")
    params = Params(frozenset(names[:1]), frozenset(names[1:]))
