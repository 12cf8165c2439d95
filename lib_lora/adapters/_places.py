"""Entries of a weight that PEFT draws from a seed."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=64)  # layers of one shape have the same, and a draw takes memory for every entry of the weight
def places(entries: int, seed: int, count: int) -> Tensor:
    """Return the first `count` of a permutation of the entries of a flattened weight, as PEFT draws it on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(entries, generator=generator)[:count].clone()
