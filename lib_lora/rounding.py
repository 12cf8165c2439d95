"""Stochastic rounding, so that a small change of a low-precision weight is right on average instead of lost.

https://arxiv.org/abs/1502.02551: a number between two neighbours becomes the nearer one with the probability that makes
its expectation the number itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_RANDOM = frozenset({"cpu", "cuda", "xpu", "mps"})


def round_stochastically(out: Tensor, value: Tensor, generator: torch.Generator) -> None:
    """Write `value` into `out`, which has fewer bits, rounding each number up or down at random.

    Args:
        out: floating, of the shape of `value`.
        value: in fp32 or fp64; numbers outside of the range of `out` are rounded as torch does.
        generator: where the randomness comes from; on the device of `value`, or on the CPU.
    """
    nearest = value.to(out.dtype)
    error = value - nearest.to(value.dtype)
    neighbour = _neighbour(nearest, error)
    gap = (neighbour.to(value.dtype) - nearest.to(value.dtype)).abs()
    random = torch.rand(value.shape, generator=generator, device=generator.device, dtype=torch.float32)
    # beyond the largest number the neighbour is infinite or no number, and the comparison false
    other = random.to(value.device) * gap < error.abs()
    taken = other & neighbour.to(value.dtype).isfinite()
    # as bits: before torch 2.3 there is no `where` for float8
    out.copy_(torch.where(taken, _bits(neighbour), _bits(nearest)).view(out.dtype))


def generator_for(device: torch.device, seed: int) -> torch.Generator:
    """A generator that gives the same numbers for the same seed, on `device` where that has one."""
    generator = torch.Generator(device if device.type in _RANDOM else "cpu")
    generator.manual_seed(seed)
    return generator


def digest(tensor: Tensor) -> tuple[int, int]:
    """Two sums over the bits of a tensor; equal bits give equal sums on every device, a change other ones."""
    bits = _bits(tensor.detach().contiguous()).flatten()
    total, weighted = 0, 0
    for i, block in enumerate(torch.split(bits, 1 << 20)):
        numbers = block.to(torch.int64)
        places = torch.arange(1, numbers.numel() + 1, device=numbers.device)
        total += int(numbers.sum())
        weighted += (i + 1) * int((numbers * places).sum())
    return total, weighted


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(_BITS[tensor.element_size()])


def _neighbour(nearest: Tensor, error: Tensor) -> Tensor:
    """The next number of the same dtype on the side where the rounded-off rest lies."""
    bits = _bits(nearest)
    away = (error > 0) == (nearest.to(error.dtype) > 0)  # from zero: one more in the bits, whatever the sign
    stepped = torch.where(away, bits + 1, bits - 1)
    smallest = torch.where(error > 0, torch.ones_like(bits), torch.ones_like(bits) | _sign(bits))
    return torch.where(nearest.to(error.dtype) == 0, smallest, stepped).view(nearest.dtype)


def _sign(bits: Tensor) -> int:
    """The bit that makes a number negative."""
    return 128 if bits.dtype == torch.uint8 else torch.iinfo(bits.dtype).min
