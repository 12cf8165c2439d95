"""LoRA on linear layers and LoCon on convolutions, with the optional tucker core.

dW = alpha / r * up @ down, https://arxiv.org/abs/2106.09685. On a convolution `down` has the layer's kernel, stride
and padding and `up` is 1x1 (kohya networks/lora.py). LyCORIS' tucker form keeps `down` 1x1 and puts the kernel into a
core `mid` (LyCORIS functional/general.py, `rebuild_tucker`): dW[p, q, k] = sum_ij up[p, i] mid[i, j, k] down[j, q].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from .base import Adapter, Alpha, Factors, Pair, Params


@dataclass(frozen=True, slots=True, eq=False)
class LoRA(Adapter):
    """Low-rank adapter of one layer."""

    down: Tensor  # (r, in, *kernel), or (r', in) beside a core
    up: Tensor  # (out, r)
    scale: float
    shape: tuple[int, ...]
    mid: Tensor | None = None  # (r, r', *kernel)
    bias: Tensor | None = None  # (out,), PEFT's lora_bias

    name: ClassVar[str] = "lora"
    params: ClassVar[Params] = Params(
        required=frozenset({"lora_up.weight", "lora_down.weight"}),
        optional=frozenset({"lora_mid.weight", "lora_up.bias", "alpha"}),
    )

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor], shape: tuple[int, ...], alpha: Alpha) -> Self:
        down, up = params["lora_down.weight"], params["lora_up.weight"]
        mid, bias = params.get("lora_mid.weight"), params.get("lora_up.bias")
        out, inside = shape[0], math.prod(shape[1:])
        rank = up.shape[1] if up.ndim > 1 else 0
        if rank == 0 or up.numel() != out * rank:
            raise ValueError(f"want up ({out}, r), got {_text(up)}")
        if down.ndim < 2:
            raise ValueError(f"want down ({rank}, {inside}), got {_text(down)}")
        if mid is not None:
            core = (rank, down.shape[0], *shape[2:])
            if tuple(mid.shape) != core or down.numel() != down.shape[0] * shape[1]:
                raise ValueError(f"want mid {core} and down (r, {shape[1]}), got {_text(mid)} and {_text(down)}")
            down = down.reshape(down.shape[0], shape[1])
        else:
            if down.shape[0] != rank or down.numel() != rank * inside:
                raise ValueError(f"want down ({', '.join(map(str, (rank, *shape[1:])))}), got {_text(down)}")
            # linear layers saved as 1x1 convolutions, the reverse, and LyCORIS' flattened convolutions all occur
            down = down.reshape(rank, *shape[1:])
        if bias is not None and bias.numel() != out:
            raise ValueError(f"want a bias of {out}, got {_text(bias)}")
        return cls(
            down=down,
            up=up.reshape(out, rank),
            scale=alpha.scale(down.shape[0]),
            shape=shape,
            mid=mid,
            bias=None if bias is None else bias.reshape(out),
        )

    @classmethod
    def own_shape(cls, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
        down, up = shapes["lora_down.weight"], shapes["lora_up.weight"]
        mid = shapes.get("lora_mid.weight", down)
        return (up[0], down[1], *mid[2:]) if len(down) > 1 and up else None

    @property
    def rank(self) -> int:
        return self.up.shape[1]

    def pair(self, rank: int | None = None) -> Pair:
        return Pair(min(self.rank, rank or self.rank), self.scale, self.bias is not None)

    def factors(self, rank: int | None = None) -> Factors:
        down = self.down
        if self.mid is not None:
            # in fp32 or better: this product is made once per placement and must not cost precision
            dtype = torch.promote_types(down.dtype, torch.float32)
            down = torch.einsum("ij...,jq->iq...", self.mid.to(dtype), down.to(dtype))
        return Factors(down[:rank], self.up[:, :rank], self.bias)

    def delta_weight(self, dtype: torch.dtype, device: torch.device, rank: int | None = None) -> Tensor:
        factors = self.factors(rank)
        down, up = factors.down.to(device, dtype), factors.up.to(device, dtype)
        return (up @ down.flatten(1)).mul_(self.scale).reshape(self.shape)


def _text(tensor: Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"
