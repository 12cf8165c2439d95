"""Rotations of a layer's channels in blocks: how they are parametrised, and how they are multiplied with.

Everywhere it is R - I that is kept, placed and multiplied with, never R: what an adapter changes is small beside the
identity, and half precision would round it away. R = (I + Q)(I - Q)^-1 of a skew Q (Cayley) gives it without a
difference of near numbers: R - I = 2 (I - Q)^-1 Q. All of that is computed in fp32 or better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor
from typing_extensions import Self

from ..tensors import TensorFields, wide
from ._operation import Operation, at_multiplier
from ._rows import placed, shape_text, taken, unfit
from .base import Adapter, At, Form, InputEffect, OutputEffect, Rows


@dataclass(frozen=True, slots=True, eq=False)
class Turn(TensorFields):
    """Blocks of a rotation less the identity: as a file parametrises them, or solved."""

    source: Tensor
    solve: Callable[[Tensor], Tensor] | None
    """Makes R - I (..., k, n, n) of the source in fp32 or better; None where the source is that already."""

    @property
    def channels(self) -> int:
        return self.source.shape[-3] * self.source.shape[-2]

    def take(self, rows: Rows) -> Self | None:
        """Return its blocks for some of the channels; None if a window cuts a block, or blocks that are mixed."""
        size = self.source.shape[-2]
        # the last of m factors exchanges the halves of 2^(m - 1) blocks, whose channels follow each other
        together = 2 ** (len(self.source) - 1) if self.source.ndim > 3 else 1
        if any(end % (size * together) for window in rows for end in window):
            return None
        windows = [self.source[..., start // size : stop // size, :, :] for start, stop in rows]
        return replace(self, source=torch.cat(windows, -3) if len(windows) > 1 else windows[0])

    def blocks(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return R - I (..., k, n, n) on `device`, in fp32 or in `dtype` if that is better; never write to it."""
        source = self.source.to(device, wide(self.source.dtype, dtype))
        return source if self.solve is None else self.solve(source)

    def effect(self, device: torch.device, dtype: torch.dtype) -> Turn:
        """Solve the rotation for the forward, in `dtype`, and join small blocks where that is faster."""
        blocks = self.blocks(device, dtype)
        return Turn(placed(_joined(blocks) if blocks.ndim == 3 else blocks, device, dtype), None)


def cayley(q: Tensor) -> Tensor:
    """Return R - I of R = (I + Q)(I - Q)^-1 for skew Q (..., n, n); I - Q is never singular."""
    eye = torch.eye(q.shape[-1], dtype=q.dtype, device=q.device)
    solved: Tensor = torch.linalg.solve(eye - q, 2 * q)
    return solved


@dataclass(frozen=True, slots=True, eq=False)
class NormLimit:
    """The largest Frobenius norm of Q = B - B^T over all blocks of the file's layer, used or not."""

    limit: float
    blocks: Tensor  # B (…, k, n, n), as the file has them

    def factor(self, like: Tensor) -> Tensor:
        """Return the factor that shrinks Q, in the dtype and on the device of `like`."""
        blocks = self.blocks.to(like.dtype)
        norm: Tensor = torch.linalg.vector_norm(blocks - blocks.transpose(-1, -2))
        return (self.limit / norm.clamp_min(_TINY)).clamp_max(1.0).to(like.device)


def skew(source: Tensor, bound: NormLimit | None) -> Tensor:
    """Return Q of the parameters B or of some of their blocks, shrunk to the bound, if there is one."""
    q = source - source.transpose(-1, -2)
    return q if bound is None else q * bound.factor(q)


def mix(x: Tensor, blocks: Tensor, dim: int) -> Tensor:
    """Multiply the k * n channels of `x` at `dim`, counted from the end, by blocks (k, n, n), or (1, n, n) for all."""
    size = blocks.shape[-1]
    count = x.shape[dim] // size
    if dim == -1:
        tokens = x.reshape(-1, count, size)
        if blocks.shape[0] < count:
            return F.linear(tokens, blocks[0]).view(x.shape)
        return torch.bmm(tokens.transpose(0, 1), blocks.transpose(1, 2)).transpose(0, 1).reshape(x.shape)
    last = x.movedim(dim, -1)
    if last.is_contiguous() and not x.is_contiguous():  # channels_last
        return mix(last, blocks, -1).movedim(-1, dim)
    lead, places = x.shape[:dim], x.shape[dim:].numel() // x.shape[dim]
    return torch.matmul(blocks, x.reshape(*lead, count, size, places)).reshape(x.shape)


