"""The effective weight of a layer, W + sum of dW, written block by block into memory of the caller.

Where all adapters of the layer can compute some rows or columns of their delta, blocks of these keep the temporary
memory at a sixteenth of the weight. Low-rank pairs alone are one product into the caller's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..adapters.base import Adapter, At, Pair
from ..tensors import wide

_BLOCKS = 16
_SMALLEST = 1 << 16  # entries; below that, blocks cost more calls than they save memory

Round = Callable[[Tensor, Tensor], None]
"""Rounds a block (second) in fp32 or fp64 into its rows of the result (first)."""


@dataclass(frozen=True, slots=True)
class Part:
    """One adapter of a layer, on the device of the base weight."""

    adapter: Adapter
    multiplier: Tensor  # (1,)
    rank: int | None = None
    rows: tuple[int, int] | None = None
    """The rows of the base weight that it changes; None for all."""


def build(
    total: Tensor, base: Tensor, parts: Sequence[Part], *, in_order: bool = False, write: Round | None = None
) -> None:
    """Write `base` plus the deltas of `parts` into `total`, which must be other memory.

    The sum is computed in fp32 or fp64 and rounded once, by `write` if given. With `in_order`, each adapter acts on the
    weight that the adapters before it left, as A1111 bakes.
    """
    dtype = wide(base.dtype)
    fused, others = _fused(base, total, parts, dtype, in_order=in_order)
    if fused is not None and not others and write is None and total.dtype == base.dtype == dtype:
        flat = base.view(base.shape[0], -1)
        torch.addmm(flat, fused.up, fused.down, out=total.view(flat.shape))  # blocks would save no memory
        return
    for start, columns, own, out in _blocks(base, total, parts):
        block = out.copy_(own) if out.dtype == dtype and write is None else own.to(dtype, copy=True)
        original = own.to(dtype) if any(part.adapter.reads_base for part in parts) else None
        if fused is not None:
            rows = fused.up if columns is not None else fused.up[start : start + block.shape[0]]
            down = fused.down if columns is None else fused.down[:, slice(*columns)]
            block.view(block.shape[0], -1).addmm_(rows, down)
        for part in others:
            _add(block, original, part, start, columns, in_order=in_order)
        if write is not None:
            write(out, block)
        elif block is not out:
            out.copy_(block)


class _Fused(NamedTuple):
    """All low-rank pairs of a layer as one, with their strengths."""

    down: Tensor  # (R, in * kernel)
    up: Tensor  # (out, R)


def _fused(
    base: Tensor, total: Tensor, parts: Sequence[Part], dtype: torch.dtype, *, in_order: bool
) -> tuple[_Fused | None, Sequence[Part]]:
    """Return the pairs that change the whole weight as one, and the other parts."""
    if in_order and any(part.adapter.reads_base for part in parts):
        return None, parts
    if not (base.is_contiguous() and total.is_contiguous()):
        return None, parts
    ups, downs, others = [], [], []
    for part in parts:
        pair = _pair_of(part)
        if pair is None:
            others.append(part)
            continue
        factors = part.adapter.factors(part.rank)
        ups.append(factors.up.to(base.device, dtype) * (part.multiplier.to(dtype) * pair.scale))
        downs.append(factors.down.flatten(1).to(base.device, dtype))
    return (_Fused(torch.cat(downs), torch.cat(ups, 1)) if ups else None), others


def _pair_of(part: Part) -> Pair | None:
    """Return the low-rank pair of a part that is only that and changes all rows; else None."""
    form = part.adapter.form(part.rank)
    if form is None or part.rows is not None or form.on_input or form.on_output:
        return None
    return form.pair


def _add(
    block: Tensor,
    original: Tensor | None,
    part: Part,
    start: int,
    columns: tuple[int, int] | None,
    *,
    in_order: bool,
) -> None:
    """Add one delta to the rows of a block that it changes."""
    first, last = part.rows or (0, start + block.shape[0])
    low, high = max(first, start), min(last, start + block.shape[0])
    if low >= high:
        return
    window = block[low - start : high - start]
    weight = None
    if part.adapter.reads_base and original is not None:
        weight = window.clone() if in_order else original[low - start : high - start]
    rows = (low - first, high - first) if part.adapter.by_rows else None
    at = At(block.device, block.dtype, part.multiplier.to(block.dtype), part.rank, rows, columns, weight)
    window.add_(part.adapter.delta_weight(at).reshape(window.shape))


def _blocks(
    base: Tensor, total: Tensor, parts: Sequence[Part]
) -> Iterator[tuple[int, tuple[int, int] | None, Tensor, Tensor]]:
    """Yield (first row, columns or None for all, base weight, result) of each block."""
    large = base.numel() > _SMALLEST
    if large and all(part.adapter.by_rows for part in parts):
        step = _step(base.shape[0], base.numel())
        for start in range(0, base.shape[0], step):
            yield start, None, base[start : start + step], total[start : start + step]
    elif large and base.is_contiguous() and total.is_contiguous() and all(part.adapter.by_columns for part in parts):
        flat, out = base.view(base.shape[0], -1), total.view(base.shape[0], -1)
        step = _step(flat.shape[1], base.numel())
        for start in range(0, flat.shape[1], step):
            stop = min(start + step, flat.shape[1])
            yield 0, (start, stop), flat[:, start:stop], out[:, start:stop]
    else:
        yield 0, None, base, total


def _step(length: int, entries: int) -> int:
    """Return the number of rows or columns of a block."""
    return max(length // _BLOCKS, length * _SMALLEST // entries, 1)
