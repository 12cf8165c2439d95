"""bitsandbytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .base import BF16, INSIDE, INT8, OUT, Format


def bitsandbytes_8bit(layer: nn.Linear, device: str = "cpu") -> nn.Module:
    from bitsandbytes.nn import Linear8bitLt

    made = Linear8bitLt(INSIDE, OUT, has_fp16_weights=False)
    made.load_state_dict(layer.state_dict())
    return made.requires_grad_(False).eval().to(device)


def bitsandbytes_4bit(
    quant_type: str, *, training: bool = False, device: str = "cpu", **options: Any
) -> Callable[[nn.Linear], nn.Module]:
    """In training mode the order of the codes stays the file's; else some CPUs change it at the first call."""

    def make(layer: nn.Linear) -> nn.Module:
        from bitsandbytes.nn import Linear4bit

        made = Linear4bit(INSIDE, OUT, quant_type=quant_type, compute_dtype=torch.float32, **options)
        made.load_state_dict(layer.state_dict())
        return made.requires_grad_(False).train(training).to(device)

    return make


EIGHT, FOUR, NEEDS = "bitsandbytes_8bit", "bitsandbytes_4bit", "bitsandbytes"
FORMATS = {
    "bitsandbytes int8": Format(bitsandbytes_8bit, EIGHT, step=INT8, forward=0.03, needs=NEEDS),
    "bitsandbytes nf4": Format(bitsandbytes_4bit("nf4"), FOUR, step=0.16, forward=BF16, needs=NEEDS),
    "bitsandbytes fp4": Format(
        bitsandbytes_4bit("fp4", compress_statistics=False), FOUR, step=0.18, forward=BF16, needs=NEEDS
    ),
    "bitsandbytes nf4 as floats": Format(
        bitsandbytes_4bit("nf4", training=True, quant_storage=torch.float32), FOUR, step=0.16, needs=NEEDS
    ),
}
