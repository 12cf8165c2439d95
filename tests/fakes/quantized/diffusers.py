"""diffusers' layerwise casting: a hook casts before and after each call."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from .base import E4M3, E5M2, Format


def layerwise_cast(storage: torch.dtype) -> Callable[[nn.Linear], nn.Module]:
    def make(layer: nn.Linear) -> nn.Module:
        from diffusers.hooks import apply_layerwise_casting

        model = nn.Sequential(layer)
        apply_layerwise_casting(model, storage_dtype=storage, compute_dtype=torch.float32)
        return model[0]

    return make


FORMATS = {
    "fp8 e4m3 layerwise": Format(layerwise_cast(torch.float8_e4m3fn), "float8", step=E4M3),
    "fp8 e5m2 layerwise": Format(layerwise_cast(torch.float8_e5m2), "float8", step=E5M2),
}
