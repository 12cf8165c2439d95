"""Layers of a model timed in the middle of its step, each next to the same layer of another model.

A step takes seconds, in which a machine's moods change more than what is to be told apart; two calls of one layer are
milliseconds from each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Layers:
    """Seconds that layers took in one step."""

    own: float
    """All of them together."""
    other: float
    """Those of the other model."""


def time_layers(
    step: Callable[[], object], model: nn.Module, other: nn.Module, paths: Iterable[str], *, own_first: bool, times: int
) -> Layers:
    """Run a step, and at each call of a layer call it and its like in turns, on the same input.

    Args:
        step: one of `model`.
        model: whose step it is.
        other: built alike.
        paths: of the layers in both.
        own_first: whether the model's own layer is the first of each turn.
        times: turns of each call; the faster half of them counts.
    """
    seconds = [0.0, 0.0]

    def timed(like: nn.Module) -> Callable[[nn.Module, tuple[Tensor]], None]:
        def call(layer: nn.Module, arguments: tuple[Tensor]) -> None:
            both = (layer, like) if own_first else (like, layer)
            found: tuple[list[float], list[float]] = [], []
            for _ in range(times):
                for place, one in enumerate(both):
                    found[place].append(_seconds(one, arguments))
            first, second = (sum(sorted(one)[: -(-times // 2)]) / -(-times // 2) for one in found)
            seconds[0] += first if own_first else second
            seconds[1] += second if own_first else first

        return call

    handles = [model.get_submodule(path).register_forward_pre_hook(timed(other.get_submodule(path))) for path in paths]
    try:
        step()
    finally:
        for handle in handles:
            handle.remove()
    return Layers(*seconds)


def _seconds(layer: nn.Module, arguments: tuple[Tensor]) -> float:
    began = time.perf_counter()
    layer.forward(*arguments)
    return time.perf_counter() - began
