"""SDNQ, SD.Next's own quantization: packed integers or fp8, scales, optionally zero points and an SVD correction.

Source: Disty0/sdnq dequantizer.py and layers/__init__.py; vladmandic/sdnext modules/sdnq. The layer holds the parts
as parameters (`weight`, `scale`, `zero_point`, `svd_up`, `svd_down`, …) and a callable `sdnq_dequantizer` that takes
them by name; `original_shape` is the weight's own. Layers that multiply in int8 or fp8 store the weight transposed,
which the dequantizer undoes when told `skip_quantized_matmul`.
"""

import inspect
from functools import lru_cache
from typing import Any

from torch import Tensor, nn

from .base import WeightReader


class SDNQ(WeightReader):
    """The layer's own dequantizer on the layer's own parts, in its result dtype."""

    name = "sdnq"
    before = ("dense", "float8", "scaled_float")

    @classmethod
    def matches(cls, layer: nn.Module, param: str) -> bool:
        return param == "weight" and callable(getattr(layer, "sdnq_dequantizer", None))

    @classmethod
    def read(cls, layer: nn.Module, param: str) -> Tensor:
        dequantizer: Any = layer.sdnq_dequantizer
        kind: type = type(dequantizer)
        taken = _taken_by(kind)  # which parts there are differs from version to version
        parts: dict[str, Any] = {name: value for name, value in layer._parameters.items() if name in taken}
        if "skip_quantized_matmul" in taken:
            parts["skip_quantized_matmul"] = dequantizer.use_quantized_matmul
        read: Tensor = dequantizer(**parts)
        return read

    @classmethod
    def shape(cls, layer: nn.Module, param: str) -> tuple[int, ...] | None:
        dequantizer: Any = layer.sdnq_dequantizer
        return tuple(dequantizer.original_shape)


@lru_cache(maxsize=8)
def _taken_by(dequantizer: type) -> frozenset[str]:
    return frozenset(inspect.signature(dequantizer.__call__).parameters)
