"""DEFT: a subspace of the outputs gets other values, dW = m Q (s R - P^T W), https://arxiv.org/abs/2512.01563.

`deft_P` (out, r) makes Q and P: itself and its positive part by `relu`, or its orthonormal columns for both by `qr`.
`deft_R` (r, in) is what is put in; PaRa has none. s = alpha / r, or 1 without alpha. It is a pair once W is known.
Source: huggingface/peft tuners/deft/layer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from ..errors import UnsupportedError
from ..tensors import wide
from .base import Adapter, At, Factors, Form, Kind, Origin, Pair, Params, Rows, Site, shape_text, taken


@dataclass(frozen=True, slots=True, eq=False)
class DEFT(Adapter):
    """Other values in a subspace of the outputs."""

    basis: Tensor  # (out, r), Q
    removed: Tensor  # (out, r), P
    injected: Tensor | None  # (r, in), R
    scale: float
    change: Tensor | None = None  # (r, in), s R - P^T W, once the weight is known

    name: ClassVar[str] = "deft"
    params: ClassVar[Params] = Params(frozenset({"deft_P"}), frozenset({"deft_R", "alpha"}))
    kinds: ClassVar[frozenset[Kind]] = frozenset({"linear", "attention"})
    reads_base: ClassVar[bool] = True
    by_columns: ClassVar[bool] = True

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Self:
        raw, injected = params["deft_P"], params.get("deft_R")
        rank = raw.shape[1] if raw.ndim == 2 else 0
        if raw.shape != (site.shape[0], rank):
            raise ValueError(f"want deft_P ({site.shape[0]}, r), got {shape_text(raw)}")
        if injected is not None and injected.shape != (rank, site.inside):
            raise ValueError(f"want deft_R ({rank}, {site.inside}), got {shape_text(injected)}")
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

    @classmethod
    def own_shape(cls, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
        return (*shapes["deft_P"][:1], *shapes["deft_R"][1:]) if "deft_R" in shapes else None

    @property
    def rank(self) -> int:
        return self.basis.shape[1]

    def on(self, read: Callable[[], Tensor], rank: int | None = None) -> Self:
        weight = read().flatten(1)
        return replace(self, change=self._change(weight.to(wide(weight.dtype))))

    def _change(self, weight: Tensor) -> Tensor:
        change = self.removed.t().neg().to(weight) @ weight
        return change if self.injected is None else change.add_(self.injected.to(weight), alpha=self.scale)

    def take(self, rows: Rows) -> Self | None:
        return None if self.change is None else replace(self, basis=taken(self.basis, rows))

    def outlined(self, rows: Rows) -> Self:
        return self

    def form(self, rank: int | None = None) -> Form:
        return Form(Pair(min(self.rank, rank or self.rank), 1.0))

    def factors(self, rank: int | None = None) -> Factors:
        if self.change is None:
            raise TypeError("the pair is known only once `on` has seen the base weight")
        return Factors(self.change[:rank], self.basis[:, :rank])

    def delta_weight(self, at: At) -> Tensor:
        change = self._change(at.base.flatten(1)) if self.change is None else at.across(self.change)
        return (at.put(self.basis)[:, : at.rank] @ change[: at.rank]).mul_(at.multiplier)
