"""GraLoRA: pairs between blocks of inputs and blocks of outputs, https://arxiv.org/abs/2505.20355.

`gralora_A` (k, in / k, r) and `gralora_B` (k, r, out / k). With s = r / k, the block of outputs j gets from the block
of inputs n the rank components A[n, :, j s : (j + 1) s] B[j, n s : (n + 1) s, :]: one pair of rank k r. A hybrid has a
plain pair beside, `gralora_A_general` and `gralora_B_general`. The scale is alpha / (r + the rank of that pair).
Source: huggingface/peft tuners/gralora/layer.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ._rows import taken, unfit
from .base import Adapter, Factors, LowRank, Origin, Params, Rows, Shapes, Site, Tensors

_GENERAL = frozenset({"gralora_A_general.weight", "gralora_B_general.weight"})


@dataclass(frozen=True, slots=True, eq=False)
class GraLoRA(LowRank):
    a: Tensor  # (k, in / k, r)
    b: Tensor  # (k, r, out / k)
    down: Tensor  # (hybrid, in)
    up: Tensor  # (out, hybrid)
    scale: float
    rows: Rows
    """The rows of the delta that are meant."""

    name = "gralora"
    params = Params(frozenset({"gralora_A", "gralora_B"}), _GENERAL | {"alpha"}, together=_GENERAL)
    row_fields = ("rows",)
    kinds = frozenset({"linear", "attention"})

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        a, b, (out, inside) = params["gralora_A"], params["gralora_B"], (site.shape[0], site.inside)
        down, up = (params.get(name) for name in sorted(_GENERAL))
        down, up = a.new_zeros(0, inside) if down is None else down, a.new_zeros(out, 0) if up is None else up
        blocks, rank = (a.shape[0], a.shape[-1]) if a.ndim == 3 else (0, 0)
        if not blocks or rank % blocks or a.shape[1] * blocks != inside or b.shape != (blocks, rank, out // blocks):
            raise unfit(f"gralora_A (k, {inside} / k, r) and gralora_B (k, r, {out} / k)", a, b)
        if out % blocks or down.shape[1:] != (inside,) or up.shape != (out, down.shape[0]):
            raise unfit(f"a general pair (r, {inside}) and ({out}, r)", down, up)
        return cls(a, b, down, up, origin.alpha.scale(rank + down.shape[0]), ((0, out),))

    @classmethod
    def own_shape(cls, shapes: Shapes) -> tuple[int, ...] | None:
        a, b = shapes["gralora_A"], shapes["gralora_B"]
        return (b[0] * b[2], a[0] * a[1]) if len(a) == len(b) == 3 else None

    @property
    def rank(self) -> int:
        return self.a.shape[0] * self.a.shape[2] + self.down.shape[0]

    def factors(self, rank: int | None = None) -> Factors:
        blocks, _, inner = self.a.shape
        down, up = (torch.block_diag(*one.mT) for one in (self.a, self.b))  # type: ignore[no-untyped-call]
        up = up.reshape(-1, blocks, blocks, inner // blocks).transpose(1, 2).flatten(1)  # j, n -> n, j, as in `down`
        ups = torch.cat([up, self.up], 1)[:, :rank]
        return Factors(torch.cat([down, self.down])[:rank], taken(ups, self.rows))
