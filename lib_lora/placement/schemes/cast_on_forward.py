"""Layers that bring their weight to the input in their own forward: Forge's, ComfyUI's and their descendants'.

A model rests on the CPU until it is used. Then it goes to its device, as a whole or as far as there is room; what
stays behind is copied over at each call. Source: Forge backend/operations.py, `weights_manual_cast`; ComfyUI
comfy/ops.py, `cast_bias_weight`, in Forge Classic and reForge `ldm_patched/modules/ops.py`.
"""

from functools import partial

from torch import nn

from ...tensors import every
from .base import Scheme

_MARKS = ("parameters_manual_cast", "ldm_patched_cast_weights", "comfy_cast_weights")


class CastOnForward(Scheme):
    """A layer with one of the marks, whatever it says: the host may set it until the layer is called."""

    name = "cast_on_forward"
    mark = _MARKS[0]

    @classmethod
    def rests(cls, component: nn.Module) -> bool:
        marked: dict[type[nn.Module], bool] = {}  # by class, as `hasattr` of a module that lacks something takes long
        for layer in every(component):
            kind = type(layer)
            if kind not in marked:
                marked[kind] = any(map(partial(hasattr, kind), _MARKS))
            if marked[kind] or not layer.__dict__.keys().isdisjoint(_MARKS):
                weight = layer._parameters.get("weight")
                if weight is not None and weight.device.type == "cpu":
                    return True
        return False
