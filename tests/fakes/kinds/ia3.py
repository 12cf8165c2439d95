"""(IA)^3 of LyCORIS and PEFT."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn

EARLY = {"ss_training_started_at": "1716500000"}  # 2024-05-23
UNGROUPED = frozenset({"linear", "conv", "attention"})


def _make(*, on_input: bool, groups: int = 1):
    def make(shape: Shape, generator: torch.Generator) -> Tensors:
        channels = shape[1] * groups if on_input else shape[0]
        size = (channels,) if len(shape) == 2 else (1, channels, *(1,) * (len(shape) - 2))
        return {"weight": randn(generator, *size), "on_input": torch.tensor(int(on_input))}

    return make


def _scale(own: Tensors, multiplier: float) -> Tensor:
    return 1 + multiplier * own["weight"].reshape(-1)


def _inputs(weight: Tensor, scale: Tensor) -> Tensor:
    """Each input channel, or each group's, times its own factor."""
    ones = (1,) * (weight.ndim - 2)
    parts = weight.chunk(scale.numel() // weight.shape[1])
    return torch.cat(
        [part * own.reshape(1, -1, *ones) for part, own in zip(parts, scale.chunk(len(parts)), strict=True)]
    )


def _outputs(weight: Tensor, scale: Tensor) -> Tensor:
    return weight * scale.reshape(-1, *(1,) * (weight.ndim - 1))


def _make_peft(*, on_input: bool, groups: int = 1):
    def make(shape: Shape, generator: torch.Generator) -> Tensors:
        channels = shape[1] * groups if on_input else shape[0]
        row = on_input or len(shape) > 2
        size = (1, channels, *(1,) * (len(shape) - 2)) if row else (channels, 1)
        return {"ia3_l": 1 + randn(generator, *size)}

    return make


def _peft_scale(own: Tensors, multiplier: float) -> Tensor:
    return 1 + multiplier * (own["ia3_l"].reshape(-1) - 1)


FEEDFORWARD = {"feedforward_modules": ".*"}

SAMPLES = (
    Sample(
        "ia3 on the output",
        "ia3",
        _make(on_input=False),
        lambda own, weight, m: _outputs(weight, _scale(own, m)),
        additive=False,
    ),
    Sample(
        "ia3 on the output, early",
        "ia3",
        _make(on_input=False),
        lambda own, weight, m: _outputs(weight, _scale(own, m)),
        bias_factor=_scale,
        metadata=EARLY,
        additive=False,
    ),
    Sample(
        "ia3 on the input",
        "ia3",
        _make(on_input=True),
        lambda own, weight, m: _inputs(weight, _scale(own, m)),
        additive=False,
    ),
    Sample(
        "ia3 on all groups' inputs",
        "ia3",
        _make(on_input=True, groups=4),
        lambda own, weight, m: _inputs(weight, _scale(own, m)),
        frozenset({"grouped"}),
        additive=False,
    ),
    Sample(
        "ia3 of peft",
        "peft_ia3",
        _make_peft(on_input=False),
        lambda own, weight, m: _outputs(weight, _peft_scale(own, m)),
        bias_factor=_peft_scale,
        prefix=PEFT,
        config={"feedforward_modules": []},
        additive=False,
    ),
    Sample(
        "ia3 of peft, feed-forward",
        "peft_ia3",
        _make_peft(on_input=True),
        lambda own, weight, m: _inputs(weight, _peft_scale(own, m)),
        UNGROUPED,
        prefix=PEFT,
        config=FEEDFORWARD,
        additive=False,
    ),
    Sample(
        "ia3 of peft, feed-forward, grouped",
        "peft_ia3",
        _make_peft(on_input=True, groups=4),
        lambda own, weight, m: _inputs(weight, _peft_scale(own, m)),
        frozenset({"grouped"}),
        prefix=PEFT,
        config=FEEDFORWARD,
        additive=False,
    ),
)
