"""The effective weight of a layer, W + sum of dW, in new memory.

On a CPU, where all adapters of the layer can compute some rows of their delta, blocks of these stay in its cache and
keep the temporary memory at a sixteenth of the weight. A device computes a delta in one piece, as each block costs it a
launch for every operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from ..adapters.base import Adapter, At, Factors, Pair
from ..tensors import COMPUTING, wide

_BLOCKS = 16
_SMALLEST = 1 << 16  # entries; below that, blocks cost more calls than they save memory

Round = Callable[[Tensor, Tensor], object]
"""Rounds a block (second) in fp32 or fp64 into its rows of the result (first)."""


@dataclass(frozen=True, slots=True)
class Part:
    """One adapter of a layer, on the device of the base weight."""

    adapter: Adapter
    multiplier: Tensor | float  # a tensor of one number, or of one for each head of a bank
    rank: int | None = None
    rows: tuple[int, int] | None = None
    """The rows of the base weight that it changes; None for all."""


class Sum:
    """The deltas of one weight, as far as they can be put together before the weight is read.

    With `in_order`, each adapter acts on the weight that the adapters before it left, as A1111 bakes.
    """

    def __init__(self, parts: Sequence[Part], *, in_order: bool = False) -> None:
        self._in_order = in_order and any(part.adapter.reads_base for part in parts)
        self._pairs, self._others = list[tuple[Part, float]](), list[Part]()
        self._by_rows = all(part.adapter.by_rows for part in parts)
        for part in parts:
            if self._in_order or (pair := _pair_of(part)) is None:
                self._others.append(part)
            else:
                self._pairs.append((part, pair.scale))

    def build(self, base: Tensor, dtype: torch.dtype, write: Round | None = None) -> Tensor:
        """Return `base` plus the deltas; the sum is computed in fp32 or fp64 and rounded once, by `write` if given."""
        if base.requires_grad and torch.is_grad_enabled():  # which follows a copy, but no `out`
            write = Tensor.copy_
        result = torch.empty_like(base, dtype=dtype)
        fused = self._fused(base.device, wide(base.dtype)) if self._pairs else None
        for block in self._blocks(base, result):
            self._build_block(block, fused, write)
        return result

    def _build_block(self, block: _Block, fused: Factors | None, write: Round | None) -> None:
        """Write the sum into a block of the result, with as few kernels as there can be."""
        taken, base, out = block
        dtype, left = wide(base.dtype), len(self._others) + (fused is not None)
        start, stop = taken or (0, base.shape[0])
        total = original = base if base.dtype in COMPUTING else base.to(dtype)
        widened = cache(lambda: original.to(dtype))
        in_out = write is None and out.dtype == dtype
        for part in self._others:
            left -= 1
            first, last = part.rows or (0, stop)
            low, high = max(first, start), min(last, stop)
            if low >= high:
                continue
            window, weight = slice(low - start, high - start), None
            if part.adapter.reads_base and self._in_order:
                weight = total[window].to(dtype)
            elif part.adapter.reads_base:
                weight = (original if part.adapter.widens_base else widened())[window]
            rows = None if taken is None else (low - first, high - first)
            delta, factor = _delta_of(part, At(base.device, dtype, part.multiplier, part.rank, rows, weight))
            if high - low == stop - start:
                to = out if in_out or (write is None and not left) else None
                total = torch.add(total, delta.reshape(base.shape), alpha=factor, out=to)
                continue
            if total is original:
                total = out.copy_(original) if in_out else original.to(dtype, copy=True)
            changed = total[window]
            changed.add_(delta.reshape(changed.shape), alpha=factor)
        if fused is not None:
            delta = fused.up[slice(*(taken or (None,)))] @ fused.down
            total = torch.add(total, delta.reshape(base.shape), out=None if write is not None else out)
        if write is not None:
            write(out, total.to(dtype))
        elif total is not out:
            out.copy_(total)

    def _fused(self, device: torch.device, dtype: torch.dtype) -> Factors:
        """Return the pairs as one, (R, in * kernel) and (out, R), with their strengths."""
        ups, downs = [], []
        for part, scale in self._pairs:
            factors = part.adapter.factors(part.rank)
            multiplier = part.multiplier.to(dtype) if isinstance(part.multiplier, Tensor) else part.multiplier
            ups.append(factors.up.to(device, dtype) * (multiplier * scale))
            downs.append(factors.down.flatten(1).to(device, dtype))
        return Factors(torch.cat(downs), torch.cat(ups, 1))

    def _blocks(self, base: Tensor, result: Tensor) -> list[_Block]:
        if base.device.type != "cpu" or base.numel() <= _SMALLEST or not self._by_rows:
            return [(None, base, result)]
        length = base.shape[0]
        step = max(length // _BLOCKS, length * _SMALLEST // base.numel(), 1)
        ends = [(start, min(start + step, length)) for start in range(0, length, step)]
        return [(one, base[slice(*one)], result[slice(*one)]) for one in ends]


def _delta_of(part: Part, at: At) -> tuple[Tensor, float]:
    """Return the delta of a part, and what it is still to be multiplied by."""
    if isinstance(at.multiplier, Tensor):
        at = replace(at, multiplier=at.multiplier.to(at.dtype))
    delta, factor = part.adapter.delta_and_factor(at)
    return (delta * factor, 1.0) if isinstance(factor, Tensor) else (delta, factor)


_Block = tuple["tuple[int, int] | None", Tensor, Tensor]
"""Rows, None for all; these of the base weight, and of the result."""


def _pair_of(part: Part) -> Pair | None:
    """Return the low-rank pair of a part that is only that and changes all rows; else None."""
    form = None if part.adapter.prefers_dense else part.adapter.form(part.rank)
    if form is None or part.rows is not None or form.on_input or form.on_output:
        return None
    return form.pair
