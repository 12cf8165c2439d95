"""Trainable tokens. PEFT tuners/trainable_tokens/layer.py, `get_merged_weights`."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn

_TOKENS = [7, 2, 49, *range(44, 9, -1)]  # most of them, so that every input has some


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    return {"trainable_tokens_delta": randn(generator, len(_TOKENS), shape[1], size=3.0)}


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    made = weight.clone()
    for vector, token in zip(own["trainable_tokens_delta"], _TOKENS, strict=True):
        made[token] += multiplier * (vector - weight[token])
    return made


SAMPLES = (
    Sample(
        "trainable tokens",
        "trainable_tokens",
        _make,
        _effective,
        frozenset({"embedding"}),
        prefix=PEFT,
        config={"peft_type": "TRAINABLE_TOKENS", "token_indices": _TOKENS},
        additive=False,
    ),
)
