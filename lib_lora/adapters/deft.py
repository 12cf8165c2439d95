"""DEFT: a subspace of the outputs gets other values, dW = m Q (s R - P^T W), https://arxiv.org/abs/2512.01563.

`deft_P` (out, r) makes Q and P: itself and its positive part by `relu`, or its orthonormal columns for both by `qr`.
`deft_R` (r, in) is what is put in; PaRa has none. s = alpha / r, or 1 without alpha. It is a pair once W is known.
Source: huggingface/peft tuners/deft/layer.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import Self

from ..errors import UnsupportedError
from ..tensors import wide
from ._rows import unfit
from .base import At, Factors, LowRank, Origin, Params, Rows, Site, Tensors


@dataclass(frozen=True, slots=True, eq=False)
class DEFT(LowRank):
    up: Tensor  # (out, r), Q
    removed: Tensor  # (out, r), P
    injected: Tensor | None  # (r, in), R
    share: float  # s
    change: Tensor | None = None  # (r, in), s R - P^T W, once the weight is known

    name = "deft"
    params = Params(frozenset({"deft_P"}), frozenset({"deft_R", "alpha"}))
    row_fields = ("up",)
    shaped_by = ("deft_P", "deft_R")
    kinds = frozenset({"linear", "attention"})
    reads_base = True
    by_rows = False

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        raw, injected = params["deft_P"], params.get("deft_R")
        rank = raw.shape[1] if raw.ndim == 2 else 0
        if raw.shape != (site.shape[0], rank):
            raise unfit(f"deft_P ({site.shape[0]}, r)", raw)
        if injected is not None and injected.shape != (rank, site.inside):
            raise unfit(f"deft_R ({rank}, {site.inside})", injected)
        method, basis = origin.config.get("decomposition_method"), raw.to(wide(raw.dtype))
        if method == "qr":
            basis = removed = torch.linalg.qr(basis)[0]
        elif method == "relu":
            removed = basis.relu()
        else:
            raise UnsupportedError(
                f"of DEFT with decomposition_method {method!r} in adapter_config.json: want relu or qr"
            )
        return cls(basis, removed, injected, origin.alpha.scale(rank))

    def on(self, read: Callable[[], Tensor], rank: int | None = None) -> Self:
        weight = read().flatten(1)
        return replace(self, change=self._change(weight.to(wide(weight.dtype))))

    def _change(self, weight: Tensor) -> Tensor:
        change = self.removed.t().neg().to(weight) @ weight
        return change if self.injected is None else change.add_(self.injected.to(weight), alpha=self.share)

    def take(self, rows: Rows) -> Self | None:
        return None if self.change is None else self.cut(rows)

    def outlined(self, rows: Rows) -> Self:
        return self

    def factors(self, rank: int | None = None) -> Factors:
        assert self.change is not None  # once `on` has seen the base weight
        return Factors(self.change[:rank], self.up[:, :rank])

    def delta_weight(self, at: At) -> Tensor:
        change = self._change(at.base.flatten(1)) if self.change is None else at.put(self.change)
        return (at.put(self.up)[:, : at.rank] @ change[: at.rank]).mul_(at.multiplier)
