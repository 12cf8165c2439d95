"""Layers of torch, as they are."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from .base import BF16, Format


def plain(dtype: torch.dtype) -> Callable[[nn.Linear], nn.Module]:
    return lambda layer: layer.to(dtype)


FORMATS = {
    "fp32": Format(plain(torch.float32), "dense", step=0.0),
    "fp16": Format(plain(torch.float16), "dense", step=2**-11, forward=2**-10, dtype=torch.float16),
    "bf16": Format(plain(torch.bfloat16), "dense", step=2**-8, forward=BF16, dtype=torch.bfloat16),
}
