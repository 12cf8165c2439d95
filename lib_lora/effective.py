"""A linear layer and its fused pair as one product: with many tokens, adding the pair to the weight first is cheaper.

Adding costs R * in * out, once per call; the pair beside the layer costs R * tokens * (in + out). Rows of the batch
with strengths of their own take a sum each. Sums lie in scratch memory: the base weight is read, never written. Only in
dtypes in which the sum loses nothing that matters: in half precision a small delta would drown in the rounding of
W + dW, which is what the pair beside the layer is for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn

from . import scratch
from .spread import Grouped
from .tensors import autocasts, compiling

if TYPE_CHECKING:
    from .patch import BaseForward

EXACT = frozenset({torch.float32, torch.float64})
"""Dtypes in which a small change of a weight is not rounded away."""
_PICKING = 24
"""What picking places out and putting them back costs, as a rank: measured on a CPU, 320 to 2560 wide."""
_MARGIN = 1.5  # the sum is written to memory and read again: measured break-even on a CPU, 320 to 2560 wide


def pays(layer: nn.Module, base_forward: BaseForward, x: Tensor, sums: int = 1) -> bool:
    """Whether to compute `layer` by an effective weight: the sum is cheaper, and nothing but a plain product is lost.

    Args:
        layer: a linear layer.
        base_forward: what it runs by itself.
        x: its input.
        sums: how many strengths the rows of the batch have.
    """
    weight = layer._parameters.get("weight")
    if weight is None or weight.ndim != 2 or weight.dtype not in EXACT:
        return False
    if hasattr(weight, "__tensor_flatten__"):  # torchao's and quanto's: packed, whatever dtype they show
        return False
    out, inside = weight.shape
    if x.numel() * (out + inside) <= _MARGIN * sums * inside * inside * out:  # both sides times `in`
        return False
    if x.dtype != weight.dtype or x.device != weight.device or not is_torchs(base_forward):
        return False
    if torch.is_grad_enabled() and any(one.requires_grad for one in (x, *_own(layer))):
        return False
    return not compiling() and not autocasts(x.device.type)


def _own(layer: nn.Module) -> list[Tensor]:
    return [parameter for parameter in layer._parameters.values() if parameter is not None]


def is_torchs(base_forward: BaseForward) -> bool:
    """Whether a linear layer runs torch's own forward, the product and nothing else."""
    return getattr(base_forward, "__module__", "") == nn.Linear.__module__


def effective_linear(layer: nn.Module, x: Tensor, down: Tensor, up: Tensor, strength: Tensor) -> Tensor:
    """x (W + up diag(strength) down)^T + b.

    Args:
        layer: a linear layer with a plain weight (out, in).
        x: (…, in).
        down: (R, in).
        up: (out, R).
        strength: (R,).
    """
    return F.linear(x, _sum(layer, down, up, strength), layer._parameters.get("bias"))


def effective_rows(
    layer: nn.Module, x: Tensor, down: Tensor, up: Tensor, rows: Sequence[int], strength: Callable[[int], Tensor]
) -> Tensor:
    """The same, for rows of a batch that have strengths of their own.

    Args:
        layer: see above.
        x: (rows * n, …, in).
        down: see above.
        up: see above.
        rows: of which image each is.
        strength: of an image, (R,).
    """
    by_row = x.reshape(len(rows), -1, x.shape[-1])
    y = by_row.new_empty(*by_row.shape[:2], up.shape[0])
    bias = layer._parameters.get("bias")
    with torch.no_grad():
        for image in dict.fromkeys(rows):
            total = _sum(layer, down, up, strength(image)).t()
            for row in (i for i, one in enumerate(rows) if one == image):
                if bias is None:
                    torch.mm(by_row[row], total, out=y[row])
                else:
                    torch.addmm(bias, by_row[row], total, out=y[row])
    return y.view(*x.shape[:-1], up.shape[0])


def least_alike(layer: nn.Module, x: Tensor) -> int:
    """How many places of x (rows, places, in) must have the same strengths, or a sum for them does not pay."""
    weight = layer._parameters["weight"]
    assert weight is not None
    out, inside = weight.shape
    return math.ceil(_MARGIN * inside * out / (inside + out) / x.shape[0])


def grouping_pays(grouped: Grouped, layer: nn.Module, x: Tensor, rank: int) -> bool:
    """Whether sums for groups of places, and what it takes to pick them out, cost less than the pair beside all."""
    weight = layer._parameters["weight"]
    assert weight is not None
    out, inside = weight.shape
    summed = sum(len(one.factors) for one in grouped.alike)
    by_groups = _MARGIN * summed * inside * out / x.shape[0]
    by_groups += (_PICKING * x.shape[1] + rank * len(grouped.rest)) * (inside + out)
    return by_groups < rank * x.shape[1] * (inside + out)


def effective_places(
    layer: nn.Module, x: Tensor, down: Tensor, up: Tensor, strength: Tensor, grouped: Grouped
) -> Tensor:
    """The same, for places that have strengths of their own.

    Args:
        layer: see above.
        x: (rows, places, in).
        down: see above.
        up: see above.
        strength: see above; it is multiplied by the weights of a place.
        grouped: the places.
    """
    weight, bias = layer._parameters["weight"], layer._parameters.get("bias")
    assert weight is not None
    y = x.new_empty(*x.shape[:2], up.shape[0])
    for one in grouped.alike:
        own = x.index_select(1, one.places)
        if not len(one.factors):
            y.index_copy_(1, one.places, F.linear(own, weight, bias))
            continue
        acting = down, up, strength
        if len(one.factors) < len(strength):
            acting = down[one.factors], up[:, one.factors], strength[one.factors]
        y.index_copy_(1, one.places, effective_linear(layer, own, *acting[:2], acting[2] * one.weights))
    if len(grouped.rest):
        own = x.index_select(1, grouped.rest)
        h = F.linear(own, down) * (strength * grouped.rest_weights)
        y.index_copy_(1, grouped.rest, F.linear(own, weight, bias) + F.linear(h, up))
    return y


def _sum(layer: nn.Module, down: Tensor, up: Tensor, strength: Tensor) -> Tensor:
    weight = layer._parameters["weight"]
    assert weight is not None  # `pays` said so
    total = scratch.take("linear", weight, weight.dtype)
    with torch.no_grad():
        return torch.addmm(weight, up * strength, down, out=total)
