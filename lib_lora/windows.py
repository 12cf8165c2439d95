"""An adapter's change of some outputs of a layer that is more than the one the adapter is for."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor

from .adapters.base import OutputEffect
from .operation import Operation


@dataclass(frozen=True, slots=True)
class InWindow(OutputEffect):
    """A change of some outputs, and none of the others."""

    inner: OutputEffect
    rows: tuple[int, int]

    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        own, (start, stop) = op.window(self.rows), self.rows
        change = self.inner.delta(x, own.outputs(y), multiplier, own)
        return F.pad(change, (*(0, 0) * op.spatial, start, y.shape[op.channels] - stop))


def in_window(effect: OutputEffect, rows: tuple[int, int] | None) -> OutputEffect:
    """The effect on these outputs; None for all."""
    return effect if rows is None else InWindow(effect, rows)
