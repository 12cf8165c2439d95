"""RoAd: pairs of outputs turned and scaled, y' = y + m (R - I) y with the bias in y, https://arxiv.org/abs/2409.00119.

Outputs are in groups of `group_size` of `adapter_config.json`; the i-th of a group's first half is paired with the i-th
of its second half, y' = a_1 cos(t_1) y_1 - a_2 sin(t_2) y_2 and so on. `road_theta` and `road_alpha` have one number
for each pair (road_1), for each output (road_2), or two for each output (road_4), which their length tells. Source:
huggingface/peft tuners/road/layer.py.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import Self

from ..errors import UnsupportedError
from ..tensors import wide
from ._operation import Operation
from ._rows import taken, unfit, widened
from ._trainer import configured_count
from .base import Adapter, At, Origin, OutputEffect, Params, Rows, Site, Tensors


@dataclass(frozen=True, slots=True, eq=False)
class RoAd(Adapter, OutputEffect):
    excess: Tensor  # (out,), the factor of the output itself less 1
    other: Tensor  # (out,), the factor of the one that it is paired with
    size: int
    """Outputs of a group."""

    name = "road"
    params = Params(frozenset({"road_theta", "road_alpha"}))
    kinds = frozenset({"linear", "attention"})
    reads_base = reads_bias = True

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        theta, alpha, out = params["road_theta"], params["road_alpha"], site.shape[0]
        size = configured_count(origin, "group_size", 2)
        if size % 2 or out % size:
            raise ValueError(f"want groups of an even number of outputs that divides {out}, got {size}")
        if theta.shape != alpha.shape or theta.ndim != 1 or theta.numel() not in (out // 2, out, 2 * out):
            raise unfit(f"road_theta and road_alpha of {out // 2}, {out} or {2 * out}", theta, alpha)
        theta, alpha = (one.to(wide(one.dtype)) for one in (theta, alpha))
        own, other = alpha * theta.cos(), alpha * theta.sin()
        if theta.numel() == out // 2:
            own, other = (one.reshape(-1, size // 2).repeat_interleave(2, 0).flatten() for one in (own, other))
        elif theta.numel() == 2 * out:
            own, other = own.reshape(-1, 2, size)[:, 0].flatten(), other.reshape(-1, 2, size)[:, 1].flatten()
        return cls(own - 1, other, size)

    @property
    def bias_excess(self) -> Tensor | None:
        return self.excess

    def change_of_bias(self, bias: Tensor | None) -> Tensor | None:
        if bias is None:
            return None
        return bias * widened(self.excess, bias) + _paired(bias, self.size) * widened(self.other, bias)

    def take(self, rows: Rows) -> Self:
        if any(end % self.size for window in rows for end in window):
            raise UnsupportedError("of RoAd with groups of outputs that lie in two layers of this model")
        return replace(self, excess=taken(self.excess, rows), other=taken(self.other, rows))

    def delta_weight(self, at: At) -> Tensor:
        weight = at.base.flatten(1)
        other = _paired(weight.T, self.size).T * at.put(self.other).unsqueeze(1)
        turned = weight * at.put(self.excess).unsqueeze(1) + other
        return turned.mul_(at.multiplier).reshape(at.base.shape)

    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        return torch.addcmul(y * self.excess, _paired(y, self.size), self.other) * multiplier


def _paired(values: Tensor, size: int) -> Tensor:
    """Return, for each value of the last dimension, the one that it is paired with; the second one negated."""
    first, second = values.reshape(*values.shape[:-1], -1, 2, size // 2).unbind(-2)
    return torch.stack([-second, first], -2).flatten(-3)
