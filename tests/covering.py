"""Covering designs: a few of many cases, chosen such that every combination of so many values still occurs."""

from __future__ import annotations

import heapq
import random
from collections.abc import Hashable, Sequence
from itertools import combinations
from math import comb


def covering(cases: Sequence[Sequence[Hashable]], strength: int = 2) -> list[int]:
    """Return the places of a few cases that have every combination of `strength` values that any case has, in order.

    Each case is one value for each parameter. The design is greedy: the case with the most new combinations is taken
    next. Of several a fixed random order decides, so that all values are used about equally often, and the same cases
    always give the same design.
    """
    waiting = {each for case in cases for each in _combinations(case, strength)}
    order = random.Random(0).sample(range(len(cases)), len(cases))
    # a case never has more new combinations than when it was last counted: only the best of the heap is counted again
    heap = [(-comb(len(cases[place]), strength), turn, place) for turn, place in enumerate(order)]
    heapq.heapify(heap)
    taken = []
    while waiting:
        _, turn, place = heapq.heappop(heap)
        new = waiting.intersection(_combinations(cases[place], strength))
        if heap and (-len(new), turn) > heap[0][:2]:
            heapq.heappush(heap, (-len(new), turn, place))
            continue
        waiting -= new
        taken.append(place)
    return sorted(taken)


def _combinations(case: Sequence[Hashable], strength: int) -> list[tuple[tuple[int, Hashable], ...]]:
    return list(combinations(enumerate(case), strength))
