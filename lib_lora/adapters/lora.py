"""LoRA on linear layers, LoCon on convolutions, with the optional tucker core; also on embeddings.

dW = alpha / r * up @ down, https://arxiv.org/abs/2106.09685. On a convolution `down` has the layer's kernel, stride
and padding and `up` is 1x1 (kohya networks/lora.py). LyCORIS' tucker form keeps `down` 1x1 and puts the kernel into a
core `mid` (LyCORIS functional/general.py, `rebuild_tucker`): dW[p, q, k] = sum_ij up[p, i] mid[i, j, k] down[j, q].
An embedding's weight is (entries, width); its pair is up (entries, r) and down (r, width).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Self

from ..tensors import wide
from ._rows import shape_text, unfit
from ._trainer import lora_scale_and_schedule
from ._variants import as_plain, check_reshaped
from .base import Factors, Form, LowRank, Origin, Pair, Params, RankSchedule, Shapes, Site, Tensors, bias_for


@dataclass(frozen=True, slots=True, eq=False)
class LoRA(LowRank):
    """Low-rank adapter of one layer."""

    down: Tensor  # (r, in, *kernel), or (r', in) beside a core
    up: Tensor  # (out, r)
    scale: float
    shape: tuple[int, ...]
    mid: Tensor | None = None  # (r, r', *kernel)
    bias: Tensor | None = None  # (out,), PEFT's lora_bias
    schedule: RankSchedule | None = None

    name = "lora"
    params = Params(
        required=frozenset({"lora_up.weight", "lora_down.weight"}),
        optional=frozenset({"lora_mid.weight", "lora_up.bias", "alpha", "reshape_weight"}),
    )
    shaped_by = ("lora_up.weight", "lora_down.weight")
    row_fields = ("up", "shape", "bias")
    kinds = frozenset({"linear", "conv", "attention", "embedding", "experts"})
    by_columns = True

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        down, up = params["lora_down.weight"], params["lora_up.weight"]
        mid, bias = params.get("lora_mid.weight"), params.get("lora_up.bias")
        out = site.shape[0]
        rank = up.shape[1] if up.ndim > 1 else 0
        if rank == 0 or up.numel() != out * rank:
            raise unfit(f"up ({out}, r)", up)
        up = up.reshape(out, rank)
        if "reshape_weight" in params:
            check_reshaped(params["reshape_weight"], site)
        if origin.config:
            down = as_plain(down, site, origin)
        if mid is not None or down.shape != (rank, *site.shape[1:]):
            down = _down(down, mid, rank, site)
        scale, schedule = lora_scale_and_schedule(origin, down.shape[0], up)
        return cls(
            down=down,
            up=up,
            scale=scale,
            shape=site.shape,
            mid=mid,
            bias=None if bias is None else bias_for(site, "a bias", bias),
            schedule=schedule,
        )

    @classmethod
    def own_shape(cls, shapes: Shapes) -> tuple[int, ...] | None:
        shape = super(LoRA, cls).own_shape(shapes)
        core = shapes.get("lora_mid.weight")
        return shape if shape is None or core is None else (*shape[:2], *core[2:])

    def delta_bias(self) -> Tensor:
        assert self.bias is not None
        return self.bias * self.scale

    def form(self, rank: int | None = None) -> Form:
        full = self.up.shape[1]
        return Form(Pair(min(full, rank or full), self.scale, self.schedule))

    def factors(self, rank: int | None = None) -> Factors:
        down = self.down
        if self.mid is not None:
            # in fp32 or better: this product is made once per placement and must not cost precision
            dtype = wide(down.dtype)
            down = torch.einsum("ij...,jq->iq...", self.mid.to(dtype), down.to(dtype))
        return Factors(down[:rank], self.up[:, :rank])


def _down(down: Tensor, mid: Tensor | None, rank: int, site: Site) -> Tensor:
    """Reshape `down` to the site's shape, and check it; raise ValueError if it does not fit."""
    shape = site.shape
    if down.ndim < 2:
        raise unfit(f"down ({rank}, {site.inside})", down)
    if mid is not None:
        core = (rank, down.shape[0], *shape[2:])
        if tuple(mid.shape) != core or down.numel() != down.shape[0] * shape[1]:
            got = f"{shape_text(mid)} and {shape_text(down)}"
            raise ValueError(f"want mid {core} and down (r, {shape[1]}), got {got}")
        return down.reshape(down.shape[0], shape[1])
    if down.shape[0] != rank or down.numel() != rank * site.inside:
        raise unfit(f"down ({', '.join(map(str, (rank, *shape[1:])))})", down)
    # linear layers saved as 1x1 convolutions, the reverse, and LyCORIS' flattened convolutions all occur
    return down.reshape(rank, *shape[1:])
