"""A bias put in the place of the layer's, beside another kind: b' = b + m (u - b).

PEFT saves whole biases with `bias="all"` and `bias="lora_only"`. A layer without a bias gets one. Beside its layer it
is a bias that is added, and the layer's own that is taken away. Alone it is a `set_weight`. Source: huggingface/peft
utils/save_and_load.py, `get_peft_model_state_dict`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from ._modifier import Modifier
from .base import Adapter, Form, Kind, Origin, OutputEffect, Params, Rows, Site, bias_for, taken
from .set_weight import WithoutBias


@dataclass(frozen=True, slots=True, eq=False)
class WholeBias(Modifier):
    """`set_bias` around another adapter."""

    inner: Adapter
    bias: Tensor  # (out,)

    name: ClassVar[str] = "whole_bias"
    before: ClassVar[tuple[str, ...]] = ("bora", "dora", "residual")  # it goes around them, which leave the bias alone
    params: ClassVar[Params] = Params(frozenset({"set_bias"}))
    kinds: ClassVar[frozenset[Kind]] = frozenset({"linear", "conv", "attention"})
    has_bias: ClassVar[bool] = True
    exact: ClassVar[frozenset[str]] = frozenset({"bias"})

    @classmethod
    def around(cls, inner: Adapter, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Self:
        bias = bias_for(site, "set_bias", params["set_bias"])
        assert bias is not None
        return cls(inner, bias)

    def cut(self, inner: Adapter, rows: Rows) -> Self:
        return replace(self, inner=inner, bias=taken(self.bias, rows))

    def delta_bias(self) -> Tensor:
        return self.bias + self.inner.delta_bias() if self.inner.has_bias else self.bias

    @property
    def bias_excess(self) -> Tensor:
        inner = self.inner.bias_excess
        own = -torch.ones_like(self.bias)
        return own if inner is None else own + inner.to(own)

    def form(self, rank: int | None = None) -> Form | None:
        form = self.inner.form(rank)
        return None if form is None else replace(form, on_output=True)

    def output_effect(self, device: torch.device, dtype: torch.dtype) -> OutputEffect:
        form = self.inner.form()
        inner = self.inner.output_effect(device, dtype) if form is not None and form.on_output else None
        return WithoutBias(inner)
