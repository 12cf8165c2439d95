"""The first OFT of LyCORIS, before and after it held whole rotations."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Sample, Shape, Tensors, randn
from .diag_oft import rotated

EARLY = {"ss_training_started_at": "1698000000.5"}  # 2023-10-22
LATE = {"ss_training_started_at": "1700000000.5"}  # 2023-11-14


def _make(*, whole: bool, scale: int | None = None):
    def make(shape: Shape, generator: torch.Generator) -> Tensors:
        size = shape[0] // 4
        made = {"oft_diag": randn(generator, 4, size, size, size=0.1) + torch.eye(size) * whole}
        if scale is not None:
            made["rescale"] = 1 + randn(generator, 4, size, *(1,) * scale)
        return made

    return make


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    rescale = own.get("rescale", torch.ones(()))
    turns = own["oft_diag"] * (rescale.reshape(4, -1, 1) if rescale.ndim else rescale)
    return rotated(weight, list(turns), multiplier)


def _effective_early(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    eye = torch.eye(own["oft_diag"].shape[-1], dtype=weight.dtype)
    return rotated(weight, [multiplier * block + eye for block in own["oft_diag"]], 1.0)


SAMPLES = (
    Sample("oft_diag without a date", "oft_diag", _make(whole=True), _effective, additive=False),
    Sample("oft_diag, early", "oft_diag", _make(whole=False), _effective_early, metadata=EARLY, additive=False),
    Sample("oft_diag, late", "oft_diag", _make(whole=True), _effective, metadata=LATE, additive=False),
    Sample("oft_diag, scaled", "oft_diag", _make(whole=True, scale=1), _effective, metadata=LATE, additive=False),
    Sample("oft_diag, scaled, flat", "oft_diag", _make(whole=True, scale=0), _effective, additive=False),
)
