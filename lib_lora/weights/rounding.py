"""Stochastic rounding, so that a small change of a low-precision weight is right on average instead of lost.

https://arxiv.org/abs/1502.02551: a number between two neighbours becomes the nearer one with the probability that makes
its expectation the number itself.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_RANDOM = frozenset({"cpu", "cuda", "xpu", "mps"})


def round_stochastically(out: Tensor, value: Tensor, generator: torch.Generator) -> None:
    """Write `value`, in fp32, into `out`, which has fewer bits, rounding each number up or down at random.

    Numbers outside of the range of `out` are rounded as torch does. The generator is on the device, or on the CPU.
    """
    limits = torch.finfo(out.dtype)
    # below the smallest normal number, numbers are as far apart as those above it, which are made of bits of fp32
    lift = torch.where(value.abs() < limits.tiny, torch.full_like(value, limits.tiny).copysign_(value), 0.0)
    rounded = _cut(value + lift, 23 + round(math.log2(limits.eps)), generator) - lift
    out.copy_(torch.where(value.abs() < limits.max, rounded, value))


def _cut(value: Tensor, dropped: int, generator: torch.Generator) -> Tensor:
    """Clear the last bits of fp32 after adding a random number of as many bits, so that they carry or not."""
    # several numbers from each draw of 64 bits, as drawing takes the time
    kind, each = (torch.int16, 4) if dropped <= 16 else (torch.int32, 2)
    drawn = torch.empty(-(-value.numel() // each), dtype=torch.int64, device=generator.device)
    bits = drawn.random_(-(1 << 63), None, generator=generator).view(kind)[: value.numel()]
    random = bits.to(value.device, torch.int32).bitwise_and_((1 << dropped) - 1).view(value.shape)
    return ((value.view(torch.int32) + random) & -(1 << dropped)).view(torch.float32)


def generator_for(device: torch.device, seed: int) -> torch.Generator:
    """Seed a generator on `device`, or on the CPU if the device has none."""
    generator = torch.Generator(device if device.type in _RANDOM else "cpu")
    generator.manual_seed(seed)
    return generator
