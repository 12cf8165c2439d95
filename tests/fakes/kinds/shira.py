"""SHiRA, entry by entry; indices as Windows saves them, too. PEFT tuners/shira/layer.py."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn


def _make(dtype: torch.dtype):
    def make(shape: Shape, generator: torch.Generator) -> Tensors:
        places = torch.randperm(shape[0] * shape[1], generator=generator)[:80]
        indices = torch.stack([places // shape[1], places % shape[1]])
        return {"shira_weight": randn(generator, 80, size=1.0), "shira_indices": indices.to(dtype)}

    return make


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    made = weight.clone()
    for value, (row, column) in zip(own["shira_weight"], own["shira_indices"].long().T, strict=True):
        made[row, column] += multiplier * value
    return made


SAMPLES = (
    Sample("shira", "shira", _make(torch.int32), _effective, frozenset({"linear", "attention"}), prefix=PEFT),
    Sample("shira of Windows", "shira", _make(torch.float32), _effective, frozenset({"linear"}), prefix=PEFT),
)
