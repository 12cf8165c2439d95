"""The low-rank pairs of a layer as one product: added to the layer's output, or with many tokens to the weight first.

Adding a pair to the weight costs R * in * out once per call; the pair beside the layer costs R * tokens * (in + out).
Rows of the batch with strengths of their own take a sum each, or share one where their strengths are multiples of each
other's. Places are sorted by their strengths, for a product each. Sums lie in scratch memory: the base weight is read,
never written. Half precision is left out: a small delta would be lost in the rounding of W + dW.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn

from ..compiler import compiling
from ..placement import scratch
from ..plugins import Tuner
from ..strengths.regions import Grouped, Runs, length
from ..tensors import TensorFields, autocasts

if TYPE_CHECKING:
    from ..strengths.table import Sum
    from ..weights.operation import BaseForward


EXACT = frozenset({torch.float32, torch.float64})
"""Dtypes in which a small change of a weight is not rounded away."""
_PICKING = 16
"""What sorting places and putting them back costs, as a rank: measured on a CPU, 320 to 2560 wide."""
_TORCHS = nn.Linear.forward if nn.Linear.forward.__globals__ is vars(torch.nn.modules.linear) else None
"""torch's own forward; None if something else had replaced it already. A wrapper may have its name and its module."""
_MARGIN = 1.5  # the sum is written to memory and read again: measured break-even on a CPU, 320 to 2560 wide


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
    if x.numel() * (out + inside) <= _MARGIN * inside * inside * out:  # both sides times `in`
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
    total = torch.addmm(weight, up * strength, down) if compiling() else _sum(layer, down, up, strength)
    return F.linear(x, total, layer._parameters.get("bias"))


def rows_pay(layer: nn.Module, x: Tensor, sums: Sequence[Sum], factors: Tensor) -> bool:
    """Whether sums for rows that have enough tokens, and what acts for others, cost less than the pair beside all.

    Args:
        layer: a linear layer.
        x: (rows * n, …, in).
        sums: the rows.
        factors: of each row, (rows, R).
    """
    rows, rank = factors.shape
    tokens, large = x.numel() // (x.shape[-1] * rows), large_group(layer)
    return sum(min(large, tokens * len(one.rows)) * one.rank for one in sums) < rank * rows * tokens


def effective_rows(
    layer: nn.Module, x: Tensor, down: Tensor, up: Tensor, sums: Sequence[Sum], factors: Tensor
) -> Tensor:
    """The same, for rows of a batch that have strengths of their own.

    Args:
        layer: see above.
        x: (rows * n, …, in).
        down: see above.
        up: see above.
        sums: the rows.
        factors: of each row, (rows, R).
    """
    by_row = x.reshape(len(factors), -1, x.shape[-1])
    weight, bias = layer._parameters["weight"], layer._parameters.get("bias")
    assert weight is not None
    y = by_row.new_empty(*by_row.shape[:2], len(weight))
    least = large_group(layer) / by_row.shape[1]
    large = [one for one in sums if one.rank and len(one.rows) >= least]
    with torch.no_grad():
        if not large:
            _product(by_row.flatten(0, 1), weight, bias, y.view(-1, len(weight)))
        for one in sums:
            if one in large:
                for row, summed in _summed(layer, down, up, one, factors):
                    _product(by_row[row], summed, bias, y[row])
                continue
            for row in one.rows:
                if large:
                    _product(by_row[row], weight, bias, y[row])
                _add(by_row[row], down, up, factors[row], one.runs, y[row])
    return y.view(*x.shape[:-1], len(weight))


