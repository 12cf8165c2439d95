"""Plug-ins of the library: how ComfyUI and its pack of nodes for GGUF keep a model.

Source of the pack: ops.py of city96/ComfyUI-GGUF.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from lib_lora import register
from lib_lora.plugins import Scheme, WeightReader

checked: WeakSet[nn.Module] = WeakSet()
"""Parts of models whose stack is only checked, so that adapters are placed once, when the model runs."""


class CheckedModel(Scheme):
    """A model that is not to be called now."""

    name = "checked_model"
    mark = "remora_checked"  # of no layer

    @classmethod
    def rests(cls, component: nn.Module) -> bool:
        """Tell whether the stack of this component is being checked."""
        return component in checked


class ComfyGGUF(WeightReader):
    """`GGMLTensor` in a layer that decodes it, and what Load LoRA has put on it."""

    name = "gguf_comfy"
    before = ("dense", "scaled_float")

    @classmethod
    def matches(cls, layer: nn.Module, param: str) -> bool:
        """Tell whether the layer is one of the pack's."""
        return hasattr(layer, "get_weight") and hasattr(layer._parameters.get(param), "tensor_type")

    @classmethod
    def read(cls, layer: nn.Module, param: str) -> Tensor:
        """Return the weight in fp32."""
        packed: Any = layer
        read: Tensor = packed.get_weight(layer._parameters[param], torch.float32)
        return read.detach()

    @classmethod
    def shape(cls, layer: nn.Module, param: str) -> tuple[int, ...] | None:
        """Return the shape that the file tells."""
        weight: Any = layer._parameters[param]
        return tuple(weight.tensor_shape)


register(CheckedModel, ComfyGGUF)
