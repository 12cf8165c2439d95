"""optimum-quanto."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from .base import E4M3, INT4, INT8, Format


def quanto(weights: str, *, frozen: bool = True) -> Callable[[nn.Linear], nn.Module]:
    def make(layer: nn.Linear) -> nn.Module:
        from optimum.quanto import freeze, qtypes, quantize

        model = nn.Sequential(layer)
        quantize(model, weights=qtypes[weights])
        if frozen:
            freeze(model)
        return model[0].requires_grad_(False)

    return make


FORMATS = {
    "quanto int8": Format(quanto("qint8"), "quanto", step=INT8, needs="optimum.quanto"),
    "quanto int4": Format(quanto("qint4"), "quanto", step=INT4, needs="optimum.quanto"),
    "quanto fp8": Format(quanto("qfloat8"), "quanto", step=E4M3, needs="optimum.quanto"),
    "quanto int8, not frozen": Format(quanto("qint8", frozen=False), "quanto", step=INT8, needs="optimum.quanto"),
}
