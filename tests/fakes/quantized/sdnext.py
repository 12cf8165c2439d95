"""SD.Next's own tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from .base import INT8, Format


class WrappedBytes(Tensor):
    """SD.Next's `GGMLTensor`: decodes itself in any operation. modules/ggml/gguf_tensor.py."""

    @staticmethod
    def __new__(cls, codes: Tensor, scale: Tensor) -> Any:
        made = Tensor._make_wrapper_subclass(cls, codes.shape, dtype=codes.dtype, device=codes.device)
        made.codes, made.scale, made.tensor_shape = codes, scale, codes.shape
        return made

    def get_dequantized_tensor(self) -> Tensor:
        return self.codes * self.scale

    def held(self) -> dict[str, Tensor]:
        return {"codes": self.codes, "scale": self.scale}

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in (torch.ops.aten.detach.default, torch.ops.aten._to_copy.default):
            one = args[0]
            return cls(function(one.codes, *args[1:], **kwargs), function(one.scale, *args[1:], **kwargs))
        return function(*[a.get_dequantized_tensor() if isinstance(a, cls) else a for a in args], **kwargs)


def wrapped_bytes(layer: nn.Linear) -> nn.Module:
    from tests.conftest import TORCH  # which needs packages that install.py gpu does not install

    if TORCH < (2, 3):
        pytest.skip("before torch 2.3 a parameter of such a class loses what is in it")
    scale = layer.weight.abs().amax(1, keepdim=True) / 127
    codes = (layer.weight / scale).round().to(torch.int8)
    layer.weight = nn.Parameter(WrappedBytes(codes, scale), requires_grad=False)
    return layer


FORMATS = {"SD.Next GGUF": Format(wrapped_bytes, "gguf_wrapped", step=INT8)}
