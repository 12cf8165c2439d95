"""MoSLoRA, https://arxiv.org/abs/2406.11909: under PEFT's name, and under the name of the paper's own code."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn

CONFIG = {"peft_type": "MOSLORA", "r": 4, "lora_alpha": 8}
OWN = CONFIG | {"peft_type": "LORA"}


def make(middle: str):
    def make(shape: Shape, generator: torch.Generator) -> Tensors:
        return {
            "lora_A.weight": randn(generator, 4, *shape[1:]),
            "lora_B.weight": randn(generator, shape[0], 4, *(1,) * (len(shape) - 2)),
            middle: randn(generator, 4, 4, size=1.0),
        }

    return make


def effective(middle: str):
    def effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
        delta = own["lora_B.weight"].flatten(1) @ own[middle] @ own["lora_A.weight"].flatten(1)
        return weight + multiplier * 8 / 4 * delta.reshape(weight.shape)

    return effective


def sample(name: str, recipe: str, middle: str, layers: frozenset[str], config: dict[str, object]) -> Sample:
    return Sample(name, recipe, make(middle), effective(middle), layers, prefix=PEFT, config=config)


SAMPLES = (
    sample("moslora", "moslora", "lora_mixer.weight", frozenset({"linear", "conv", "attention"}), CONFIG),
    sample("moslora of the paper", "moslora", "lora_AB.weight", frozenset({"linear, many tokens"}), OWN),
)
