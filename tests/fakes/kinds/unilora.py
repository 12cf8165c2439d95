"""UniLoRA. https://arxiv.org/abs/2506.00799, PEFT tuners/unilora/layer.py."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    made = {"base_model.unilora_theta_d": randn(generator, 30, size=1.0)}
    for side, size in (("A", (4, shape[1])), ("B", (shape[0], 4))):
        made[f"unilora_indices_{side}"] = torch.randint(30, size, generator=generator)
        made[f"unilora_scales_{side}"] = torch.rand(size, generator=generator)
    return made


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    a, b = (
        own["base_model.unilora_theta_d"][own[f"unilora_indices_{side}"].long()] * own[f"unilora_scales_{side}"]
        for side in "AB"
    )
    return weight + multiplier * b @ a


SAMPLES = (
    Sample(
        "unilora",
        "unilora",
        _make,
        _effective,
        frozenset({"linear, many tokens"}),
        prefix=PEFT,
        config={"peft_type": "UNILORA", "r": 4, "save_indices": True},
    ),
)
