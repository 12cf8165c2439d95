"""GGUF as diffusers holds it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from .base import INSIDE, INT4, INT8, OUT, Format


def gguf(quant_type: str) -> Callable[[nn.Linear], nn.Module]:
    def make(layer: nn.Linear) -> nn.Module:
        from diffusers.quantizers.gguf.utils import GGUFLinear, GGUFParameter
        from gguf import GGMLQuantizationType
        from gguf.quants import quantize

        kind = GGMLQuantizationType[quant_type]
        made = GGUFLinear(INSIDE, OUT, bias=True, compute_dtype=torch.float32)
        made.weight = GGUFParameter(torch.from_numpy(quantize(layer.weight.numpy(), kind)), quant_type=kind)
        made.bias = layer.bias
        return made.requires_grad_(False)

    return make


FORMATS = {
    "GGUF Q8_0": Format(gguf("Q8_0"), "gguf_diffusers", step=INT8, needs="gguf"),
    "GGUF Q4_0": Format(gguf("Q4_0"), "gguf_diffusers", step=0.14, needs="gguf"),
    "GGUF Q5_1": Format(gguf("Q5_1"), "gguf_diffusers", step=INT4 / 2, needs="gguf"),
}
