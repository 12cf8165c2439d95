"""HiRA: the weight times a low-rank matrix, entry by entry, dW = m W * (B A), https://openreview.net/forum?id=TwJrTz9cRS.

There is no alpha. Source: huggingface/peft tuners/hira/layer.py.
"""

from dataclasses import dataclass

from torch import Tensor
from typing_extensions import Self

from ._rows import unfit
from .base import At, Origin, Params, Proportional, Shapes, Site, Tensors


@dataclass(frozen=True, slots=True, eq=False)
class HiRA(Proportional):
    down: Tensor  # (r, in * kernel)
    up: Tensor  # (out, r)

    name = "hira"
    params = Params(frozenset({"hira_A", "hira_B"}))
    shaped_by = ("hira_B", "hira_A")
    row_fields = ("up",)
    reads_base = widens_base = by_rows = True

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        down, up = params["hira_A"], params["hira_B"]
        rank, out = down.shape[0] if down.ndim else 0, site.shape[0]
        if down.numel() != rank * site.inside or up.numel() != out * rank or up.shape[:1] != (out,):
            raise unfit(f"A (r, {', '.join(map(str, site.shape[1:]))}) and B ({out}, r)", down, up)
        return cls(down.reshape(rank, -1), up.reshape(out, rank))

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        factor = at.cut(self.up)[:, : at.rank] @ at.put(self.down)[: at.rank]
        return at.base * factor.reshape(at.base.shape), at.multiplier


@dataclass(frozen=True, slots=True, eq=False)
class HiRAEmbedding(HiRA):
    name = "hira_embedding"
    params = Params(frozenset({"hira_embedding_A", "hira_embedding_B"}))
    kinds = frozenset({"embedding"})

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        a, b = params["hira_embedding_A"], params["hira_embedding_B"]
        if a.ndim != 2 or b.ndim != 2:
            raise unfit(f"A (r, {site.shape[0]}) and B ({site.inside}, r)", a, b)
        return super(HiRAEmbedding, cls).from_params({"hira_A": b.t(), "hira_B": a.t()}, site, origin)

    @classmethod
    def own_shape(cls, shapes: Shapes) -> tuple[int, ...] | None:
        return (*shapes["hira_embedding_A"][1:2], *shapes["hira_embedding_B"][:1])
