"""A sparse residual of the weight beside any other kind, as LyCORIS' extraction stores it.

dW' = dW + scale * S, S being the sparse matrix of `bias_indices` (2, n), `bias_values` (n,) and `bias_size` (2,).
Despite their name they change the weight (LyCORIS utils, `extract_conv` with a sparse bias), and with the file's scale
(AUTOMATIC1111 extensions-builtin/Lora/network.py, `finalize_updown`, which is the reader users know).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ._modifier import Modifier
from ._operation import Operation
from ._rows import placed, unfit
from .base import Adapter, At, Form, Origin, OutputEffect, Params, Site, Tensors
from .shira import Entries


@dataclass(frozen=True, slots=True)
class _Sparse(OutputEffect):
    inner: OutputEffect | None
    residual: Tensor  # (out, in, *kernel)

    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        own = op.apply(x, self.residual) * multiplier
        return own if self.inner is None else own + self.inner.delta_of_product(x, y, multiplier, op)


@dataclass(frozen=True, slots=True, eq=False)
class Residual(Modifier):
    inner: Adapter
    entries: Entries
    scale: float

    name = "residual"
    params = Params(frozenset({"bias_indices", "bias_values", "bias_size"}))
    row_fields = ("entries",)
    by_rows = False
    prefers_dense = True

    @classmethod
    def around(cls, inner: Adapter, params: Tensors, site: Site, origin: Origin) -> Adapter:
        indices, values, size = params["bias_indices"].long(), params["bias_values"].flatten(), params["bias_size"]
        if size.flatten().tolist() not in ([site.shape[0], site.inside], list(site.shape)):
            raise ValueError(f"want bias_size ({site.shape[0]}, {site.inside}), got {size.tolist()}")
        if indices.ndim != 2 or indices.shape != (size.numel(), values.numel()):
            raise unfit(f"bias_indices ({size.numel()}, {values.numel()})", indices)
        if values.numel() and bool(((indices < 0) | (indices >= size.reshape(-1, 1))).any()):
            raise ValueError(f"bias_indices reach outside of bias_size {size.tolist()}")
        places = torch.zeros(values.numel(), dtype=torch.long)
        for index, length in zip(indices, size.flatten().tolist(), strict=True):
            places = places * length + index
        scale = origin.alpha.scale(inner.rank) if inner.rank else 1.0
        return cls(inner, Entries(places, values, site.shape), scale)

    def delta_weight(self, at: At) -> Tensor:
        own = self.entries.dense(at.device, at.dtype, self.scale)
        return self.inner.delta_weight(at).reshape(own.shape) + own * at.multiplier

    def form(self, rank: int | None = None) -> Form | None:
        return self.form_on_output(rank)

    def output_effect(self, device: torch.device, dtype: torch.dtype) -> OutputEffect:
        inner = self.output_effect_of_inner(device, dtype)
        return _Sparse(inner, placed(self.entries.dense(device, dtype, self.scale), device, dtype))
