"""Rows of parameters, copies of them, and the error of those that do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..tensors import wide

Rows = tuple[tuple[int, int], ...]
"""Windows of output rows, one after the other."""


def taken(tensor: Tensor, rows: Rows, dim: int = 0) -> Tensor:
    """Return some rows of a parameter that has one per output; a view if they are one window."""
    windows = [tensor.narrow(dim, start, stop - start) for start, stop in rows]
    return torch.cat(windows, dim) if len(windows) > 1 else windows[0]


def shape_of(shape: tuple[int, ...], rows: Rows) -> tuple[int, ...]:
    return (sum(stop - start for start, stop in rows), *shape[1:])


def places_in(places: Tensor, rows: Rows, width: int = 1) -> tuple[Tensor, Tensor]:
    """Return which places of a flattened weight lie in some of its rows, by number, and their places in these rows."""
    found, moved, offset = [], [], 0
    for start, stop in rows:
        own = ((places >= start * width) & (places < stop * width)).nonzero().flatten()
        found.append(own)
        moved.append(places[own] + (offset - start) * width)
        offset += stop - start
    return torch.cat(found), torch.cat(moved)


def within(windows: Rows, rows: Rows) -> Rows:
    """Translate rows counted within `windows` into rows of the whole."""
    found = []
    for start, stop in rows:
        offset = 0
        for first, last in windows:
            low, high = max(start - offset, 0), min(stop - offset, last - first)
            if low < high:
                found.append((first + low, first + high))
            offset += last - first
    return tuple(found)


def part_of_field(value: Any, rows: Rows) -> Any:
    """Return some rows of a field: a tensor, a shape, windows of rows, or what has `take`."""
    if value is None or isinstance(value, Tensor):
        return value if value is None else taken(value, rows)
    if not isinstance(value, tuple):
        return value.take(rows)
    return within(value, rows) if isinstance(value[0], tuple) else shape_of(value, rows)


def shape_text(tensor: Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"


def number(params: Mapping[str, Tensor], name: str) -> float | None:
    """Read a parameter that is one number; return None if it is missing. Raise ValueError if it is several."""
    tensor = params.get(name)
    if tensor is None:
        return None
    if tensor.numel() != 1:
        raise unfit(f"one number as {name}", tensor)
    return float(tensor.item())


def unfit(want: str, *got: Tensor) -> ValueError:
    """Return the error of tensors that do not fit a site."""
    *most, last = map(shape_text, got)
    return ValueError(f"want {want}, got {' and '.join([*([', '.join(most)] if most else []), last])}")


def placed(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Copy a tensor to a device, never as a view of the mapped file, which may be replaced during computation."""
    return tensor.to(device=device, dtype=dtype, copy=True).contiguous()


def widened(tensor: Tensor, like: Tensor) -> Tensor:
    """Copy a parameter to where another tensor is, in a dtype in which their sums and products are exact enough."""
    return tensor.to(like.device, wide(tensor.dtype, like.dtype))