def _joined(blocks: Tensor) -> Tensor:
    """Join neighbouring small blocks, zero off the diagonal; a block shared by all stays alone.

    A batch of products is slow where each is tiny: measured on a CPU, blocks of 4 take four times as long as of 16.
    """
    count, size, _ = blocks.shape
    found = (n for n in range(2, _LARGEST // size + 1) if n * size >= _SMALL and count % n == 0)
    together = next(found, 1) if size < _SMALL else 1
    if together == 1:
        return blocks
    joined = blocks.new_zeros(count // together, together, size, together, size)
    joined.diagonal(dim1=1, dim2=3).copy_(blocks.view(-1, together, size, size).permute(0, 2, 3, 1))
    return joined.view(count // together, together * size, together * size)


def mix_slices(x: Tensor, parts: tuple[Tensor, ...], dim: int, multiplier: Tensor | float) -> Tensor:
    """Call `mix` or `mix_butterfly` at a multiplier, with blocks of another size for each slice of the channels."""
    if len(parts) > 1:
        slices = torch.split(x, [part.shape[-3] * part.shape[-1] for part in parts], dim)
        pairs = zip(slices, parts, strict=True)
        return torch.cat([mix_slices(one, (part,), dim, multiplier) for one, part in pairs], dim)
    if parts[0].ndim > 3:
        return mix_butterfly(x, parts[0], dim, multiplier)
    return at_multiplier(partial(mix, x, dim=dim), parts[0], multiplier)


def mix_butterfly(
    x: Tensor, factors: Tensor, dim: int, multiplier: Tensor | float = 1.0, *, descending: bool = False
) -> Tensor:
    """Return the change of `x` by a chain of block rotations, each at `multiplier`, https://arxiv.org/abs/2311.06243.

    Factor i of R - I (m, k, b, b) mixes the halves of two blocks that are 2^i halves apart; the halves of a block are
    one after the other. With `descending` the last factor acts first. `x` has k * b channels at `dim`, from the end.
    The multiplier is of one element, or broadcasts to `x` and is the same for all channels.
    """
    by_row = multiplier if isinstance(multiplier, Tensor) and multiplier.numel() > 1 else None
    if dim == -1 and len(factors) > 1:
        # turned over once, every factor multiplies and permutes whole rows
        rows = x.reshape(-1, x.shape[-1]).t().contiguous()
        if by_row is not None:
            multiplier = by_row.expand(*x.shape[:-1], 1).reshape(1, -1)
        return mix_butterfly(rows, factors, -2, multiplier, descending=descending).t().reshape(x.shape)
    total: Tensor | None = None
    # two factors at a time are multiplied with each other, each at its multiplier: so not where rows differ in that
    places = 0 if by_row is not None else x.numel() // x.shape[dim]
    own = factors if by_row is not None else factors * multiplier
    for level, blocks in _levels(own, places, descending=descending):
        half = factors.shape[-1] // 2
        change = _mix_level(x if total is None else x + total, blocks, level, half, dim)
        change = change if by_row is None else change * by_row
        total = change if total is None else total + change
    assert total is not None  # there is one factor or more
    return total


def _levels(factors: Tensor, places: int, *, descending: bool) -> list[tuple[int, Tensor]]:
    """Return the factors in the order in which they act, with their levels; join small ones in twos.

    Two factors are one of twice the size: as many multiplications, but half as often through memory, which is most of
    the time: measured on a CPU, seven of 20 on 1,280 channels and 4,096 places take 62 ms instead of 98. Making it is
    work too, so only for places enough.
    """
    count, _, size, _ = factors.shape
    step = 2 if size <= _SMALL_FACTOR and places > _ENOUGH * size else 1
    levels = []
    for level in range(0, count, step):
        if level + step > count or step == 1:
            levels.append((level, factors[level]))
        else:
            levels.append((level, _two_levels(factors[level], factors[level + 1], level, descending=descending)))
    return levels[::-1] if descending else levels


def _two_levels(lower: Tensor, upper: Tensor, level: int, *, descending: bool) -> Tensor:
    """Join factors `level` and `level + 1`, R - I (k, b, b), to one (k / 2, 2 b, 2 b) on four half blocks each."""
    count, size, _ = lower.shape
    apart, half = 2**level, size // 2
    split = (count // (2 * apart), 2, apart, 2, half, 2, half)
    shape = (split[0], apart, 2, 2, half, 2, 2, half)
    # the half blocks are numbered (upper's, lower's): each factor leaves the other's number as it is
    first, second = lower.new_zeros((2, *shape))
    first.diagonal(dim1=2, dim2=5).copy_(lower.view(split).permute(0, 2, 3, 4, 5, 6, 1))
    second.diagonal(dim1=3, dim2=6).copy_(upper.view(split).permute(0, 2, 3, 4, 5, 6, 1))
    first, second = (one.view(count // 2, 2 * size, 2 * size) for one in (first, second))
    left, right = (first, second) if descending else (second, first)
    return torch.baddbmm(first + second, left, right)


def _mix_level(x: Tensor, blocks: Tensor, level: int, half: int, dim: int) -> Tensor:
    if level == 0:
        return mix(x, blocks, dim)
    start, halves = x.ndim + dim, blocks.shape[-1] // half
    lead, rest = x.shape[:start], x.shape[start + 1 :]
    apart = x.reshape(*lead, -1, halves, 2**level, half, *rest)
    mixed = mix(apart.transpose(start + 1, start + 2).reshape(x.shape), blocks, dim)
    together = mixed.reshape(*lead, -1, 2**level, halves, half, *rest)
    return together.transpose(start + 1, start + 2).reshape(x.shape)


def check_butterfly(factors: Tensor, width: int, name: str) -> None:
    """Check that factors (m, k, b, b) fit `width` channels; raise ValueError if they do not."""
    count, blocks, size = factors.shape[:3] if factors.ndim == 4 else (0, 0, 0)
    fits = count > 0 and factors.shape[2] == factors.shape[3] and blocks * size == width
    if fits and count > 1:
        fits = size % 2 == 0 and count <= width.bit_length() and blocks % 2 ** (count - 1) == 0
    if not fits:
        want = f"(m, k, b, b) with k * b = {width}, and where m > 1 b even and k a multiple of 2^(m - 1)"
        raise ValueError(f"want {name} {want}; got {shape_text(factors)}")


@dataclass(frozen=True, slots=True, eq=False)
class OutputRotation(Adapter, OutputEffect):
    """W' = s * R W: block rotations of the outputs, lerped to I, and a scale of each output after them, 1 + m (s - 1).

    The bias is left as it is: that is what trainers' forward does with a turned weight.
    """

    parts: tuple[Turn, ...]  # of one slice of the outputs each
    excess: Tensor | None  # (out,), s - 1

    reads_base = True

    def take(self, rows: Rows) -> Self | None:
        parts = [part for window in rows for part in self._within(window)]
        if None in parts:
            return None
        excess = None if self.excess is None else taken(self.excess, rows)
        return replace(self, parts=tuple(part for part in parts if part is not None), excess=excess)

    def _within(self, window: tuple[int, int]) -> Iterator[Turn | None]:
        """Return the rotation of a window of outputs; None if a block crosses its border."""
        start = 0
        for part in self.parts:
            low, high = max(window[0] - start, 0), min(window[1] - start, part.channels)
            if low < high:
                yield part.take(((low, high),))
            start += part.channels

    def delta_weight(self, at: At) -> Tensor:
        rows = at.base.flatten(1)
        parts = tuple(at.put(part.blocks(at.device, at.dtype)) for part in self.parts)
        turned = mix_slices(rows, parts, -2, at.multiplier)
        if self.excess is not None:
            turned = rescaled(rows, turned, (at.put(self.excess) * at.multiplier).unsqueeze(1))
        return turned.reshape(at.base.shape)

    def output_effect(self, device: torch.device, dtype: torch.dtype) -> OutputEffect:
        excess = None if self.excess is None else placed(self.excess, device, dtype)
        return replace(self, parts=tuple(part.effect(device, dtype) for part in self.parts), excess=excess)

    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        turned = mix_slices(y, tuple(map(attrgetter("source"), self.parts)), op.channels, multiplier)
        return turned if self.excess is None else rescaled(y, turned, op.per_channel(self.excess) * multiplier)


@dataclass(frozen=True, slots=True, eq=False)
class InputRotation(Adapter, InputEffect):
    """W' = W R, W as (out, in * kernel): R x instead of x, in blocks. The multiplier lerps R to I.

    A kernel's places are rotated among each other, so that only pointwise layers have a rotation of the input.
    """

    turn: Turn  # (k, n, n) or (1, n, n)
    shape: tuple[int, ...]

    row_fields = ("shape",)
    reads_base = by_rows = True

    def delta_weight(self, at: At) -> Tensor:
        blocks = at.put(self.turn.blocks(at.device, at.dtype)) * at.multiplier
        return mix(at.base.flatten(1), blocks.transpose(-1, -2), -1).reshape(at.base.shape)

    def form(self, rank: int | None = None) -> Form | None:
        return Form(on_input=True) if pointwise(self.shape) else None

    def input_effect(self, device: torch.device, dtype: torch.dtype) -> InputEffect:
        return replace(self, turn=self.turn.effect(device, dtype))

    def delta(self, x: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        return at_multiplier(partial(mix, x, dim=op.channels), self.turn.source, multiplier)


def pointwise(shape: tuple[int, ...]) -> bool:
    """Return whether a weight (out, in, *kernel) reads one place only."""
    return math.prod(shape[2:]) == 1


def rescaled(y: Tensor, change: Tensor, excess: Tensor) -> Tensor:
    """Return the change of y if y + change is scaled by 1 + excess."""
    return change + (y + change) * excess


def check_blocks(blocks: Tensor, width: int, name: str) -> None:
    """Check that blocks (k, n, n) fit `width` channels; raise ValueError if they do not."""
    if blocks.ndim != 3 or blocks.shape[1] != blocks.shape[2] or blocks.shape[0] * blocks.shape[1] != width:
        raise unfit(f"{name} (k, n, n) with k * n = {width}", blocks)


def excess_of(scale: Tensor | None, width: int, name: str) -> Tensor | None:
    """Return a scale of `width` outputs less 1, in fp32 or better; raise ValueError if it has another length."""
    if scale is None:
        return None
    if scale.numel() != width:
        raise unfit(f"{name} ({width}, 1)", scale)
    return scale.reshape(-1).to(wide(scale.dtype)) - 1


_SMALL, _LARGEST = 16, 64
_SMALL_FACTOR, _ENOUGH = 32, 8
_TINY = torch.finfo(torch.float32).tiny
