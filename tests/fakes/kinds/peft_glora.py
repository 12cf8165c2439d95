"""GLoRA of PEFT: factors and summands, entry by entry. PEFT tuners/glora/layer.py."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    return {
        "glora_A.Xd": randn(generator, shape[0], 3),
        "glora_A.Xu": randn(generator, 3, shape[1]),
        "glora_B.X": randn(generator, shape[0], 1),
        "glora_D.X": randn(generator, shape[0]),
        "glora_E.X": randn(generator, 1),
    }


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    return weight + multiplier * (weight * (own["glora_A.Xd"] @ own["glora_A.Xu"]) + own["glora_B.X"])


def _bias(own: Tensors, multiplier: float) -> Tensor:
    return multiplier * own["glora_E.X"].expand(len(own["glora_B.X"]))


def _bias_factor(own: Tensors, multiplier: float) -> Tensor:
    return 1 + multiplier * own["glora_D.X"]


SAMPLES = (
    Sample(
        "glora of peft",
        "peft_glora",
        _make,
        _effective,
        frozenset({"linear"}),
        bias=_bias,
        bias_factor=_bias_factor,
        prefix=PEFT,
        config={"peft_type": "GLORA", "r": 3},
        additive=False,
    ),
)
