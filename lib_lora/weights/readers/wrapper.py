"""Tensor subclasses that stand for other tensors, in layers of torch's own classes: torchao's, and those like them.

Source: pytorch/ao torchao/utils.py, `TorchAOBaseTensor`, and quantization/quantize_/workflows; SDNQ's and ComfyUI's
quantized tensors are made the same way. They show the shape and dtype of the weight they stand for. Most of them
decode themselves; some (torchao's int4 with packed layouts) know nothing but how to be multiplied by. The parts of
torch's DTensor lie on several processes, which must all read it at the same time.
"""

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn

from .base import WeightReader, found, is_wrapper, stored


class Wrapper(WeightReader):
    """The tensor's own decoded values, else its product with the identity."""

    name = "wrapper"

    @classmethod
    def matches(cls, layer: nn.Module, param: str) -> bool:
        weight = stored(layer, param)
        return weight is not None and is_wrapper(weight) and weight.is_floating_point()

    @classmethod
    def read(cls, layer: nn.Module, param: str) -> Tensor:
        weight = found(layer, param)
        if hasattr(weight, "full_tensor"):
            whole: Tensor = weight.full_tensor()
            return whole
        if type(weight).dequantize is not Tensor.dequantize:  # torch's own is for its old quantized dtypes
            return weight.dequantize().detach()
        identity = torch.eye(weight.shape[1], device=weight.device).to(weight.dtype)
        return F.linear(identity, weight).detach().t()
