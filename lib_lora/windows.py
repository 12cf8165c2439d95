"""An adapter's change of some outputs of a layer that is more than the one the adapter is for."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .adapters.base import OutputEffect
from .operation import Operation


@dataclass(frozen=True, slots=True)
class InWindow(OutputEffect):
    """A change of some outputs, and none of the others."""

    inner: OutputEffect
    rows: tuple[int, int]

    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        own = op.window(self.rows)
        change = y.new_zeros(y.shape)
        own.outputs(change).copy_(self.inner.delta(x, own.outputs(y), multiplier, own))
        return change


def in_window(effect: OutputEffect, rows: tuple[int, int] | None) -> OutputEffect:
    """The effect on these outputs; None for all."""
    return effect if rows is None else InWindow(effect, rows)
