"""BoRA, https://arxiv.org/abs/2412.06441, equation 3: the norms of the rows first, then those of the columns."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Sample, Shape, Tensors, randn
from .lora import _effective as lora_effective
from .lora import _make as make_lora


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    return {
        **make_lora(shape, generator),
        "bora_scale_r": 1 + randn(generator, shape[0], 1).abs(),
        "bora_scale_c": 1 + randn(generator, 1, shape[1]).abs(),
    }


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    whole = lora_effective(own, weight, 1.0)
    whole = whole / whole.norm(dim=1, keepdim=True) * own["bora_scale_r"]
    whole = whole / whole.norm(dim=0, keepdim=True) * own["bora_scale_c"]
    return weight + multiplier * (whole - weight)


SAMPLES = (Sample("bora", "lora+bora", _make, _effective, frozenset({"linear", "attention"}), additive=False),)
