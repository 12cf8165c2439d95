"""Several predictions in one call of a denoiser, for LoRA that keep to their regions.

Attention carries a change from one place to all others. So prediction 0 lacks every LoRA whose `Strength.outside` is
below 1. Each region adds a prediction that has its LoRA, too. The result is prediction 0 plus, place by place, the
difference of each other prediction times the weight of its region. Outside of the region the weight is
`Strength.outside`. ComfyUI's hooks with a mask join predictions likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from ..errors import RegionError
from .regions import NOWHERE, LatentGrid, TokenGrid, TokenLayout
from .stack_strengths import Confined
from .table import StrengthTable


def kept(value: Any) -> Any:
    """Return the arguments of a call for another one: some models take tensors out of lists that they are given."""
    if isinstance(value, dict):
        return {key: kept(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)([kept(one) for one in value])
    return value


def refuse_graph() -> None:
    """Raise RegionError while a CUDA graph is recorded, which would replay the strengths of the last prediction."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RegionError("a LoRA with `outside` below 1 cannot be recorded in a CUDA graph; write outside=1")


Others = Sequence[tuple[Any, Sequence[Confined | None]]]
"""The outputs of the other predictions, and what keeps to its region in each row; None where nothing does."""


def joined(table: StrengthTable, latents: LatentGrid, base: Any, others: Others) -> Any:
    """Return what all predictions of a call make together.

    Args:
        table: keeps the weights of regions on the device.
        latents: of the call.
        base: the output of prediction 0: a tensor, a list of one for each picture, or an output of diffusers.
        others: of the other predictions.

    Raises:
        RegionError: an output does not show where its numbers lie in the picture.
    """
    if isinstance(base, Tensor):
        return _joined_tensors(table, latents, base, others)
    if isinstance(base, Mapping) and base:
        name, whole = next(iter(base)), copy(base)
        of_name = joined(table, latents, base[name], [(one[name], rows) for one, rows in others])
        whole[name] = of_name  # type: ignore[index]
        return whole
    if isinstance(base, list) and len(base) == latents.rows and all(isinstance(one, Tensor) for one in base):
        each = [[(other[i][None], rows[i : i + 1] or rows) for other, rows in others] for i in range(len(base))]
        return [_joined_tensors(table, latents, one[None], own)[0] for one, own in zip(base, each, strict=True)]
    if isinstance(base, list | tuple) and base:
        first = joined(table, latents, base[0], [(one[0], rows) for one, rows in others])
        return type(base)([first, *base[1:]])
    raise RegionError(f"a LoRA with `outside` below 1 acts on a model whose output is {type(base).__name__}")


def _joined_tensors(table: StrengthTable, latents: LatentGrid, base: Tensor, others: Others) -> Tensor:
    layout = _layout(base, latents)
    exact = base if base.dtype == torch.float64 else base.float()
    total = exact.clone()
    for other, rows in others:
        total += (other.to(exact.dtype) - exact) * _weights(table, layout, rows, exact)
    return total.to(base.dtype)


def _layout(y: Tensor, latents: LatentGrid) -> TokenLayout:
    """Return how an output lies in the picture: a map, or tokens."""
    if y.ndim >= 4:
        sizes = (*(1,) * (y.ndim - 4), *y.shape[-2:])
        return TokenLayout(TokenGrid(y.shape[-2], y.shape[-1]), sizes, 1, channels_first=True)
    grid = latents.token_grid(y.shape[1]) if y.ndim == 3 else None
    if grid is None:
        text = f"a LoRA with `outside` below 1 needs to know where the output {tuple(y.shape)} of its model lies in"
        raise RegionError(f"{text} the picture; write outside=1")
    return TokenLayout(grid, (y.shape[1],), 1, channels_first=False)


def _weights(table: StrengthTable, layout: TokenLayout, rows: Sequence[Confined | None], like: Tensor) -> Tensor:
    """Return the weights of a difference at each place, with as many dimensions as the output."""
    different = rows[:1] if len(set(rows)) == 1 else rows
    regions = tuple([(NOWHERE if one is None else one.region,) for one in different])
    weights = table.region_weights(layout, regions, like, (1,))
    outside = [0.0 if one is None else one.outside for one in different]
    weights = weights.expand(len(outside), *weights.shape[1:])  # one region of rows that differ has one weight
    found = torch.stack([weight * (1 - share) + share for weight, share in zip(weights, outside, strict=True)])
    if len(found) not in (1, len(like)):
        raise RegionError(f"a LoRA with `outside` below 1: {len(like)} rows of output of {len(found)} rows of input")
    return found.view(len(found), 1, *layout.sizes) if layout.channels_first else found
