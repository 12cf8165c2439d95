"""GraLoRA: pairs between blocks of inputs and blocks of outputs, https://arxiv.org/abs/2505.20355.

`gralora_A` (k, in / k, r) and `gralora_B` (k, r, out / k). With s = r / k, the block of outputs j gets from the block
of inputs n the rank components A[n, :, j s : (j + 1) s] B[j, n s : (n + 1) s, :]: one pair of rank k r. A hybrid has a
plain pair beside, `gralora_A_general` and `gralora_B_general`. The scale is alpha / (r + the rank of that pair).
Source: huggingface/peft tuners/gralora/layer.py.
"""

import torch
from typing_extensions import Self

from ._rows import unfit
from .base import Origin, Params, Shapes, Site, Tensors
from .lora import LoRA

_GENERAL = frozenset({"gralora_A_general.weight", "gralora_B_general.weight"})


class GraLoRA(LoRA):
    name = "gralora"
    params = Params(frozenset({"gralora_A", "gralora_B"}), _GENERAL | {"alpha"}, together=_GENERAL)
    kinds = frozenset({"linear", "attention"})

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        a, b, (out, inside) = params["gralora_A"], params["gralora_B"], (site.shape[0], site.inside)
        down, up = (params.get(name) for name in sorted(_GENERAL))
        down, up = a.new_zeros(0, inside) if down is None else down, a.new_zeros(out, 0) if up is None else up
        blocks, rank = (a.shape[0], a.shape[-1]) if a.ndim == 3 else (0, 0)
        if not blocks or rank % blocks or a.shape[1] * blocks != inside or b.shape != (blocks, rank, out // blocks):
            raise unfit(f"gralora_A (k, {inside} / k, r) and gralora_B (k, r, {out} / k)", a, b)
        if out % blocks or down.shape[1:] != (inside,) or up.shape != (out, down.shape[0]):
            raise unfit(f"a general pair (r, {inside}) and ({out}, r)", down, up)
        downs, ups = (torch.block_diag(*one.mT) for one in (a, b))  # type: ignore[no-untyped-call]
        ups = (
            ups.reshape(out, blocks, blocks, rank // blocks).transpose(1, 2).flatten(1)
        )  # (j, n) to (n, j), as `downs`
        scale = origin.alpha.scale(rank + down.shape[0])
        return cls(torch.cat([downs, down]), torch.cat([ups, up], 1), scale, (out, inside))

    @classmethod
    def own_shape(cls, shapes: Shapes) -> tuple[int, ...] | None:
        a, b = shapes["gralora_A"], shapes["gralora_B"]
        return (b[0] * b[2], a[0] * a[1]) if len(a) == len(b) == 3 else None
