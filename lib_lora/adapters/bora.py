"""BoRA: magnitudes along rows and columns around any other kind, https://arxiv.org/abs/2412.06441.

V = W + dW, U = r * V / |V| row by row, W' = W + m (c * U / |U| - W) column by column. The paper's norms come in this
order. `bora_scale_r` and `bora_r_scale` are r (out, 1); `bora_scale_c` and `bora_c_scale` are c (1, in). As with DoRA,
the multiplier scales the complete effect. Sources: forks of LyCORIS, modules/bora.py around LoRA and modules/bokr.py
around LoKr.
"""

from dataclasses import dataclass

from torch import Tensor

from ._modifier import Modifier
from ._rows import shape_text
from .base import Adapter, At, Form, Origin, Params, Shapes, Site, Tensors

_ROWS = ("bora_scale_r", "bora_r_scale")
_COLUMNS = ("bora_scale_c", "bora_c_scale")
_TINY = 1e-30


@dataclass(frozen=True, slots=True, eq=False)
class BoRA(Modifier):
    inner: Adapter
    rows: Tensor  # (out,)
    columns: Tensor  # (in,)

    name = "bora"
    params = Params(frozenset({_ROWS[0], _COLUMNS[0]}), frozenset({_ROWS[1], _COLUMNS[1]}))
    kinds = frozenset({"linear", "attention"})
    reads_base = True
    by_rows = False
    prefers_dense = True

    @classmethod
    def takes(cls, shapes: Shapes) -> frozenset[str]:
        own = frozenset({*_ROWS, *_COLUMNS} & shapes.keys())
        return own if len(own) == 2 and len(own.intersection(_ROWS)) == 1 else frozenset()

    @classmethod
    def around(cls, inner: Adapter, params: Tensors, site: Site, origin: Origin) -> Adapter:
        rows, columns = (next(params[name] for name in names if name in params) for names in (_ROWS, _COLUMNS))
        if rows.numel() != site.shape[0] or columns.numel() != site.shape[1]:
            got = f"{shape_text(rows)} and {shape_text(columns)}"
            raise ValueError(f"want magnitudes ({site.shape[0]}, 1) and (1, {site.shape[1]}), got {got}")
        return cls(inner, rows.reshape(-1, 1), columns.reshape(1, -1))

    def delta_weight(self, at: At) -> Tensor:
        base = at.base
        whole = base + self.inner_delta(at)
        whole = whole * (at.put(self.rows) / whole.norm(dim=1, keepdim=True).clamp_min(_TINY))
        whole = whole * (at.put(self.columns) / whole.norm(dim=0, keepdim=True).clamp_min(_TINY))
        change: Tensor = whole - base
        return change.mul_(at.multiplier)

    def form(self, rank: int | None = None) -> Form | None:
        return None  # the norms are of whole rows and columns
