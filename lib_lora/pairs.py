"""All low-rank pairs of a layer as one: how it is put together, and how it is added to the layer's output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn

from .effective import is_torchs
from .kernels import Chooser
from .tensors import TensorFields

if TYPE_CHECKING:
    from .patch import BaseForward


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
    chooser: Chooser | None = None,
    lowered: Callable[[Tensor, Tensor], Tensor] = F.linear,
) -> Tensor:
    """y + up (strength * (down x)), in place where nobody else holds `y`.

    Args:
        kind: `linear`, `conv` or `embedding`.
        layer: the layer.
        x: its input, in the dtype of `y`, or indices.
        y: its output.
        pair: of it.
        strength: (R, *ones), or with the rows and places of `y` in front; see `Live`.
        base_forward: what made `y`.
        chooser: adds the pair of a linear layer where it knows a faster way than torch's products.
        lowered: makes the first of these products, of x and (R, in).
    """
    if kind == "conv":
        return _add_conv(layer, x, y, pair, strength)
    if kind == "embedding":
        return y + (F.embedding(x, pair.up) * strength) @ pair.down
    # torch's own forward has just made y, so nobody else holds it
    fresh = is_torchs(base_forward) and not y.requires_grad and y.is_contiguous()
    if fresh and chooser is not None and chooser.add_pair_(y, x, pair.down, pair.up, strength):
        return y
    return _add_linear(lowered(x, pair.down) * strength, y, pair, fresh=fresh)


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
    """Own memory in one piece, never a view of the mapped file: that file may be replaced while we compute.

    Args:
        parts: matrices, or for convolutions more.
        dim: along which they lie.
        device: where.
        dtype: as what.
        rows: for columns that are shorter than the others, where they begin and end; zero around it.
        outputs: as long as columns are then.
        length: along `dim`, if it is more than they have together; zero behind them.
    """
    windows = any(window is not None for window in rows)
    shape = list(parts[0].shape)
    filled = sum(part.shape[dim] for part in parts)
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
