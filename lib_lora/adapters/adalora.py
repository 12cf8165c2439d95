"""AdaLoRA: a LoRA with learnt singular values, https://arxiv.org/abs/2303.10512.

dW = B (A * E) alpha / (ranknum + 1e-5), huggingface/peft tuners/adalora/layer.py. `ranknum` is the rank the training
began with, `init_r` of the configuration: pruning takes ranks away and leaves it as it is. PEFT does not save it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor
from typing_extensions import Self

from ..tensors import LARGEST, wide
from .base import Adapter, At, Factors, Form, Origin, Params, Rows, Site, shape_text
from .lora import LoRA


@dataclass(frozen=True, slots=True, eq=False)
class AdaLoRA(Adapter):
    """A LoRA and its singular values."""

    lora: LoRA  # with AdaLoRA's scale
    values: Tensor  # (r,)

    name: ClassVar[str] = "adalora"
    params: ClassVar[Params] = Params(
        required=frozenset({"lora_up.weight", "lora_down.weight", "lora_E"}), optional=frozenset({"ranknum", "alpha"})
    )
    by_rows: ClassVar[bool] = True

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Self:
        lora, values = LoRA.from_params(params, site, origin), params["lora_E"]
        if values.numel() != lora.rank:
            raise ValueError(f"want lora_E ({lora.rank}, 1), got {shape_text(values)}")
        begun = _ranknum(params, origin, lora.rank)
        return cls(replace(lora, scale=_scale(origin, begun)), values.reshape(-1))

    @classmethod
    def own_shape(cls, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
        return LoRA.own_shape(shapes)

    @property
    def rank(self) -> int:
        return self.lora.rank

    def take(self, rows: Rows) -> Self:
        return replace(self, lora=self.lora.take(rows))

    def form(self, rank: int | None = None) -> Form:
        return self.lora.form(rank)

    def factors(self, rank: int | None = None) -> Factors:
        factors, values = self.lora.factors(rank), self.values[:rank]
        dtype = wide(factors.down.dtype, values.dtype)
        values = values.to(dtype).view(-1, *(1,) * (factors.down.ndim - 1))
        return Factors(factors.down.to(dtype) * values, factors.up)

    def delta_weight(self, at: At) -> Tensor:
        factors = self.factors(at.rank)
        return replace(self.lora, down=factors.down, up=factors.up).delta_weight(replace(at, rank=None))


def _scale(origin: Origin, begun: float) -> float:
    """Return alpha / rank as PEFT computes it, of the rank that it began with."""
    fixed = origin.alpha.fixed
    return (origin.alpha.value or begun) / (begun + 1e-5) if fixed is None else fixed


def _ranknum(params: Mapping[str, Tensor], origin: Origin, rank: int) -> float:
    """Return the rank that training began with."""
    saved, said = params.get("ranknum"), origin.config.get("init_r")
    if saved is not None:
        if saved.numel() != 1:
            raise ValueError(f"want one number as ranknum, got {shape_text(saved)}")
        return float(saved.item())
    return float(said) if isinstance(said, int) and 0 < said <= LARGEST else float(rank)
