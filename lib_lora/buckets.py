"""Ranks rounded up, so that compiled code that was made for one stack serves others.

A graph has the shapes of what it was made with. Where the ranks of a layer's pairs add up to another number, it would
be compiled anew; rounded up to the next of a few sizes and filled with zeros, most stacks have the same shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .errors import StorageError

RANK_BUCKETS = (8, 16, 32, 64, 128, 256, 512)
"""Sizes that lose little: files have ranks of powers of two, and a few zeros cost less than half of what they fill."""


def check_buckets(buckets: Sequence[int]) -> tuple[int, ...]:
    """Return sizes as they are used.

    Raises:
        StorageError: they are no whole numbers from 1, each larger than the one before.
    """
    good = all(isinstance(size, int) and size > 0 for size in buckets)
    if not good or any(one >= other for one, other in pairwise(buckets)):
        raise StorageError(f"rank buckets are whole numbers from 1 in rising order, not {list(buckets)}")
    return tuple(buckets)


def padded_rank(rank: int, buckets: Sequence[int]) -> int:
    """The least size that holds a rank; behind the largest, multiples of that; without sizes the rank itself."""
    if not buckets:
        return rank
    largest = buckets[-1]
    return next((size for size in buckets if size >= rank), -(-rank // largest) * largest)
