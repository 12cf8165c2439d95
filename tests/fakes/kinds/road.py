"""RoAd, as a matrix. PEFT tuners/road/layer.py, `_get_delta_weight` and `_prepare_cols`."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn

_SIZE = 8


def _make(each: float):
    def make(shape: Shape, generator: torch.Generator) -> Tensors:
        count = int(each * shape[0])
        return {
            "road_theta": randn(generator, count, size=0.5),
            "road_alpha": 1 + randn(generator, count, size=0.5),
        }

    return make


def _turn(own: Tensors, out: int) -> Tensor:
    theta, alpha = own["road_theta"], own["road_alpha"]
    made, half = torch.zeros(out, out, dtype=theta.dtype), _SIZE // 2
    for i in range(out):
        group, place = divmod(i, _SIZE)
        other = i + half if place < half else i - half
        first = second = i
        if theta.numel() == out // 2:
            first = second = group * half + place % half
        elif theta.numel() == 2 * out:
            first, second = group * 2 * _SIZE + place, group * 2 * _SIZE + _SIZE + place
        made[i, i] = alpha[first] * theta[first].cos()
        made[i, other] = (-1 if place < half else 1) * alpha[second] * theta[second].sin()
    return made


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    return weight + multiplier * (_turn(own, weight.shape[0]) @ weight - weight)


_CONFIG = {"peft_type": "ROAD", "group_size": _SIZE}
_LAYERS = frozenset({"linear without bias, one row"})


SAMPLES = (
    Sample("road 1", "road", _make(0.5), _effective, _LAYERS, prefix=PEFT, config=_CONFIG, additive=False),
    Sample("road 2", "road", _make(1), _effective, _LAYERS, prefix=PEFT, config=_CONFIG, additive=False),
    Sample("road 4", "road", _make(2), _effective, _LAYERS, prefix=PEFT, config=_CONFIG, additive=False),
)
