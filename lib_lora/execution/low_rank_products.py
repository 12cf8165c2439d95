"""The low-rank pairs of a layer as one product: added to the layer's output, or with many tokens to the weight first.

Adding a pair to the weight costs R * in * out once per call; the pair beside the layer costs R * tokens * (in + out).
The sum is in scratch memory: the base weight is read, never written. Half precision is left out: a small delta would be
lost in the rounding of W + dW. Rows and places with strengths of their own have the pair beside the layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn

from ..compiler import compiling
from ..placement import scratch
from ..registry import Tuner
from ..tensors import TensorFields, autocasts

if TYPE_CHECKING:
    from ..weights.operation import BaseForward


EXACT = frozenset({torch.float32, torch.float64})
"""Dtypes in which a small change of a weight is not rounded away."""
_TORCHS = nn.Linear.forward if nn.Linear.forward.__globals__ is vars(torch.nn.modules.linear) else None
"""torch's own forward; None if something else had replaced it already. A wrapper may have its name and its module."""
MARGIN = 1.5
"""How much cheaper the sum must be, as it is written to memory and read again: measured on a CPU, 320 to 2560 wide."""


def pays(layer: nn.Module, base_forward: BaseForward, x: Tensor) -> bool:
    """Tell whether an effective weight is cheaper for `layer`, and replaces nothing but a plain product.

    Args:
        layer: a linear layer.
        base_forward: what it runs by itself.
        x: its input.
    """
    weight = layer._parameters.get("weight")
    if weight is None or weight.ndim != 2 or weight.dtype not in EXACT:
        return False
    if hasattr(weight, "__tensor_flatten__"):  # torchao's and quanto's: packed, whatever dtype they show
        return False
    out, inside = weight.shape
    if x.numel() * (out + inside) <= MARGIN * inside * inside * out:  # both sides times `in`
        return False
    if x.dtype != weight.dtype or x.device != weight.device or not is_torchs(base_forward):
        return False
    if torch.is_grad_enabled() and any(one.requires_grad for one in (x, *_own(layer))):
        return False
    return not autocasts(x.device.type)


def _own(layer: nn.Module) -> list[Tensor]:
    return [parameter for parameter in layer._parameters.values() if parameter is not None]


def is_torchs(base_forward: BaseForward) -> bool:
    """Tell whether a linear layer runs torch's own forward, the product and nothing else."""
    return base_forward is _TORCHS


def effective_linear(layer: nn.Module, x: Tensor, down: Tensor, up: Tensor, strength: Tensor) -> Tensor:
    """Compute x (W + up diag(strength) down)^T + b.

    In compiled code the sum is a tensor of the graph, which knows best where to put it.

    Args:
        layer: a linear layer with a plain weight (out, in).
        x: (…, in).
        down: (R, in).
        up: (out, R).
        strength: (R,).
    """
    weight = layer._parameters["weight"]
    assert weight is not None  # `pays` said so
    if compiling():
        total = torch.addmm(weight, up * strength, down)
    else:
        total = scratch.take("linear", weight, weight.dtype)
        with torch.no_grad():
            torch.addmm(weight, up * strength, down, out=total)
    return F.linear(x, total, layer._parameters.get("bias"))


@dataclass(frozen=True, slots=True, eq=False)
class FusedPair(TensorFields):
    """The low-rank pairs of a layer as one."""

    down: Tensor  # (R, in, *kernel), R = sum of ranks
    up: Tensor  # (out, R)


def add_pair(
    kind: str,
    layer: nn.Module,
    x: Tensor,
    y: Tensor,
    pair: FusedPair,
    strength: Tensor,
    base_forward: BaseForward,
    tuner: Tuner | None = None,
) -> Tensor:
    """Compute y + up (strength * (down x)), in place where nothing else holds `y`.

    Args:
        kind: `linear`, `conv` or `embedding`.
        layer: the layer.
        x: its input, in the dtype of `y`, or indices.
        y: its output.
        pair: of it.
        strength: (R, *ones), or with the rows and places of `y` in front; see `LayerStrengths`.
        base_forward: what made `y`.
        tuner: adds the pair of a linear layer where it knows a faster way than torch's products.
    """
    if kind == "conv":
        return _add_conv(layer, x, y, pair, strength)
    if kind == "embedding":
        return y + (F.embedding(x, pair.up) * strength) @ pair.down
    # torch's own forward has just made y, so nothing else holds it
    fresh = is_torchs(base_forward) and not y.requires_grad and y.is_contiguous()
    if fresh and tuner is not None and tuner.add_pair_(y, x, pair.down, pair.up, strength):
        return y
    return _add_linear(F.linear(x, pair.down) * strength, y, pair, fresh=fresh)


def _add_linear(h: Tensor, y: Tensor, pair: FusedPair, *, fresh: bool) -> Tensor:
    if not y.is_contiguous():
        return y + F.linear(h, pair.up)
    flat, h = y.view(-1, y.shape[-1]), h.view(-1, h.shape[-1])
    if fresh:
        flat.addmm_(h, pair.up.t())
        return y
    return torch.addmm(flat, h, pair.up.t()).view(y.shape)


def _add_conv(layer: nn.Module, x: Tensor, y: Tensor, pair: FusedPair, strength: Tensor) -> Tensor:
    # the layer's own stride, padding and padding mode, read now: A1111's tiling switches the mode between calls
    h: Tensor = layer._conv_forward(x, pair.down, None)  # type: ignore[operator]
    spatial = pair.down.ndim - 2
    h = h * strength
    if y.ndim == spatial + 2 and y.is_contiguous() and h.is_contiguous():
        up = pair.up.expand(y.shape[0], *pair.up.shape)
        return torch.baddbmm(y.flatten(2), up, h.flatten(2)).view(y.shape)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[spatial - 1]
    return y + convolve(h, pair.up.view(*pair.up.shape, *(1,) * spatial))


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
    """Stack tensors in memory of their own: the file that they are views of may be replaced at any time.

    Args:
        parts: matrices, or for convolutions more.
        dim: along which they lie.
        device: where.
        dtype: as what.
        rows: for columns that are shorter than the others, where they begin and end; zero around it.
        outputs: as long as columns are then.
        length: along `dim`, if it is more than they have together; zero behind them.
    """
    windows, filled = False, 0
    for window in rows:
        windows |= window is not None
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
