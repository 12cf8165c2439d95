"""Kinds that hold the change itself: full differences, norms, set weights, biases and sparse residuals."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import Sample, Shape, Tensors, randn
from .lora import _effective as lora_effective
from .lora import _make as make_lora

PRODUCTS = frozenset({"linear", "conv", "grouped", "attention"})
NORM = frozenset({"norm"})
NORMS = frozenset({"norm", "norm without bias"})


def _make_full(shape: Shape, generator: torch.Generator) -> Tensors:
    return {"diff": randn(generator, *shape)}


def _make_both(shape: Shape, generator: torch.Generator) -> Tensors:
    return {"diff": randn(generator, *shape), "diff_b": randn(generator, shape[0])}


def _make_norm(shape: Shape, generator: torch.Generator) -> Tensors:
    return {"w_norm": randn(generator, *shape), "b_norm": randn(generator, *shape)}


def _make_residual(shape: Shape, generator: torch.Generator) -> Tensors:
    inside = torch.Size(shape[1:]).numel()
    places = torch.randperm(shape[0] * inside, generator=generator)[:40]
    return {
        **make_lora(shape, generator),
        "bias_indices": torch.stack([places // inside, places % inside]),
        "bias_values": randn(generator, 40, size=1.0),
        "bias_size": torch.tensor([shape[0], inside]),
    }


def _residual_effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    sparse = torch.zeros_like(weight).flatten(1)
    for (row, column), value in zip(own["bias_indices"].T.long().tolist(), own["bias_values"].tolist(), strict=True):
        sparse[row, column] += value
    return lora_effective(own, weight, multiplier) + multiplier * 0.5 * sparse.reshape(weight.shape)


SAMPLES = (
    Sample(
        "full",
        "full",
        _make_full,
        lambda own, weight, m: weight + m * own["diff"],
        PRODUCTS | NORMS | {"embedding"},
    ),
    Sample(
        "full with bias",
        "full",
        _make_both,
        lambda own, weight, m: weight + m * own["diff"],
        PRODUCTS | NORM,
        bias=lambda own, m: m * own["diff_b"],
    ),
    Sample(
        "bias alone",
        "full",
        lambda shape, generator: {"diff_b": randn(generator, shape[0])},
        lambda own, weight, m: weight,
        PRODUCTS | NORM,
        bias=lambda own, m: m * own["diff_b"],
    ),
    Sample(
        "norm",
        "norm",
        _make_norm,
        lambda own, weight, m: weight + m * own["w_norm"],
        NORM,
        bias=lambda own, m: m * own["b_norm"],
    ),
    Sample(
        "norm without bias",
        "norm",
        lambda shape, generator: {"w_norm": randn(generator, *shape)},
        lambda own, weight, m: weight + m * own["w_norm"],
        NORMS,
    ),
    Sample(
        "set weight",
        "set_weight",
        lambda shape, generator: {"set_weight": randn(generator, *shape)},
        lambda own, weight, m: weight + m * (own["set_weight"] - weight),
        PRODUCTS | NORMS | {"embedding"},
        additive=False,
    ),
    Sample(
        "set weight and bias",
        "set_weight",
        lambda shape, generator: {"set_weight": randn(generator, *shape), "set_bias": randn(generator, shape[0])},
        lambda own, weight, m: weight + m * (own["set_weight"] - weight),
        frozenset({"linear, many tokens", "conv 1x1", "layer norm"}),
        bias=lambda own, m: m * own["set_bias"],
        bias_factor=lambda own, m: torch.tensor(1.0 - m, dtype=torch.float64),
        additive=False,
    ),
    Sample(
        "lora beside a change of the bias",
        "lora+bias",
        lambda shape, generator: {**make_lora(shape, generator), "diff_b": randn(generator, shape[0])},
        lora_effective,
        bias=lambda own, m: m * own["diff_b"],
    ),
    Sample("lora with a sparse residual", "lora+residual", _make_residual, _residual_effective),
)
