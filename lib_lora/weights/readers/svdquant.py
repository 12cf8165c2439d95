"""nunchaku's 4-bit layer with a low-rank part, SVDQuant: W = (codes * scales) / smooth + proj_up @ proj_down^T.

Source: nunchaku-tech/nunchaku nunchaku/models/linear.py at 3a3cc3d. Only its kernels know the order of the codes, so
they are asked for the product with the identity. That is exact but for the rounding of the result to the layer's dtype:
of a row with one entry, 4 bits keep all.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ...errors import ComponentError
from .base import WeightReader, stored

_PARTS = ("qweight", "wscales", "smooth_factor", "proj_down", "proj_up")


class SVDQuant(WeightReader):
    """`SVDQW4A4Linear`, which is no nn.Linear and has no `weight`."""

    name = "svdquant"

    @classmethod
    def matches(cls, layer: nn.Module, param: str) -> bool:
        return param == "weight" and all(stored(layer, part) is not None for part in _PARTS)

    @classmethod
    def read(cls, layer: nn.Module, param: str) -> Tensor:
        own: Any = layer  # its forward is the one that may be hooked
        identity = torch.eye(own.in_features, device=own.qweight.device).to(own.proj_up.dtype)
        output = identity.new_empty(own.in_features, own.out_features)
        product: Tensor = own.forward_quant(*own.quantize(identity), output).detach()
        if own.bias is not None:
            product = product - own.bias
        if not product.isfinite().all():
            raise ComponentError(f"nunchaku's product of the identity with a {type(layer).__name__} is not finite")
        return product.t().contiguous()

    @classmethod
    def shape(cls, layer: nn.Module, param: str) -> tuple[int, ...] | None:
        own: Any = layer
        return own.out_features, own.in_features
