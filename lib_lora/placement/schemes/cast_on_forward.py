"""Layers that bring their weight to the input in their own forward: Forge's, ComfyUI's and their descendants'.

A model rests on the CPU until it is used. Then it goes to its device, as a whole or as far as there is room; what
stays behind is copied over at each call. Source: Forge backend/operations.py, `weights_manual_cast`; ComfyUI
comfy/ops.py, `cast_bias_weight`, in Forge Classic and reForge `ldm_patched/modules/ops.py`.
"""

from __future__ import annotations

from torch import Tensor, nn

from ...tensors import every
from .base import Scheme

_MARKS = ("parameters_manual_cast", "ldm_patched_cast_weights", "comfy_cast_weights")


class CastOnForward(Scheme):
    """A layer with one of the marks, whatever it says: the host may set it until the layer is called."""

    name = "cast_on_forward"

    @classmethod
    def rests(cls, component: nn.Module) -> bool:
        return any(_is_marked(layer) and _on_cpu(layer) for layer in every(component))

    @classmethod
    def stays(cls, layer: nn.Module) -> bool:
        return True


def _is_marked(layer: nn.Module) -> bool:
    """Asked of every module of a model: not by `hasattr`, for which a module that lacks something searches long."""
    own, cls = layer.__dict__, type(layer)
    return any(mark in own or hasattr(cls, mark) for mark in _MARKS)


def _on_cpu(layer: nn.Module) -> bool:
    weight = layer._parameters.get("weight")
    return isinstance(weight, Tensor) and weight.device.type == "cpu"
