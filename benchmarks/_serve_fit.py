"""A model of the rate of a service: seconds of a batch, hits by popularity and cache, and the bound of the routes.

A batch of n pictures with d different LoRA, m of which are read anew, takes `call + n * picture + d * lora + m * miss`
seconds. The popularity of LoRA falls by Zipf. A cache keeps the LoRA used last, and Che's approximation tells how often
one is there. Requests go to the replica that had their LoRA before, so that the caches of replicas add up.

It assumes that replicas do not slow each other down, that there are always requests enough for full batches, and that
requests with one LoRA need no more than one replica.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Costs:
    """Seconds."""

    call: float
    """Of a batch, whatever is in it."""
    picture: float
    """Of each picture of a batch."""
    lora: float
    """Of each LoRA of a batch."""
    miss: float
    """Of each LoRA that is read anew."""


def fit(rows: Sequence[Mapping[str, Any]]) -> Costs:
    """Fit the costs to rows of `serve.py rate`, none of them below zero; each row has the same weight."""
    measured = np.array([row["batch_s"] for row in rows])
    sizes = np.array(
        [[1, row["batch_pictures"], row["batch_loras"], row["batch_pictures"] * (1 - row["hits"])] for row in rows]
    )
    left = list(range(sizes.shape[1]))
    while True:  # a cost below zero is left out, and the others are fitted again
        found = np.linalg.lstsq(sizes[:, left] / measured[:, None], np.ones(len(rows)), rcond=None)[0]
        if (found >= 0).all():
            break
        left.pop(int(found.argmin()))
    values = dict.fromkeys(range(sizes.shape[1]), 0.0) | dict(zip(left, map(float, found), strict=True))
    return Costs(**{field.name: values[i] for i, field in enumerate(fields(Costs))})


def chances(distinct: int, exponent: float) -> list[float]:
    """Return the chance of each LoRA, the most popular one first."""
    weights = [(rank + 1) ** -exponent for rank in range(distinct)]
    total = sum(weights)
    return [weight / total for weight in weights]


def hits(popularity: Sequence[float], kept: int) -> float:
    """Return the share of requests whose LoRA is in a cache of `kept`, by Che's approximation."""
    if kept >= len(popularity):
        return 1.0
    chance = np.asarray(popularity)
    low, high = 0.0, 1.0
    while (1 - np.exp(-chance * high)).sum() < kept:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        is_low = (1 - np.exp(-chance * middle)).sum() < kept
        low, high = (middle, high) if is_low else (low, middle)
    return float((chance * (1 - np.exp(-chance * high))).sum())


def in_batch(popularity: Sequence[float], pictures: int) -> float:
    """Return how many different LoRA a batch has."""
    return sum(1 - (1 - chance) ** pictures for chance in popularity)


def rate(costs: Costs, replicas: int, popularity: Sequence[float], kept: int, pictures: int = 8) -> float:
    """Return the pictures a second of replicas that are never idle.

    Args:
        costs: of a replica.
        replicas: how many there are.
        popularity: the chance of each LoRA.
        kept: LoRA that each replica keeps.
        pictures: of a batch.
    """
    loras = in_batch(popularity, pictures)
    missed = loras * (1 - hits(popularity, kept * replicas))
    seconds = costs.call + pictures * costs.picture + loras * costs.lora + missed * costs.miss
    return replicas * pictures / seconds


def prediction(costs: Costs, routes: float = math.inf, distinct: int = 10_000) -> list[list[str]]:
    """Return rows of a table: GPUs, exponent, LoRA kept, hits, rate, and what bounds it.

    Args:
        costs: of a replica.
        routes: requests a second that one process of routes can pass on.
        distinct: how many LoRA there are.
    """
    rows = []
    for replicas in (1, 8, 64):
        for exponent in (0.0, 0.8, 1.2):
            popularity = chances(distinct, exponent)
            for kept in (16, 512):
                most = rate(costs, replicas, popularity, kept)
                share = hits(popularity, min(kept * replicas, distinct))
                bound = "routes" if routes < most else "replicas"
                cells = (str(replicas), f"{exponent}", str(kept), f"{share:.2f}", f"{min(most, routes):.1f}", bound)
                rows.append(list(cells))
    return rows
