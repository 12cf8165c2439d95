"""Layers of a model timed in the middle of its step, each next to the same layer of another model.

A step takes seconds, in which a machine's moods change more than what is to be told apart; two calls of one layer are
milliseconds from each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from torch import Tensor, nn


def extra_seconds(
    step: Callable[[], object], model: nn.Module, other: nn.Module, paths: Iterable[str], *, own_first: bool, times: int
) -> float:
    """Run a step, and at each call of a layer call it and its like in turns, on the same input.

    Args:
        step: one of `model`.
        model: whose step it is.
        other: built alike.
        paths: of the layers in both.
        own_first: whether the model's own layer is the first of each turn.
        times: turns of each call; the fastest counts.

    Returns:
        Seconds that the model's layers take longer, all of them together.
    """
    total = 0.0

    def timed(like: nn.Module) -> Callable[[nn.Module, tuple[Tensor]], None]:
        def call(layer: nn.Module, arguments: tuple[Tensor]) -> None:
            nonlocal total
            both = (layer, like) if own_first else (like, layer)
            turns = [[_seconds(one, arguments) for one in both] for _ in range(times)]
            first, second = map(min, zip(*turns, strict=True))
            total += first - second if own_first else second - first

        return call

    handles = [model.get_submodule(path).register_forward_pre_hook(timed(other.get_submodule(path))) for path in paths]
    try:
        step()
    finally:
        for handle in handles:
            handle.remove()
    return total


def _seconds(layer: nn.Module, arguments: tuple[Tensor]) -> float:
    began = time.perf_counter()
    layer.forward(*arguments)
    return time.perf_counter() - began
