"""fp8 storage: the values themselves, or values with a scale beside them.

Values alone: diffusers' layerwise casting, A1111's and Forge's fp8 options; the host casts before it computes, without
a scale. Values with a scale: checkpoints called "scaled fp8". Source: Forge backend/operations.py,
`get_weight_and_bias`: weight * scale_weight, whatever dtype the weight has been cast to, where the layer's
`scale_weight` is not None; one number there, one per row or (out, blocks, 1) in other loaders. Some checkpoints, and
what loads them as they are, spell it `weight_scale` (SD.Next pipelines/native_transformer.py).
"""

import torch
from torch import Tensor, nn

from .base import WeightReader, found, is_wrapper, stored

_FLOAT8 = frozenset(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    if hasattr(torch, name)  # the last two are not in torch 2.1
)


class Float8(WeightReader):
    """The values in fp32, which holds each of them exactly; nothing computes in fp8 itself."""

    name = "float8"
    holds_values = True

    @classmethod
    def matches(cls, layer: nn.Module, param: str) -> bool:
        weight = stored(layer, param)
        return weight is not None and weight.dtype in _FLOAT8 and not is_wrapper(weight)

    @classmethod
    def read(cls, layer: nn.Module, param: str) -> Tensor:
        return found(layer, param).detach().float()


class ScaledFloat(WeightReader):
    """weight * scale, in fp32."""

    name = "scaled_float"
    before = ("dense", "float8")

    @classmethod
    def matches(cls, layer: nn.Module, param: str) -> bool:
        weight = stored(layer, param)
        if weight is None or is_wrapper(weight) or not weight.is_floating_point():
            return False
        return _scale(layer, param) is not None

    @classmethod
    def read(cls, layer: nn.Module, param: str) -> Tensor:
        weight, name = found(layer, param).detach().float(), _scale(layer, param)
        assert name is not None  # `matches` said so
        scale = found(layer, name).detach().to(weight.device, torch.float32)
        blocks = scale.shape[1] if scale.ndim == 3 else 1
        rows = scale.numel() // blocks  # 1, or one for each row
        return (weight.reshape(weight.shape[0], blocks, -1) * scale.reshape(rows, blocks, 1)).reshape(weight.shape)


def _scale(layer: nn.Module, param: str) -> str | None:
    """Return the name of the scale beside a weight."""
    parent, dot, leaf = param.rpartition(".")
    names = [f"{parent}{dot}scale_{leaf}"]
    if Float8.matches(layer, param):  # beside another dtype the second spelling may mean anything
        names.append(f"{parent}{dot}{leaf}_scale")
    return next((name for name in names if stored(layer, name) is not None), None)
