"""torchao."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from .base import E4M3, INT8, Format


def torchao(config: str, **options: str) -> Callable[[nn.Linear], nn.Module]:
    def make(layer: nn.Linear) -> nn.Module:
        from torchao import quantization

        model = nn.Sequential(layer)
        dtypes = {option: getattr(torch, name) for option, name in options.items()}
        quantization.quantize_(model, getattr(quantization, config)(**dtypes))
        return model[0].requires_grad_(False)

    return make


FORMATS = {
    "torchao int8": Format(torchao("Int8WeightOnlyConfig"), "wrapper", step=INT8, needs="torchao"),
    "torchao int8 product": Format(
        torchao("Int8DynamicActivationInt8WeightConfig"), "wrapper", step=INT8, forward=0.03, needs="torchao"
    ),
    "torchao int4": Format(torchao("IntxWeightOnlyConfig", weight_dtype="int4"), "wrapper", step=0.14, needs="torchao"),
    "torchao fp8": Format(torchao("Float8WeightOnlyConfig"), "wrapper", step=E4M3, needs="torchao"),
}
