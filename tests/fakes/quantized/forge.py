"""Forge's own classes: what they hold, and how they compute with it."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from .base import E4M3, INT8, Format


class ForgeLinear(nn.Module):
    """Forge's `ForgeOperations.Linear`: no nn.Linear; casts, and scales, in its forward. backend/operations.py."""

    def __init__(self, layer: nn.Linear, storage: torch.dtype, scale: Tensor | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight = layer.weight if scale is None else layer.weight / scale
        self.weight = nn.Parameter(weight.to(storage), requires_grad=False)
        self.bias = nn.Parameter(layer.bias.to(torch.bfloat16), requires_grad=False)
        self.scale_weight = None if scale is None else nn.Parameter(scale, requires_grad=False)
        self.parameters_manual_cast = True

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x)
        if self.scale_weight is not None:
            weight = weight * self.scale_weight.to(weight)
        return F.linear(x, weight, self.bias.to(x))


class ForgeBytes(nn.Parameter):
    """Forge's `ParameterGGUF`: shows the logical shape, holds what its class baked. backend/operations_gguf.py."""

    real_shape: torch.Size
    gguf_cls: type

    @property
    def shape(self) -> torch.Size:
        return self.real_shape


class RowsOfInt8:
    """Stands for one of the classes of Forge's own gguf package: decodes a baked parameter."""

    @classmethod
    def dequantize_pytorch(cls, parameter: ForgeBytes) -> Tensor:
        scale, codes = parameter.data[:, :2].contiguous().view(torch.float16), parameter.data[:, 2:]
        return (codes * scale).view(parameter.shape)


class ForgeGGUFLinear(nn.Module):
    """Forge's `ForgeOperationsGGUF.Linear`: declares no sizes. backend/operations.py."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        scale = (layer.weight.abs().amax(1, keepdim=True) / 127).half()
        codes = (layer.weight / scale).round().to(torch.int8)
        self.weight = ForgeBytes(torch.cat([scale.view(torch.int8), codes], 1), requires_grad=False)
        self.weight.real_shape, self.weight.gguf_cls = layer.weight.shape, RowsOfInt8
        self.bias = nn.Parameter(layer.bias.half(), requires_grad=False)
        self.parameters_manual_cast = True

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, RowsOfInt8.dequantize_pytorch(self.weight).to(x), self.bias.to(x))


class ForgeLinear4bit(nn.Module):
    """Forge's `ForgeLoader4Bit`: bitsandbytes' parameter, no sizes declared. backend/operations_bnb.py."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        from bitsandbytes.nn import Params4bit

        weight = Params4bit(layer.weight.data, compress_statistics=False, quant_type="nf4")
        self.weight = weight.to(layer.weight.device)
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        import bitsandbytes

        y: Tensor = bitsandbytes.matmul_4bit(x, self.weight.t(), bias=self.bias, quant_state=self.weight.quant_state)
        return y.to(x)


FORMATS = {
    "Forge manual cast": Format(lambda layer: ForgeLinear(layer, torch.bfloat16), "dense", step=2**-8),
    "Forge fp8": Format(lambda layer: ForgeLinear(layer, torch.float8_e4m3fn), "float8", step=E4M3),
    "Forge scaled fp8": Format(
        lambda layer: ForgeLinear(layer, torch.float8_e4m3fn, layer.weight.abs().max() / 448), "scaled_float", step=E4M3
    ),
    "Forge GGUF": Format(ForgeGGUFLinear, "gguf_forge", step=INT8),
    "Forge nf4": Format(ForgeLinear4bit, "bitsandbytes_4bit", step=0.16, needs="bitsandbytes"),
}
