"""SDNQ."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from .base import E4M3, INT4, INT8, Format


def sdnq(weights_dtype: str, **options: Any) -> Callable[[nn.Linear], nn.Module]:
    def make(layer: nn.Linear) -> nn.Module:
        from sdnq import sdnq_post_load_quant

        model = nn.Sequential(layer)
        return sdnq_post_load_quant(
            model, weights_dtype=weights_dtype, minimum_allowed_numel=0, add_skip_keys=False, **options
        )[0].requires_grad_(False)

    return make


def earlier_sdnq(layer: nn.Linear) -> nn.Module:
    """As SDNQ converted layers before it had classes of its own: the parts, and a bound forward, on torch's layer."""
    made: Any = sdnq("uint4")(layer)

    def quantized_linear_forward(self: Any, x: Tensor) -> Tensor:
        return F.linear(x, self.sdnq_dequantizer(self.weight, self.scale, zero_point=self.zero_point), self.bias)

    for name in ("weight", "scale", "zero_point"):
        setattr(layer, name, getattr(made, name))
    layer.sdnq_dequantizer = made.sdnq_dequantizer
    layer.forward = MethodType(quantized_linear_forward, layer)
    return layer


FORMATS = {
    "SDNQ int8": Format(sdnq("int8"), "sdnq", step=INT8, needs="sdnq"),
    "SDNQ int8 transposed": Format(sdnq("int8", use_quantized_matmul=True), "sdnq", step=INT8, needs="sdnq"),
    "SDNQ fp8": Format(sdnq("float8_e4m3fn"), "sdnq", step=E4M3, needs="sdnq"),
    "SDNQ uint4": Format(sdnq("uint4"), "sdnq", step=INT4, needs="sdnq"),
    "SDNQ uint4 with SVD": Format(sdnq("uint4", use_svd=True), "sdnq", step=INT4, needs="sdnq"),
    "SDNQ uint4 rotated": Format(sdnq("uint4", use_hadamard=True), "sdnq", step=0.25, needs="sdnq"),
    "SDNQ uint4, earlier": Format(earlier_sdnq, "sdnq", step=INT4, needs="sdnq"),
}
