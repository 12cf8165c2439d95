"""T-LoRA: begun as saved with it, or as singular triplets of the base weight."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from torch import Tensor

from .base import Sample, Shape, Tensors, randn

RANK = 3


def _make(shape: Shape, generator: torch.Generator) -> Tensors:
    ones = (1,) * (len(shape) - 2)
    return {
        "q_layer.weight": randn(generator, RANK, shape[1], *ones),
        "p_layer.weight": randn(generator, shape[0], RANK, *ones),
        "lambda_layer": randn(generator, 1, RANK, size=1.0),
        "alpha": torch.tensor(1.5),
    }


def _make_begun(shape: Shape, generator: torch.Generator) -> Tensors:
    made = _make(shape, generator)
    return {
        **made,
        "base_q": made["q_layer.weight"] + randn(generator, *made["q_layer.weight"].shape),
        "base_p": made["p_layer.weight"] + randn(generator, *made["p_layer.weight"].shape),
        "base_lambda": made["lambda_layer"] + randn(generator, 1, RANK),
    }


def _product(own: Tensors, names: tuple[str, str, str]) -> Tensor:
    p, values, q = (own[name] for name in names)
    return p.flatten(1) @ torch.diag(values.flatten()) @ q.flatten(1)


_NOW = ("p_layer.weight", "lambda_layer", "q_layer.weight")


def _effective_begun(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    delta = _product(own, _NOW) - _product(own, ("base_p", "base_lambda", "base_q"))
    return weight + multiplier * 1.5 / RANK * delta.reshape(weight.shape)


def _effective(chosen: Callable[[int], slice]) -> Callable[[Tensors, Tensor, float], Tensor]:
    def effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
        u, s, v = torch.linalg.svd(weight.flatten(1), full_matrices=False)
        part = chosen(s.shape[0])
        delta = _product(own, _NOW) - u[:, part] @ torch.diag(s[part]) @ v[part]
        return weight + multiplier * 1.5 / RANK * delta.reshape(weight.shape)

    return effective


def _said(**arguments: object) -> dict[str, str]:
    return {"ss_network_args": json.dumps({"algo": "tlora", **arguments})}


_LAYERS = frozenset({"linear", "attention", "conv 1x1"})
SAMPLES = (
    Sample("tlora", "tlora", _make, _effective(lambda count: slice(RANK)), _LAYERS, additive=False),
    Sample(
        "tlora, last",
        "tlora",
        _make,
        _effective(lambda count: slice(count - RANK, count)),
        frozenset({"linear"}),
        metadata=_said(sig_type="last"),
        additive=False,
    ),
    Sample(
        "tlora, middle",
        "tlora",
        _make,
        _effective(lambda count: slice((count - RANK) // 2, (count - RANK) // 2 + RANK)),
        frozenset({"linear"}),
        metadata=_said(sig_type="middle"),
        additive=False,
    ),
    Sample("tlora with what it began as", "tlora", _make_begun, _effective_begun, _LAYERS),
)
