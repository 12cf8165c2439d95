"""The effective weight of a layer, W + sum of dW, written block by block into memory of the caller.

On a CPU, where all adapters of the layer can compute some rows of their delta, blocks of these stay in its cache and
keep the temporary memory at a sixteenth of the weight. A device computes a delta in one piece, as each block
costs it a launch for every operation. Low-rank pairs alone are one product into the caller's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..adapters.base import Adapter, At, Factors, Pair
from ..tensors import wide

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
        self._parts, self._in_order = parts, in_order
        self._pairs, self._others = list[tuple[Part, float]](), list[Part]()
        self._reads = any(part.adapter.reads_base for part in parts)
        self._by_rows = all(part.adapter.by_rows for part in parts)
        for part in parts:
            if (pair := None if in_order and self._reads else _pair_of(part)) is None:
                self._others.append(part)
            else:
                self._pairs.append((part, pair.scale))

    def build(self, total: Tensor, base: Tensor, write: Round | None = None) -> None:
        """Write `base` plus the deltas into `total`, which must be other memory.

        The sum is computed in fp32 or fp64 and rounded once, by `write` if given.
        """
        dtype = wide(base.dtype)
        if base.requires_grad and torch.is_grad_enabled():  # which follows a copy, but no `out`
            write = Tensor.copy_
        if base.device.type != "cpu" and not self._in_order and all(part.rows is None for part in self._parts):
            self._build_at_once(total, base, dtype, write)
            return
        contiguous = base.is_contiguous() and total.is_contiguous()
        fused = self._fused(base.device, dtype) if contiguous and self._pairs else None
        others = self._others if fused is not None else self._parts
        if fused is not None and not others and write is None and total.dtype == base.dtype == dtype:
            flat = base.view(base.shape[0], -1)
            torch.addmm(flat, fused.up, fused.down, out=total.view(flat.shape))  # blocks would save no memory
            return
        for start, own, out in self._blocks(base, total):
            block = out.copy_(own) if out.dtype == dtype and write is None else own.to(dtype, copy=True)
            original = own.to(dtype) if self._reads else None
            if fused is not None:
                block.view(block.shape[0], -1).addmm_(fused.up[start : start + block.shape[0]], fused.down)
            for part in others:
                self._add(block, original, part, start)
            if write is not None:
                write(out, block)
            elif block is not out:
                out.copy_(block)

    def _build_at_once(self, total: Tensor, base: Tensor, dtype: torch.dtype, write: Round | None) -> None:
        """Write `base` plus all deltas of the whole weight into `total`, with as few kernels as there can be."""
        running = original = base if base.dtype in SUMMED else base.to(dtype)
        count = len(self._others) + bool(self._pairs)
        for i, (delta, factor) in enumerate(self._terms(original, dtype), 1):
            out = total if i == count and write is None else None
            running = torch.add(running, delta.reshape(base.shape), alpha=factor, out=out)
        if write is not None:
            write(total, running)

    def _terms(self, original: Tensor, dtype: torch.dtype) -> Iterator[tuple[Tensor, float]]:
        """Yield the deltas of the whole weight, each with its factor."""
        whole: Tensor | None = None
        for part in self._others:
            weight, adapter = original, part.adapter
            if adapter.reads_base and not adapter.widens_base:
                weight = whole = original.to(dtype) if whole is None else whole
            seen = weight if adapter.reads_base else None
            yield _delta_of(part, At(original.device, dtype, part.multiplier, part.rank, weight=seen))
        if self._pairs:
            fused = self._fused(original.device, dtype)
            yield fused.up @ fused.down, 1.0

    def _fused(self, device: torch.device, dtype: torch.dtype) -> Factors:
        """Return the pairs as one, (R, in * kernel) and (out, R), with their strengths."""
        ups, downs = [], []
        for part, scale in self._pairs:
            factors = part.adapter.factors(part.rank)
            multiplier = part.multiplier.to(dtype) if isinstance(part.multiplier, Tensor) else part.multiplier
            ups.append(factors.up.to(device, dtype) * (multiplier * scale))
            downs.append(factors.down.flatten(1).to(device, dtype))
        return Factors(torch.cat(downs), torch.cat(ups, 1))

    def _add(self, block: Tensor, original: Tensor | None, part: Part, start: int) -> None:
        """Add one delta to the rows of a block that it changes."""
        first, last = part.rows or (0, start + block.shape[0])
        low, high = max(first, start), min(last, start + block.shape[0])
        if low >= high:
            return
        window, weight = block[low - start : high - start], None
        if original is not None and part.adapter.reads_base:
            weight = window.clone() if self._in_order else original[low - start : high - start]
        rows = (low - first, high - first) if part.adapter.by_rows else None
        at = At(block.device, block.dtype, part.multiplier, part.rank, rows, weight)
        delta, factor = _delta_of(part, at)
        window.add_(delta.reshape(window.shape), alpha=factor)

    def _blocks(self, base: Tensor, total: Tensor) -> list[tuple[int, Tensor, Tensor]]:
        """Return the first row, the base weight and the result of each block."""
        if base.device.type != "cpu" or base.numel() <= _SMALLEST or not self._by_rows:
            return [(0, base, total)]
        rows = base.shape[0]
        step = max(rows // _BLOCKS, rows * _SMALLEST // base.numel(), 1)
        return [(start, base[start : start + step], total[start : start + step]) for start in range(0, rows, step)]


SUMMED = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""Dtypes that torch adds to wider ones in one kernel, which computes in the wider one."""


def _delta_of(part: Part, at: At) -> tuple[Tensor, float]:
    """Return the delta of a part, and what it is still to be multiplied by."""
    if isinstance(at.multiplier, Tensor):
        at = replace(at, multiplier=at.multiplier.to(at.dtype))
    delta, factor = part.adapter.delta_and_factor(at)
    return (delta * factor, 1.0) if isinstance(factor, Tensor) else (delta, factor)


def _pair_of(part: Part) -> Pair | None:
    """Return the low-rank pair of a part that is only that and changes all rows; else None."""
    form = None if part.adapter.prefers_dense else part.adapter.form(part.rank)
    if form is None or part.rows is not None or form.on_input or form.on_output:
        return None
    return form.pair
