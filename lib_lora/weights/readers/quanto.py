"""optimum-quanto: a layer that multiplies by `qweight`, which is its weight, quantized now unless it is frozen.

Source: huggingface/optimum-quanto nn/qmodule.py and tensor/qtensor.py.
"""

from typing import Any

from torch import Tensor, nn

from .base import WeightReader


class Quanto(WeightReader):
    """The decoded `qweight`, in the dtype of its scales."""

    name = "quanto"
    before = ("dense", "wrapper")

    @classmethod
    def matches(cls, layer: nn.Module, param: str) -> bool:
        return param == "weight" and getattr(layer, "weight_qtype", None) is not None and hasattr(layer, "qweight")

    @classmethod
    def read(cls, layer: nn.Module, param: str) -> Tensor:
        weight: Any = layer.qweight
        read: Tensor = weight.dequantize()
        return read.detach()
