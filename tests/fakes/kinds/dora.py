"""DoRA around other kinds, along rows and along columns."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .base import PEFT, Sample, Shape, Tensors, randn
from .full import _residual_effective as residual_effective
from .loha import _effective as loha_effective
from .loha import _make as make_loha
from .lora import _effective as lora_effective
from .lora import _effective_tucker as tucker_effective
from .lora import _make as make_lora
from .lora import _make_tucker as make_tucker

Effective = Callable[[Tensors, Tensor, float], Tensor]


def _magnitude(generator: torch.Generator, *shape: int) -> Tensor:
    return 1.0 + torch.rand(*shape, generator=generator)


def _rows(inner: Effective) -> Effective:
    def effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
        whole = inner(own, weight, 1.0)
        out = weight.shape[0]
        norm = torch.stack([row.square().sum().sqrt() for row in whole])
        magnitude = own.get("dora_scale", own.get("lora_magnitude_vector")).reshape(out)
        scaled = whole * (magnitude / norm).reshape(out, *(1,) * (weight.ndim - 1))
        return weight + multiplier * (scaled - weight)

    return effective


def _columns(inner: Effective) -> Effective:
    def effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
        whole = inner(own, weight, 1.0)
        inside = weight.shape[1]
        norm = torch.stack([whole[:, i].square().sum().sqrt() for i in range(inside)])
        scaled = whole * (own["dora_scale"].reshape(inside) / norm).reshape(1, inside, *(1,) * (weight.ndim - 2))
        return weight + multiplier * (scaled - weight)

    return effective


def _grouped(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    whole = lora_effective(own, weight, 1.0)
    scale = own["dora_scale"]
    parts = []
    for part, magnitude in zip(whole.chunk(scale.shape[0]), scale, strict=True):
        norm = part.square().sum((0, *range(2, part.ndim)), keepdim=True).sqrt()
        parts.append(part * magnitude / norm)
    return weight + multiplier * (torch.cat(parts) - weight)


def _make_rows(shape: Shape, generator: torch.Generator) -> Tensors:
    return {**make_lora(shape, generator), "dora_scale": _magnitude(generator, shape[0], *(1,) * (len(shape) - 1))}


def _make_columns(shape: Shape, generator: torch.Generator) -> Tensors:
    scale = _magnitude(generator, 1, shape[1], *(1,) * (len(shape) - 2))
    return {**make_lora(shape, generator), "dora_scale": scale}


def _make_peft(shape: Shape, generator: torch.Generator) -> Tensors:
    made = make_lora(shape, generator)
    ones = (1,) * (len(shape) - 2)
    return {
        "lora_A.weight": made["lora_down.weight"],
        "lora_B.weight": made["lora_up.weight"],
        "lora_magnitude_vector": _magnitude(generator, *((1, shape[0], *ones) if ones else (shape[0],))),
    }


def _peft_effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    renamed = {
        "lora_down.weight": own["lora_A.weight"],
        "lora_up.weight": own["lora_B.weight"],
        "dora_scale": own["lora_magnitude_vector"],
    }
    return _rows(lora_effective)(renamed, weight, multiplier)


def _make_residual(shape: Shape, generator: torch.Generator) -> Tensors:
    from .full import _make_residual as make

    return {**make(shape, generator), "dora_scale": _magnitude(generator, shape[0], *(1,) * (len(shape) - 1))}


def _make_full(shape: Shape, generator: torch.Generator) -> Tensors:
    return {
        "diff": randn(generator, *shape),
        "dora_scale": _magnitude(generator, 1, *shape[1:2], *(1,) * len(shape[2:])),
    }


SAMPLES = (
    Sample("dora by rows", "lora+dora", _make_rows, _rows(lora_effective), additive=False),
    Sample("dora by columns", "lora+dora", _make_columns, _columns(lora_effective), additive=False),
    Sample(
        "dora by columns of each group",
        "lora+dora",
        lambda shape, generator: {
            **make_lora(shape, generator),
            "dora_scale": _magnitude(generator, 4, 1, shape[1], *(1,) * (len(shape) - 2)),
        },
        _grouped,
        frozenset({"grouped"}),
        additive=False,
    ),
    Sample(
        "dora of peft",
        "lora+dora",
        _make_peft,
        _peft_effective,
        prefix=PEFT,
        config={"r": 4, "lora_alpha": 2},
        additive=False,
    ),
    Sample(
        "dora around a tucker core",
        "lora+dora",
        lambda shape, generator: {
            **make_tucker(shape, generator),
            "dora_scale": _magnitude(generator, shape[0], *(1,) * (len(shape) - 1)),
        },
        _rows(tucker_effective),
        frozenset({"conv", "grouped"}),
        additive=False,
    ),
    Sample(
        "dora around a full difference",
        "full+dora",
        _make_full,
        _columns(lambda own, weight, m: weight + m * own["diff"]),
        additive=False,
    ),
    Sample(
        "dora around loha",
        "loha+dora",
        lambda shape, generator: {
            **make_loha(2)(shape, generator),
            "dora_scale": _magnitude(generator, shape[0], *(1,) * (len(shape) - 1)),
        },
        _rows(loha_effective(1 / 2)),
        frozenset({"linear, many tokens"}),
        additive=False,
    ),
    Sample(
        "dora around lora and a residual",
        "lora+residual+dora",
        _make_residual,
        _rows(residual_effective),
        additive=False,
    ),
)
