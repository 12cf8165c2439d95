"""A bias put in the place of the layer's, beside another kind: b' = b + m (u - b).

PEFT saves whole biases with `bias="all"` and `bias="lora_only"`. A layer without a bias gets one. Beside its layer it
is a bias that is added, and the layer's own that is taken away. Alone it is a `set_weight`. Source: huggingface/peft
utils/save_and_load.py, `get_peft_model_state_dict`.
"""

from typing import ClassVar

import torch
from torch import Tensor

from .base import Form, OutputEffect, Params
from .bias import Bias
from .set_weight import WithoutBias, minus_one


class WholeBias(Bias):
    """`set_bias` around another adapter."""

    name = "whole_bias"
    before: ClassVar[tuple[str, ...]] = ("bora", "dora", "residual")  # it goes around them, which leave the bias alone
    params = Params(frozenset({"set_bias"}))
    exact = frozenset({"bias"})

    def form(self, rank: int | None = None) -> Form | None:
        return self.form_on_output(rank)

    @property
    def bias_excess(self) -> Tensor:
        inner, excess = self.inner.bias_excess, minus_one(self.bias)
        return excess if inner is None else excess + inner.to(excess)

    def output_effect(self, device: torch.device, dtype: torch.dtype) -> OutputEffect:
        return WithoutBias(self.output_effect_of_inner(device, dtype))