def _summed(layer: nn.Module, down: Tensor, up: Tensor, one: Sum, factors: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Each row with its effective weight, which is that only until the next is asked for."""
    weight = layer._parameters["weight"]
    assert weight is not None
    total, scale = _sum(layer, down, up, factors[one.rows[0]], one.runs), 1.0
    for row, ratio in zip(one.rows, one.ratios, strict=True):
        if ratio != scale:
            torch.lerp(weight, total, ratio / scale, out=total)  # W + ratio (W + dW - W)
            scale = ratio
        yield row, total


def large_group(layer: nn.Module) -> int:
    """How many places, of all rows, must have the same strengths for a sum to pay."""
    weight = layer._parameters["weight"]
    assert weight is not None
    return math.ceil(most_places(weight.numel(), sum(weight.shape)))


def most_places(entries: int, sides: int) -> float:
    """For how many places the pair beside a layer costs what the sum costs for any number of them.

    Args:
        entries: of its weight.
        sides: its inputs and outputs.
    """
    return _MARGIN * entries / sides


def grouping_pays(grouped: Grouped, layer: nn.Module, rank: int) -> bool:
    """Whether groups of places, and what it takes to sort them and put them back, cost less than the pair beside all.

    Args:
        grouped: the places.
        layer: of them.
        rank: of the pair.
    """
    places = _PICKING * len(grouped.order) + rank * len(grouped.rest_weights)
    places += sum(one.count * length(one.runs) for one in grouped.alike)
    places += sum(large_group(layer) * length(one.runs) for one in grouped.large)
    return places < rank * len(grouped.order)


def effective_places(
    layer: nn.Module, x: Tensor, down: Tensor, up: Tensor, strength: Tensor, grouped: Grouped
) -> Tensor:
    """The same, for places that have strengths of their own: a sum for each large group, what acts there for others.

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
    with torch.no_grad():
        x, rows = x.reshape(-1, x.shape[-1]).index_select(0, grouped.order), x.shape[0]
        y = x.new_empty(len(x), len(weight))
        begin = grouped.small
        _product(x[:begin], weight, bias, y[:begin])
        for one in grouped.large:
            here, begin = slice(begin, begin + one.count), begin + one.count
            _product(x[here], _sum(layer, down, up, strength * one.weights, one.runs), bias, y[here])
        begin = grouped.none
        for one in grouped.alike:
            here, begin = slice(begin, begin + one.count), begin + one.count
            _add(x[here], down, up, strength * one.weights, one.runs, y[here])
        if len(grouped.rest_weights):
            here = slice(begin, begin + len(grouped.rest_weights))
            _add(x[here], down, up, strength * grouped.rest_weights, ((0, len(strength)),), y[here])
        return y.index_select(0, grouped.back).view(rows, -1, y.shape[1])


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor) -> None:
    """Have y be x weight^T + bias."""
    if bias is None:
        torch.mm(x, weight.t(), out=y)
    else:
        torch.addmm(bias, x, weight.t(), out=y)


def _add(x: Tensor, down: Tensor, up: Tensor, strength: Tensor, runs: Runs, y: Tensor) -> None:
    """Add the pair beside to y, as far as it acts."""
    for start, stop in runs:
        h = torch.mm(x, down[start:stop].t()).mul_(strength[..., start:stop])
        y.addmm_(h, up[:, start:stop].t())


def _sum(layer: nn.Module, down: Tensor, up: Tensor, strength: Tensor, runs: Runs = ()) -> Tensor:
    """Compute the effective weight in scratch memory."""
    weight = layer._parameters["weight"]
    assert weight is not None  # `pays` said so
    total = scratch.take("linear", weight, weight.dtype)
    with torch.no_grad():
        for number, (start, stop) in enumerate(runs or ((0, len(strength)),)):
            own = up[:, start:stop] * strength[start:stop]
            torch.addmm(total if number else weight, own, down[start:stop], out=total)
    return total


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
        strength: (R, *ones), or with the rows and places of `y` in front; see `Live`.
        base_forward: what made `y`.
        tuner: adds the pair of a linear layer where it knows a faster way than torch's products.
    """
    if kind == "conv":
        return _add_conv(layer, x, y, pair, strength)
    if kind == "embedding":
        return y + (F.embedding(x, pair.up) * strength) @ pair.down
    # torch's own forward has just made y, so nobody else holds it
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
