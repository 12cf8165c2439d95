"""optimum-quanto."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from .base import E4M3, INT4, INT8, Format


def quanto(weights: str, *, frozen: bool = True) -> Callable[[nn.Linear], nn.Module]:
    def make(layer: nn.Linear) -> nn.Module:
        from optimum.quanto import freeze, qtypes, quantize
        from optimum.quanto.library.extensions.cpp import ext

        ext._lib = SimpleNamespace(unpack=_unpack)  # else it compiles for a minute, and needs a compiler
        model = nn.Sequential(layer)
        quantize(model, weights=qtypes[weights])
        if frozen:
            freeze(model)
        return model[0].requires_grad_(False)

    return make


def _unpack(packed: Tensor, bits: int) -> Tensor:
    """Do what the compiled function of the library does, as its own one for other devices: lowest bits first."""
    return torch.cat([packed >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)])


FORMATS = {
    "quanto int8": Format(quanto("qint8"), "quanto", step=INT8, needs="optimum.quanto"),
    "quanto int4": Format(quanto("qint4"), "quanto", step=INT4, needs="optimum.quanto"),
    "quanto fp8": Format(quanto("qfloat8"), "quanto", step=E4M3, needs="optimum.quanto"),
    "quanto int8, not frozen": Format(quanto("qint8", frozen=False), "quanto", step=INT8, needs="optimum.quanto"),
}
