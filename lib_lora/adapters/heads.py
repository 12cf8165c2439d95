"""A bank of output heads, of which each step uses some: W' = W + m (sum_i w_i H_i - W), and the same for the bias.

Parallel decoding distillation (PDD) of MiniMax-H3 trains a head for each interval of a grid of noise. A step uses the
mean of the heads of the intervals that it spans, weighted by their lengths, so sum w_i = 1. The grid is even before the
shift of the model's schedule: s g / (1 + (s - 1) g), with s = 12 for video and 3 for audio.

`heads.weight` (heads, out, in) and `heads.bias` (heads, out), as files are published. ComfyUI's own files have
`set_weight` (heads * out, in), whose first block is a head and whose others are differences to it.
Sources: Comfy-Org/ComfyUI comfy/ldm/minimax/model.py, `_pdd_head`; vladmandic/sdnext modules/lora/network_pdd.py.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import Self

from ._rows import taken, unfit, widened
from .base import Adapter, At, HeadSchedule, Origin, Params, Rows, Shapes, Site, Tensors

_WEIGHT, _BIAS = "heads.weight", "heads.bias"
_SHIFTS = {"audio": 3.0, "": 12.0}
"""A part of the layer's name -> s of its schedule. Source: ComfyUI comfy/ldm/minimax/model.py, `MiniMaxH3Model`."""


@dataclass(frozen=True, slots=True, eq=False)
class Heads(Adapter):
    heads: Tensor  # (heads, out, in)
    bias: Tensor | None  # (heads, out)
    schedule: HeadSchedule

    name = "heads"
    params = Params(frozenset({_WEIGHT}), frozenset({_BIAS}))
    kinds = frozenset({"linear"})
    reads_base = True
    exact = frozenset({"heads", "bias"})

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        heads = params[_WEIGHT]
        if heads.ndim != 3 or tuple(heads.shape[1:]) != site.shape or not len(heads):
            raise unfit(f"{_WEIGHT} (heads, {', '.join(map(str, site.shape))})", heads)
        return cls.of(heads, params.get(_BIAS), origin)

    @classmethod
    def of(cls, heads: Tensor, bias: Tensor | None, origin: Origin) -> Self:
        """Return the bank of these heads, (heads, out, in) and (heads, out); raise ValueError if they do not fit."""
        if bias is not None and bias.shape != heads.shape[:2]:
            raise unfit(f"{_BIAS} {tuple(heads.shape[:2])}", bias)
        shift = next(shift for name, shift in _SHIFTS.items() if name in origin.module)
        grid = torch.linspace(1.0, 0.0, len(heads) + 1, dtype=torch.float64)
        lengths = -(shift * grid / (1.0 + (shift - 1.0) * grid)).diff()
        return cls(heads, bias, HeadSchedule(tuple(lengths.tolist())))

    @classmethod
    def from_offsets(cls, weight: Tensor, bias: Tensor | None, site: Site, origin: Origin) -> Self:
        """Return the bank of a head and of differences to it, (heads * out, in) and (heads * out,), likewise."""
        out = site.shape[0]
        if bias is not None and bias.numel() != len(weight):
            raise unfit(f"set_bias ({len(weight)},)", bias)
        heads = _added(weight.reshape(-1, out, weight.shape[1]))
        return cls.of(heads, None if bias is None else _added(bias.reshape(-1, out)), origin)

    @classmethod
    def own_shape(cls, shapes: Shapes) -> tuple[int, ...] | None:
        return shapes[_WEIGHT][1:]

    @property
    def schedule_of_parts(self) -> HeadSchedule:
        return self.schedule

    def change_of_bias(self, bias: Tensor | None) -> Tensor | None:
        return self.bias if self.bias is None or bias is None else widened(self.bias, bias) - bias

    def take(self, rows: Rows) -> Self:
        bias = None if self.bias is None else taken(self.bias, rows, 1)
        return replace(self, heads=taken(self.heads, rows, 1), bias=bias)

    def delta_weight(self, at: At) -> Tensor:
        strengths = torch.as_tensor(at.multiplier, device=at.device, dtype=at.dtype).reshape(-1)
        if len(strengths) != len(self.heads):  # where no step is known, the mean of all
            strengths = strengths * at.put(torch.tensor(self.schedule.weights(0, 1)))
        mixed: Tensor = torch.tensordot(strengths, at.put(self.heads), dims=1)
        return mixed.sub_(at.base.reshape(mixed.shape) * strengths.sum())


def _added(blocks: Tensor) -> Tensor:
    """Add the first block to each of the others."""
    first = blocks[:1].float()
    return torch.cat((first, first + blocks[1:].float()))
