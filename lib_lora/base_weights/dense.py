"""A plain floating weight, as torch's own layers have it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .base import WeightReader


class Dense(WeightReader):
    """The parameter itself."""

    name = "dense"
    plain = True

    @classmethod
    def matches(cls, layer: nn.Module, param: str) -> bool:
        weight = _find(layer, param)
        return weight is not None and weight.is_floating_point() and weight.layout == torch.strided

    @classmethod
    def read(cls, layer: nn.Module, param: str) -> Tensor:
        weight = _find(layer, param)
        assert weight is not None  # `matches` said so
        return weight.detach()


def _find(layer: nn.Module, param: str) -> Tensor | None:
    *parents, leaf = param.split(".")
    owner: object = layer
    for name in parents:
        owner = getattr(owner, name, None)
    found = getattr(owner, leaf, None)
    return found if isinstance(found, Tensor) else None
