"""A change of the layer's bias beside any other kind: b' = b + m diff_b (LyCORIS, ComfyUI comfy/lora.py).

Or another one in its place, b' = b + m (u - b): PEFT saves whole biases with `bias="all"` and `bias="lora_only"`. A
layer without a bias gets one. Beside its layer it is a bias that is added, and the layer's own that is taken away.
Alone it is a `set_weight`. Source: huggingface/peft utils/save_and_load.py, `get_peft_model_state_dict`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..tensors import wide
from ._modifier import Modifier
from .base import Adapter, Factors, Form, Origin, OutputEffect, Params, Site, Tensors, bias_for
from .set_weight import WithoutBias, minus_one


@dataclass(frozen=True, slots=True, eq=False)
class Bias(Modifier):
    inner: Adapter
    bias: Tensor  # (out,)

    name = "bias"
    params = Params(frozenset({"diff_b"}))
    kinds = frozenset({"linear", "conv", "attention"})
    row_fields = ("bias",)
    has_bias = True

    @classmethod
    def around(cls, inner: Adapter, params: Tensors, site: Site, origin: Origin) -> Adapter:
        (name,) = cls.params.required
        bias = bias_for(site, name, params[name])
        assert bias is not None
        return cls(inner, bias)

    def delta_bias(self) -> Tensor:
        return self.bias + self.inner.delta_bias() if self.inner.has_bias else self.bias

    def as_factors(self, read: Callable[[], Tensor], rank: int | None = None) -> Factors | None:
        return self.inner.as_factors(read, rank)  # which leaves out the bias


class WholeBias(Bias):
    name = "whole_bias"
    before: ClassVar[tuple[str, ...]] = ("bora", "dora", "residual")  # it goes around them, which leave the bias alone
    params = Params(frozenset({"set_bias"}))
    exact = frozenset({"bias"})

    def form(self, rank: int | None = None) -> Form | None:
        return self.form_on_output(rank)

    def delta_bias(self) -> Tensor:
        """Return the bias as the inner adapter changes it, which was trained with this one and not with the layer's."""
        bias = self.bias.to(wide(self.bias.dtype))
        change = self.inner.change_of_bias(bias)
        return bias if change is None else bias + change

    @property
    def bias_excess(self) -> Tensor:
        return minus_one(self.bias)

    def output_effect(self, device: torch.device, dtype: torch.dtype) -> OutputEffect:
        return WithoutBias(self.output_effect_of_inner(device, dtype))
