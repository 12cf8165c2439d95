"""transformers' Conv1D, which is no quantization: its weight is stored as (in, out)."""

from __future__ import annotations

from torch import nn
from transformers.pytorch_utils import Conv1D

from .base import Format


def transposed(layer: nn.Linear) -> nn.Module:
    made = Conv1D(layer.out_features, layer.in_features)
    made.weight.data, made.bias.data = layer.weight.detach().t().clone(), layer.bias.detach().clone()
    return made.requires_grad_(False)


FORMATS = {"Conv1D": Format(transposed, "conv1d", step=0.0)}
