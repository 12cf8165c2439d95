"""GLoRA: a low-rank change of the input beside a low-rank change of the weight, https://arxiv.org/abs/2306.07967.

dW = alpha / r * (W A + B), A = a1 a2 and B = b1 b2 (LyCORIS modules/glora.py); on a convolution A mixes channels and
b2 has the kernel. LyCORIS saved the factors under each other's names until 24 May 2024: A = a2 a1, B = b2 b1. Shapes
tell the two layouts apart but where rank, inputs and outputs are all the same; there the time of the training does.
Files of 2023-07-31 and later of the old layout were trained at the square of the scale on part of the steps; readers
and the current trainer have the scale once.

The name is the `glora` of LyCORIS. PEFT's method of that name is another one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import Self

from ..tensors import wide
from ._product import LowRankInput
from ._rows import placed, shape_text
from ._trainer import GLORA_OLD, lycoris_scale, trained_within
from .base import Adapter, At, Factors, Form, InputEffect, Origin, Params, Shapes, Site, Tensors
from .lora import LoRA

_NEW = ("a1.weight", "a2.weight", "b1.weight", "b2.weight")
_OLD = ("a2.weight", "a1.weight", "b2.weight", "b1.weight")
_CORE = "bm.weight"


@dataclass(frozen=True, slots=True, eq=False)
class GLoRA(Adapter):
    down: Tensor  # (r, in), of A
    up: Tensor  # (in, r)
    lora: LoRA  # B
    scale: float

    name = "glora"
    scaled = True
    params = Params(required=frozenset(_NEW), optional=frozenset({_CORE, "alpha"}))
    row_fields = ("lora",)
    reads_base = by_rows = True

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        shapes = {name: tuple(tensor.shape) for name, tensor in params.items()}
        fitting = [names for names in (_NEW, _OLD) if _plain(_shape(shapes, names)) == _plain(site.shape)]
        if not fitting:
            text = ", ".join(f"{name} {shape_text(params[name])}" for name in _NEW)
            raise ValueError(f"want the factors of a change of {site.shape}, got {text}")
        names = fitting[-1] if trained_within(origin, GLORA_OLD) else fitting[0]
        a_up, a_down, b_up, b_down = (params[name] for name in names)
        renamed = {"lora_up.weight": b_up, "lora_down.weight": b_down}
        if _CORE in params:
            renamed["lora_mid.weight"] = params[_CORE]
        # unlike its other kinds, LyCORIS' GLoRA saves the alpha of an rs-LoRA as it was given
        scale = lycoris_scale(origin, a_down.shape[0], alpha_is_raw=True)
        lora = replace(LoRA.from_params(renamed, site, origin), scale=scale, schedule=None)
        return cls(a_down.flatten(1), a_up.flatten(1), lora, scale)

    @classmethod
    def own_shape(cls, shapes: Shapes) -> tuple[int, ...] | None:
        found = [shape for names in (_NEW, _OLD) if (shape := _shape(shapes, names)) is not None]
        # The factors of a square weight also fit a weight as small as their rank. The larger one is meant.
        return max(found, key=math.prod, default=None)

    def form(self, rank: int | None = None) -> Form:
        return replace(self.lora.form(), on_input=True)

    def factors(self, rank: int | None = None) -> Factors:
        return self.lora.factors()

    def as_factors(self, read: Callable[[], Tensor], rank: int | None = None) -> Factors | None:
        own, weight = self.lora.as_factors(read), read().double()
        assert own is not None  # of a LoRA
        weight = weight.flatten(2) if weight.ndim > 2 else weight.unsqueeze(2)
        places = torch.eye(weight.shape[2], dtype=weight.dtype, device=weight.device)  # of the kernel, one pair each
        up = torch.einsum("oik,ir->ork", weight, self.up.to(weight)).flatten(1) * self.scale
        down = torch.einsum("rj,kl->rkjl", self.down.to(weight), places)
        return Factors(torch.cat([own.down, down.reshape(-1, *own.down.shape[1:])]), torch.cat([own.up, up], 1))

    def input_effect(self, device: torch.device, dtype: torch.dtype) -> InputEffect:
        exact = wide(self.up.dtype)
        return LowRankInput(placed(self.down, device, dtype), placed(self.up.to(exact) * self.scale, device, dtype))

    def delta_weight(self, at: At) -> Tensor:
        own = self.lora.delta_weight(replace(at, rank=None))
        weight = at.base.reshape(own.shape).flatten(2) if own.ndim > 2 else at.base.reshape(*own.shape, 1)
        mixed = torch.einsum("oik,ir->ork", weight, at.put(self.up))
        mixed = torch.einsum("ork,rj->ojk", mixed, at.put(self.down))
        return own.add_(mixed.reshape(own.shape) * (self.scale * at.multiplier))


def _shape(shapes: Shapes, names: tuple[str, ...]) -> tuple[int, ...] | None:
    """Return the shape of the weight if `names` are the factors of A and B, up before down."""
    a_up, a_down, b_up, b_down = (shapes[name] for name in names)
    core = shapes.get(_CORE)
    if min(map(len, (a_up, a_down, b_up, b_down))) < 2:
        return None
    inside, rank, rank_b = a_up[0], a_up[1], b_up[1]
    fits = a_down[:2] == (rank, inside) and b_down[1] == inside
    fits = fits and (b_down[0] == rank_b if core is None else core[:2] == (rank_b, b_down[0]))
    fits = fits and all(size == 1 for shape in (a_up, a_down, b_up) for size in shape[2:])
    return (b_up[0], inside, *(b_down if core is None else core)[2:]) if fits else None


def _plain(shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Drop a kernel of one place: linear layers and 1x1 convolutions are saved as each other."""
    return shape[:2] if shape is not None and all(size == 1 for size in shape[2:]) else shape
