"""DEFT: a subspace of the outputs gets other values, dW = m Q (s R - P^T W), https://arxiv.org/abs/2512.01563.

`deft_P` (out, r) makes Q and P: itself and its positive part by `relu`, or its orthonormal columns for both by `qr`.
`deft_R` (r, in) is what is put in; PaRa has none. s = alpha / r, or 1 without alpha. It is a pair once W is known.
Source: huggingface/peft tuners/deft/layer.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..tensors import wide
from ._rows import unfit
from .base import Adapter, At, Form, Origin, Pair, Params, Rows, Site, Tensors
from .lora import LoRA


@dataclass(frozen=True, slots=True, eq=False)
class DEFT(Adapter):
    up: Tensor  # (out, r), Q
    removed: Tensor  # (out, r), P
    injected: Tensor | None  # (r, in), R
    scale: float  # s

    name = "deft"
    scaled = True
    params = Params(frozenset({"deft_P"}), frozenset({"deft_R", "alpha"}))
    shaped_by = ("deft_P", "deft_R")
    kinds = frozenset({"linear", "attention"})
    reads_base = True

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
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

    def form(self, rank: int | None = None) -> Form:
        full = self.up.shape[1]
        return Form(Pair(min(full, rank or full), 1.0))

    def outlined(self, rows: Rows) -> Adapter:
        return self

    def on(self, read: Callable[[], Tensor], rank: int | None = None) -> Adapter:
        weight = read().flatten(1)
        return LoRA(self._change(weight.to(wide(weight.dtype))), self.up, 1.0, tuple(weight.shape))

    def _change(self, weight: Tensor) -> Tensor:
        """Return s R - P^T W."""
        change = self.removed.t().neg().to(weight) @ weight
        return change if self.injected is None else change.add_(self.injected.to(weight), alpha=self.scale)

    def delta_weight(self, at: At) -> Tensor:
        change = self._change(at.base.flatten(1))
        return (at.put(self.up)[:, : at.rank] @ change[: at.rank]).mul_(at.multiplier)
