"""What measures a device to compute faster on it: where merging pays.

`Tuner` is handed to an engine. The core imports nothing of this room: without a tuner nothing is measured.
"""

from __future__ import annotations

from pathlib import Path

from .auto import Auto
from .calibration import measure
from .rates import RateBook

__all__ = ["Tuner"]


class Tuner(Auto):
    """The measurements of one engine: where merging pays.

    Args:
        rates: the file for a device's measurements; None measures in each process.
    """

    def __init__(self, *, rates: Path | None = None) -> None:
        super().__init__(RateBook(measure, rates))
