"""Covering designs: a few of many cases, chosen such that every combination of so many values still occurs."""

from __future__ import annotations

import heapq
import random
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations, product
from math import comb
from typing import Any

import pytest


def some_of(names: Sequence[str], *axes: Iterable[Any], strength: int = 2) -> pytest.MarkDecorator:
    """Give a test a few combinations of values, in which every combination of `strength` values occurs.

    Args:
        names: of the test's parameters.
        axes: the values of each parameter. A `pytest.param` has the values of several parameters, which stay together.
        strength: 2 gives every pair of values, 1 every value.
    """
    return pytest.mark.parametrize(names, chosen(*axes, strength=strength))


def chosen(*axes: Iterable[Any], strength: int = 1) -> list[Any]:
    """Return the combinations of `some_of`, as `pytest.param`."""
    cases = [_joined(parts) for parts in product(*axes)]
    keys = [[identity(value) for value in case.values] for case in cases]
    return [cases[place] for place in covering(keys, strength)]


def _joined(parts: Sequence[Any]) -> Any:
    values: list[Any] = []
    names: list[str] = []
    for part in parts:
        if hasattr(part, "values") and hasattr(part, "marks"):  # a pytest.param
            values += part.values
            names.append(part.id or "-".join(map(_name, part.values)))
        else:
            values.append(part)
            names.append(_name(part))
    return pytest.param(*values, id="-".join(names))


def _name(value: Any) -> str:
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else str(value)


def identity(value: object) -> Hashable:
    """Return a key for a value; those without a hash are the same where they are one object."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return (type(value), value)


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
