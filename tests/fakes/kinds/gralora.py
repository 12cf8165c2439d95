"""GraLoRA, block by block. https://arxiv.org/abs/2505.20355, PEFT tuners/gralora/layer.py."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(hybrid: int):
    def make(shape: Shape, generator: torch.Generator) -> Tensors:
        made = {
            "gralora_A": randn(generator, 2, shape[1] // 2, 4),
            "gralora_B": randn(generator, 2, 4, shape[0] // 2),
        }
        if hybrid:
            made["gralora_A_general.weight"] = randn(generator, hybrid, shape[1])
            made["gralora_B_general.weight"] = randn(generator, shape[0], hybrid)
        return made

    return make


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    a, b, delta = own["gralora_A"], own["gralora_B"], torch.zeros_like(weight)
    each, width, rank = weight.shape[0] // 2, weight.shape[1] // 2, 4
    for n in range(2):
        for j in range(2):
            block = a[n][:, j * 2 : j * 2 + 2] @ b[j][n * 2 : n * 2 + 2]
            delta[j * each : j * each + each, n * width : n * width + width] += block.T
    if "gralora_A_general.weight" in own:
        delta += own["gralora_B_general.weight"] @ own["gralora_A_general.weight"]
        rank += own["gralora_A_general.weight"].shape[0]
    return weight + multiplier * 12 / rank * delta


_CONFIG = {"peft_type": "GRALORA", "r": 4, "gralora_k": 2, "alpha": 12}
SAMPLES = (
    Sample(
        "gralora",
        "gralora",
        _make(0),
        _effective,
        frozenset({"linear", "attention"}),
        prefix=PEFT,
        config=_CONFIG,
    ),
    Sample("gralora, hybrid", "gralora", _make(3), _effective, frozenset({"linear"}), prefix=PEFT, config=_CONFIG),
)
