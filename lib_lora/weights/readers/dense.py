"""A plain floating weight, as torch's own layers have it; hosts that cast it do so inside their forward."""

import torch
from torch import Tensor, nn

from ...tensors import COMPUTING
from .base import WeightReader, found, is_wrapper, stored


class Dense(WeightReader):
    """The parameter itself."""

    name = "dense"
    plain = True
    holds_values = True

    @classmethod
    def matches(cls, layer: nn.Module, param: str) -> bool:
        weight = stored(layer, param)
        if weight is None or is_wrapper(weight):
            return False
        return weight.dtype in COMPUTING and weight.layout == torch.strided

    @classmethod
    def read(cls, layer: nn.Module, param: str) -> Tensor:
        weight = found(layer, param)
        return weight if weight.requires_grad and torch.is_grad_enabled() else weight.detach()
