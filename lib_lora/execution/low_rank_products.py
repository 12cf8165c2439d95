"""The low-rank pairs of a layer as one product: added to the layer's output, or for many tokens to its weight.

Adding a pair to the weight costs R * in * out once per call; the pair beside the layer costs R * tokens * (in + out).
The sum is in scratch memory: the base weight is read, never written. Half precision always has the pair beside the
layer, as W + dW would round a small delta away; so have rows and places with strengths of their own.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn

from ..compiler import compiling
from ..placement import scratch
from ..placement.storage import Placement
from ..tensors import TensorFields, autocasts
from .arguments import BaseForward

EXACT = frozenset({torch.float32, torch.float64})
"""Dtypes in which a small change of a weight is not rounded away."""
TORCHS = frozenset(
    cls.forward
    for cls in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    if cls.forward.__globals__ is vars(sys.modules[cls.__module__])
)
"""torch's own forwards, unless other code had replaced them; a wrapper may have their names and their module."""
MARGIN = 1.5
"""How much cheaper the sum must be, as it is written to memory and read again; measured on a CPU, 320 to 2560 wide."""


def pays(layer: nn.Module, base_forward: BaseForward, x: Tensor) -> bool:
    """Tell whether an effective weight is cheaper for a linear layer, and its forward is a plain product."""
    weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
    if weight is None or weight.ndim != 2 or weight.dtype not in EXACT:
        return False
    if hasattr(weight, "__tensor_flatten__"):  # torchao's and quanto's: packed, though their dtype is a plain one
        return False
    out, inside = weight.shape
    if x.numel() * (out + inside) <= MARGIN * inside * inside * out:  # both sides times `in`
        return False
    if x.dtype != weight.dtype or x.device != weight.device or base_forward not in TORCHS:
        return False
    if torch.is_grad_enabled() and (
        x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return False
    return not autocasts(x.device.type)


def effective_linear(layer: nn.Module, x: Tensor, down: Tensor, up: Tensor, strength: Tensor | float) -> Tensor:
    """Compute x (W + up diag(strength) down)^T + b; strength is (R,), or one number for all.

    In compiled code the sum is a tensor of the graph, whose memory the compiler plans.
    """
    weight = layer._parameters["weight"]
    assert weight is not None  # `pays` said so
    if isinstance(strength, Tensor):
        up, strength = up * strength, 1.0
    if compiling():
        total = torch.addmm(weight, up, down, alpha=strength)
    else:
        total = scratch.take("linear", weight, weight.dtype)
        with torch.no_grad():
            torch.addmm(weight, up, down, alpha=strength, out=total)
    return F.linear(x, total, layer._parameters.get("bias"))


@dataclass(frozen=True, slots=True, eq=False)
class FusedPair(TensorFields):
    """The low-rank pairs of a layer as one."""

    down: Tensor  # (R, in, *kernel), R = sum of ranks
    up: Tensor  # (out, R)


class PlainPair(NamedTuple):
    """The fused pair of a layer for eager calls in which all rows and places have the same strengths.

    It is made when the pair is placed. Where one number is the strength of all components, the second product takes it
    as a factor, and a call costs two products beside the layer's own. Several numbers are a vector, and cost a third.
    """

    placed: Placement[Any]
    """That it is made from, in the dtype of the layer's input and output."""
    pair: FusedPair
    spatial: int
    """Dimensions behind the channels; 0 for a linear layer."""
    down: Tensor
    """(R, in, *kernel); (in, R) for a linear layer."""
    up: Tensor
    """(out, R); (R, out) for a linear layer."""
    group: int
    """The strength group of the first component."""
    scale: float
    """The factor on the number of the group."""
    vector: Tensor | None
    """(R, *ones), which the strength table writes; None where one number is the strength of all components."""
    many: float
    """The effective weight is cheaper for inputs of more entries."""

    @classmethod
    def of(cls, placed: Placement[Any], pair: FusedPair, group: int, scale: float, vector: Tensor | None) -> PlainPair:
        """Make the views of a placed pair."""
        spatial, down, up = pair.down.ndim - 2, pair.down, pair.up
        if spatial:
            return cls(placed, pair, spatial, down, up, group, scale, vector, math.inf)
        inside, out = down.shape[1], up.shape[0]
        many = MARGIN * inside * inside * out / (out + inside) if up.dtype in EXACT else math.inf
        return cls(placed, pair, 0, down.t(), up.t(), group, scale, vector, many)


def add_plain(
    plain: PlainPair, strength: Tensor | float, layer: nn.Module, x: Tensor, y: Tensor, *, fresh: bool
) -> Tensor:
    """Compute y + up (strength * (down x)), in place if `y` is `fresh`: if nothing else holds it."""
    if plain.spatial:
        h: Tensor = layer._conv_forward(x, plain.down, None)  # type: ignore[operator]
        if isinstance(strength, Tensor):  # a layer may have a product of its own, whose output others may hold
            h, strength = h.mul_(strength) if fresh else h * strength, 1.0
        return _add_conv(h, y, plain.up, strength, plain.spatial, fresh=fresh)
    h = torch.mm(x if x.ndim == 2 else x.reshape(-1, plain.down.shape[0]), plain.down)
    if isinstance(strength, Tensor):
        h, strength = h.mul_(strength), 1.0
    return _add_linear(h, y, plain.up, strength, fresh=fresh)


def add_pair(layer: nn.Module, x: Tensor, y: Tensor, pair: FusedPair, strength: Tensor, *, fresh: bool) -> Tensor:
    """Compute y + up (strength * (down x)) of a linear layer or a convolution, in place if `y` is `fresh`.

    `x` is in the dtype of `y`. `strength` is (R, *ones), or has the rows and places of `y` in front; see
    `LayerStrengths`.
    """
    if pair.down.ndim > 2:
        # the layer's own stride, padding and padding mode, read now: A1111's tiling switches the mode between calls
        h: Tensor = layer._conv_forward(x, pair.down, None)  # type: ignore[operator]
        return _add_conv(h * strength, y, pair.up, 1.0, pair.down.ndim - 2, fresh=fresh)
    h = F.linear(x, pair.down) * strength
    return _add_linear(h.view(-1, h.shape[-1]), y, pair.up.t(), 1.0, fresh=fresh)


def is_fresh(layer: nn.Module, y: Tensor, base_forward: BaseForward) -> bool:
    """Tell whether nothing else holds an output, as torch's own forward has just made it, and no gradient needs it."""
    # a convolution may have a product of its own, whose output other code may hold
    return base_forward in TORCHS and not y.requires_grad and "_conv_forward" not in layer.__dict__


def _add_linear(h: Tensor, y: Tensor, up: Tensor, strength: float, *, fresh: bool) -> Tensor:
    """Add the second product of a linear layer: h (tokens, R), up (R, out)."""
    out = up.shape[1]
    if fresh and y.is_contiguous():
        (y if y.ndim == 2 else y.view(-1, out)).addmm_(h, up, alpha=strength)
        return y
    return torch.addmm(y.reshape(-1, out), h, up, alpha=strength).view(y.shape)


def _add_conv(h: Tensor, y: Tensor, up: Tensor, strength: float, spatial: int, *, fresh: bool) -> Tensor:
    """Add the second product of a convolution: h (rows, R, places), up (out, R)."""
    out, rank = up.shape
    if y.ndim == spatial + 2 and y.is_contiguous() and h.is_contiguous():
        rows, flat, h = y.shape[0], y.flatten(2), h.flatten(2)
        if not fresh:
            return torch.baddbmm(flat, up.expand(rows, out, rank), h, alpha=strength).view(y.shape)
        if rows == 1:
            flat[0].addmm_(up, h[0], alpha=strength)
        else:
            flat.baddbmm_(up.expand(rows, out, rank), h, alpha=strength)
        return y
    if fresh and y.ndim == 4 and y.is_contiguous(memory_format=torch.channels_last):
        flat = y.permute(0, 2, 3, 1).view(-1, out)
        flat.addmm_(h.permute(0, 2, 3, 1).reshape(-1, rank), up.t(), alpha=strength)
        return y
    convolve = (F.conv1d, F.conv2d, F.conv3d)[spatial - 1]
    return torch.add(y, convolve(h, up.view(out, rank, *(1,) * spatial)), alpha=strength)


def stacked(
    parts: Sequence[Tensor],
    dim: int,
    device: torch.device,
    dtype: torch.dtype,
    rows: Sequence[tuple[int, int] | None] = (),
    outputs: int = 0,
    *,
    length: int = 0,
) -> Tensor:
    """Stack tensors along `dim` in new memory, as the file that they are views of may be replaced.

    Args:
        parts: tensors of equal size in the other dimensions, except as `rows` tells.
        dim: the dimension.
        device: the device of the result.
        dtype: the dtype of the result.
        rows: the rows of the result that each part fills; None for all. The others are zero.
        outputs: the rows of the result, if one of `rows` is not None.
        length: the least size along `dim`, filled up with zeros.
    """
    windows, filled = any(rows), 0
    for part in parts:
        filled += part.shape[dim]
    shape = list(parts[0].shape)
    shape[dim] = max(filled, length)
    if windows:
        shape[0] = outputs
    stacked = (torch.zeros if windows or length > filled else torch.empty)(shape, device=device, dtype=dtype)
    start = 0
    for i, part in enumerate(parts):
        place = stacked.narrow(dim, start, part.shape[dim])
        window = rows[i] if windows else None
        (place if window is None else place[slice(*window)]).copy_(part)
        start += part.shape[dim]
    return stacked
