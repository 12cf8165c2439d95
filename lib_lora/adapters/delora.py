"""DeLoRA: a pair whose rank-one parts have a trained strength, https://arxiv.org/abs/2503.18225.

dW = m (l / r) B diag(1 / (|a_i| |b_i|)) A diag(w), with rows a_i and columns b_i, `delora_lambda` l, and
`delora_w_norm` w (in,), the norms of the columns of the weight that was trained on. Source: huggingface/peft
tuners/delora/layer.py.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import Self

from ..tensors import wide
from ._rows import number, taken, unfit
from .base import Factors, LowRank, Origin, Params, Rows, Site, Tensors

_LEAST = 1e-4  # PEFT's, of a norm


@dataclass(frozen=True, slots=True, eq=False)
class DeLoRA(LowRank):
    down: Tensor  # (r, in)
    up: Tensor  # (out, r)
    widths: Tensor  # (in,), norms of the weight's columns
    scale: float
    lengths: Tensor | None = None  # (r,), norms of the columns of the whole b, where this one is a part

    name = "delora"
    params = Params(frozenset({"delora_A", "delora_B", "delora_lambda", "delora_w_norm"}))
    shaped_by = ("delora_B", "delora_A")
    kinds = frozenset({"linear", "attention"})

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        a, b, widths = params["delora_A"], params["delora_B"], params["delora_w_norm"]
        rank = a.shape[0] if a.ndim == 2 else 0
        if a.shape != (rank, site.inside) or b.shape != (site.shape[0], rank) or widths.shape != (site.inside,):
            raise unfit(
                f"A (r, {site.inside}), B ({site.shape[0]}, r) and delora_w_norm ({site.inside},)", a, b, widths
            )
        strength = number(params, "delora_lambda")
        assert strength is not None
        return cls(a, b, widths, strength / rank)

    def take(self, rows: Rows) -> Self:
        return replace(self, up=taken(self.up, rows), lengths=self._lengths())

    def factors(self, rank: int | None = None) -> Factors:
        dtype = wide(self.down.dtype)
        a, lengths = self.down.to(dtype), self._lengths().to(dtype)
        own = torch.linalg.vector_norm(a, dim=1).clamp_min(_LEAST)
        down = a * self.widths.to(dtype) / (own * lengths).unsqueeze(1)
        return Factors(down[:rank], self.up[:, :rank])

    def _lengths(self) -> Tensor:
        if self.lengths is not None:
            return self.lengths
        lengths: Tensor = torch.linalg.vector_norm(self.up.to(wide(self.up.dtype)), dim=0)
        return lengths.clamp_min(_LEAST)
