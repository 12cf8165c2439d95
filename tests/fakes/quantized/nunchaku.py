"""nunchaku's `SVDQW4A4Linear`, which needs CUDA: its interface and its arithmetic, with codes in an order of their own.

Source: nunchaku-tech/nunchaku nunchaku/models/linear.py and ops/ at 3a3cc3d.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import INT4, Format

GROUP, RANK = 64, 8
_PAD = 256  # rows that the kernels round up to


def _codes(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return 4-bit codes (rows, groups, group) of a matrix, and a scale for each group of a row."""
    grouped = values.unflatten(1, (-1, GROUP))
    scale = grouped.abs().amax(2, keepdim=True) / 7
    return (grouped / scale).nan_to_num(0).round().clamp(-8, 7), scale


class SVDQW4A4Linear(nn.Module):
    """Weights and inputs of 4 bits, and a low-rank part of the weight in full; no `weight`."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features, self.rank = layer.in_features, layer.out_features, RANK
        weight = layer.weight.detach()
        left, sizes, right = torch.linalg.svd(weight, full_matrices=False)
        up, down = left[:, :RANK] * sizes[:RANK], right[:RANK].t()
        smooth = weight.abs().amax(0) ** -0.5
        codes, scale = _codes((weight - up @ down.t()) * smooth)
        order = torch.randperm(self.in_features, generator=torch.Generator().manual_seed(0))
        nibbles = codes.flatten(1)[:, order].to(torch.int8)
        packed = (nibbles[:, ::2] & 15) | (nibbles[:, 1::2] << 4)
        self.qweight = nn.Parameter(packed, requires_grad=False)
        self.wscales = nn.Parameter(scale.squeeze(2).t().contiguous(), requires_grad=False)
        self.smooth_factor = nn.Parameter(smooth, requires_grad=False)
        self.smooth_factor_orig = nn.Parameter(smooth.clone(), requires_grad=False)
        self.proj_down = nn.Parameter(down.contiguous(), requires_grad=False)
        self.proj_up = nn.Parameter(up.contiguous(), requires_grad=False)
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().clone(), requires_grad=False)

    def quantize(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.nn.functional.pad(x, (0, 0, 0, -len(x) % _PAD))
        codes, scale = _codes(x / self.smooth_factor)
        return codes, scale, x @ self.proj_down

    def forward_quant(self, quantized_x: Tensor, ascales: Tensor, lora_act: Tensor, output: Tensor) -> Tensor:
        low, high = (self.qweight << 4) >> 4, self.qweight >> 4
        nibbles = torch.stack([low, high], 2).flatten(1)
        order = torch.randperm(self.in_features, generator=torch.Generator().manual_seed(0))
        codes = torch.empty_like(nibbles)
        codes[:, order] = nibbles
        weight = (codes.unflatten(1, (-1, GROUP)) * self.wscales.t().unsqueeze(2)).flatten(1)
        y = (quantized_x * ascales).flatten(1) @ weight.t() + lora_act @ self.proj_up.t()
        return output.copy_((y if self.bias is None else y + self.bias)[: len(output)])

    def forward(self, x: Tensor, output: Tensor | None = None) -> Tensor:
        rows = x.view(-1, x.shape[2])  # three dimensions alone
        output = x.new_empty(len(rows), self.out_features) if output is None else output
        return self.forward_quant(*self.quantize(rows), output).view(*x.shape[:2], -1)


# divided by the smoothing factors, the steps of some columns are larger than of others
FORMATS = {"nunchaku svdq int4": Format(SVDQW4A4Linear, "svdquant", step=1.5 * INT4, forward=0.2)}
