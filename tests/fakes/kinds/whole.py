"""Whole biases and norms that PEFT saves, alone and beside adapters."""

from __future__ import annotations

from dataclasses import replace

import torch

from . import ia3, miss, miss_bat, peanut, peft_glora, road
from .base import PEFT, Sample, Shape, Tensors, randn
from .moslora import effective, make


def _factor(own: Tensors, multiplier: float) -> torch.Tensor:
    return torch.tensor(1.0 - multiplier, dtype=torch.float64)


def _make_beside(shape: Shape, generator: torch.Generator) -> Tensors:
    made = make("mixer")(shape, generator)
    del made["mixer"]
    return {**made, "bias": randn(generator, shape[0])}


def _trained_with(own: Tensors, inner: Sample) -> torch.Tensor:
    """Return the bias that PEFT computes with: the whole one, as the adapter changes it."""
    bias = own["bias"]
    if inner.recipe == "road":
        return road._turn(own, len(bias)) @ bias
    changed = bias if inner.bias_factor is None else bias * inner.bias_factor(own, 1.0)
    return changed if inner.bias is None else changed + inner.bias(own, 1.0)


def _beside(inner: Sample) -> Sample:
    return replace(
        inner,
        name=f"{inner.name}, beside a whole bias",
        recipe=f"{inner.recipe}+whole_bias",
        make=lambda shape, generator: {**inner.make(shape, generator), "bias": randn(generator, shape[0])},
        effective=lambda own, weight, m: inner.effective(_without_bias(own), weight, m),
        bias=lambda own, m: m * _trained_with(own, inner),
        bias_factor=_factor,
        additive=False,
    )


def _without_bias(own: Tensors) -> Tensors:
    return {name: tensor for name, tensor in own.items() if name != "bias"}


_INNER = (*miss.SAMPLES, *miss_bat.SAMPLES, *peanut.SAMPLES, *peft_glora.SAMPLES, *ia3.SAMPLES, *road.SAMPLES)
_ONE_OF_EACH = {sample.recipe: sample for sample in reversed(_INNER) if sample.prefix == PEFT}
SAMPLES = (
    *map(_beside, _ONE_OF_EACH.values()),
    Sample(
        "whole bias alone",
        "set_weight",
        lambda shape, generator: {"bias": randn(generator, shape[0])},
        lambda own, weight, m: weight,
        frozenset({"linear", "conv", "layer norm", "attention out"}),
        bias=lambda own, m: m * own["bias"],
        bias_factor=_factor,
        prefix=PEFT,
        additive=False,
    ),
    Sample(
        "whole norm alone",
        "set_weight",
        lambda shape, generator: {"weight": 1 + randn(generator, *shape), "bias": randn(generator, *shape)},
        lambda own, weight, m: weight + m * (own["weight"] - weight),
        frozenset({"norm"}),
        bias=lambda own, m: m * own["bias"],
        bias_factor=_factor,
        prefix=PEFT,
        additive=False,
    ),
    Sample(
        "lora beside a whole bias",
        "lora+whole_bias",
        _make_beside,
        lambda own, weight, m: effective("mixer")({**own, "mixer": torch.eye(4, dtype=torch.float64)}, weight, m),
        frozenset({"linear", "conv", "attention"}),
        bias=lambda own, m: m * own["bias"],
        bias_factor=_factor,
        prefix=PEFT,
        config={"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "all"},
        additive=False,
    ),
)
