"""What measures a device to compute faster on it: where merging pays, and kernels of our own.

`Tuner` is handed to an engine. The core imports nothing of this room: without a tuner nothing is measured.
`renames`, `key_list` and `skeleton` serve the command line alone.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from .auto import Auto
from .calibration import measure
from .kernels import Chooser
from .rates import RateBook

__all__ = ["Tuner"]


class Tuner(Auto):
    """The measurements of one engine: where merging pays, and which kernel adds a LoRA to a linear layer.

    Args:
        rates: the file for a device's measurements; None measures in each process.
        kernels: whether a Triton kernel may be used on CUDA devices, for the shapes for which it is measured to be
            faster than torch's products and as exact.
    """

    def __init__(self, *, rates: Path | None = None, kernels: bool = False) -> None:
        super().__init__(RateBook(measure, rates))
        self._chooser = Chooser() if kernels else None
        self.adds_pairs = kernels

    def add_pair_(self, y: Tensor, x: Tensor, down: Tensor, up: Tensor, strength: Tensor) -> bool:
        """Add x down^T diag(strength) up^T onto `y` by a kernel that is faster; see `kernels.Chooser.add_pair_`."""
        return self._chooser is not None and self._chooser.add_pair_(y, x, down, up, strength)
