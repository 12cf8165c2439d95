"""GGUF's block formats as three programs hold them: bytes in a tensor subclass that knows its quantization type.

Each is decoded by its own program, in the dtype in which that decodes: for most types the fp16 of the file's scales.
"""

import sys
from typing import Any

from torch import Tensor, nn

from .base import WeightReader, found, stored


class DiffusersGGUF(WeightReader):
    """`GGUFParameter`. Source: diffusers quantizers/gguf/utils.py."""

    name = "gguf_diffusers"
    before = ("dense", "scaled_float")

    @classmethod
    def matches(cls, layer: nn.Module, param: str) -> bool:
        weight = stored(layer, param)
        return hasattr(weight, "quant_type") and hasattr(_module_of(weight), "dequantize_gguf_tensor")

    @classmethod
    def read(cls, layer: nn.Module, param: str) -> Tensor:
        weight = found(layer, param)
        read: Tensor = _module_of(weight).dequantize_gguf_tensor(weight)
        return read.detach()


class ForgeGGUF(WeightReader):
    """`ParameterGGUF`, in a layer that is no nn.Linear and declares no sizes. Source: Forge backend/operations_gguf.py.

    `gguf_cls` decodes what it has baked at load (repacked, scales in the computation dtype); it is None for types
    that need no decoding.
    """

    name = "gguf_forge"
    before = ("dense", "scaled_float")

    @classmethod
    def matches(cls, layer: nn.Module, param: str) -> bool:
        weight = stored(layer, param)
        return hasattr(weight, "gguf_cls") and hasattr(weight, "real_shape")

    @classmethod
    def read(cls, layer: nn.Module, param: str) -> Tensor:
        weight: Any = found(layer, param)
        read: Tensor = weight.data if weight.gguf_cls is None else weight.gguf_cls.dequantize_pytorch(weight)
        return read.detach().reshape(weight.real_shape)

    @classmethod
    def shape(cls, layer: nn.Module, param: str) -> tuple[int, ...] | None:
        weight: Any = stored(layer, param)
        return tuple(weight.real_shape)


class WrappedGGUF(WeightReader):
    """`GGMLTensor`, which decodes itself in any operation. Source: SD.Next modules/ggml/gguf_tensor.py, InvokeAI."""

    name = "gguf_wrapped"
    before = ("dense", "scaled_float")

    @classmethod
    def matches(cls, layer: nn.Module, param: str) -> bool:
        return hasattr(stored(layer, param), "get_dequantized_tensor")

    @classmethod
    def read(cls, layer: nn.Module, param: str) -> Tensor:
        weight: Any = found(layer, param)
        read: Tensor = weight.get_dequantized_tensor()
        return read.detach()

    @classmethod
    def shape(cls, layer: nn.Module, param: str) -> tuple[int, ...] | None:
        weight: Any = stored(layer, param)
        return tuple(weight.tensor_shape)


def _module_of(value: object) -> Any:
    return sys.modules.get(type(value).__module__)
