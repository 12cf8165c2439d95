"""WaveFT with Haar's wavelet, square by square. PEFT tuners/waveft/layer.py, `get_delta_weight`."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn

_COUNT, _SEED = 70, 12


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    return {"waveft_spectrum": randn(generator, _COUNT, size=1.0)}


def _places(weight: Tensor) -> list[tuple[int, int]]:
    drawn = torch.randperm(weight.numel(), generator=torch.Generator().manual_seed(_SEED))[:_COUNT]
    return [divmod(place, weight.shape[1]) for place in drawn.tolist()]


def _effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    made, (high, wide) = weight.clone(), (weight.shape[0] // 2, weight.shape[1] // 2)
    for value, (row, column) in zip(own["waveft_spectrum"], _places(weight), strict=True):
        # the high filter of the rows where the number is on the right, that of the columns where it is below
        for i in range(2):
            for j in range(2):
                sign = (-1) ** (i * (column >= wide) + j * (row >= high))
                made[2 * (row % high) + i, 2 * (column % wide) + j] += multiplier * 3.0 * sign * value / 2
    return made


def _effective_itself(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    made = weight.clone()
    for value, place in zip(own["waveft_spectrum"], _places(weight), strict=True):
        made[place] += multiplier * 3.0 * value
    return made


_CONFIG = {"peft_type": "WAVEFT", "random_loc_seed": _SEED, "scaling": 3.0}
_LAYERS = frozenset({"linear", "attention"})
SAMPLES = (
    Sample("waveft", "waveft", _make, _effective, _LAYERS, prefix=PEFT, config=_CONFIG | {"wavelet_family": "db1"}),
    Sample(
        "waveft, no wavelets",
        "waveft",
        _make,
        _effective_itself,
        frozenset({"linear"}),
        prefix=PEFT,
        config=_CONFIG | {"use_idwt": False},
    ),
)
