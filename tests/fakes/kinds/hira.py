"""HiRA. PEFT tuners/hira/layer.py, `get_delta_weight`."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    ones = (1,) * (len(shape) - 2)
    return {
        "hira_A": randn(generator, 4, *shape[1:], size=0.7),
        "hira_B": randn(generator, shape[0], 4, *ones, size=0.7),
    }


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    product = (own["hira_B"].flatten(1) @ own["hira_A"].flatten(1)).reshape(weight.shape)
    return weight * (1 + multiplier * product)


def _make_embedding(shape: Shape, generator: torch.Generator) -> Tensors:
    return {
        "hira_embedding_A": randn(generator, 4, shape[0], size=0.7),
        "hira_embedding_B": randn(generator, shape[1], 4, size=0.7),
    }


def _effective_embedding(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    return weight * (1 + multiplier * (own["hira_embedding_B"] @ own["hira_embedding_A"]).T)


SAMPLES = (
    Sample("hira", "hira", _make, _effective, prefix=PEFT, additive=False),
    Sample(
        "hira, embedding",
        "hira_embedding",
        _make_embedding,
        _effective_embedding,
        frozenset({"embedding"}),
        prefix=PEFT,
        additive=False,
    ),
)
