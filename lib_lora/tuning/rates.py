"""What adapters cost a device beside their layers, and what merging them costs; measured once, and kept.

A model of few numbers: a layer's adapters take a time for being called at all, and one for each multiplication.
Merging takes a time for each layer, and one for each entry of its weight, which is read, saved, summed, written and
put back.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import threading
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from math import isfinite
from pathlib import Path

import torch

from ..execution.low_rank_products import MARGIN

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Work:
    """The sizes of the adapters of one layer."""

    numbers: int
    """Of all its adapters; a call multiplies each of them at least once per place."""
    entries: int
    """Of its weight."""
    sides: int
    """Inputs and outputs of the layer: the numbers of one rank."""
    builds: bool
    """Whether the weight is built for each call."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The times of a device in one dtype, in seconds."""

    call: float
    """Adapters of a layer, however small."""
    multiply: float
    """One multiplication of a number of an adapter."""
    build: float
    """One entry of a weight that is built for a call."""
    touch: float
    """Merging into a layer and putting its weight back, however small."""
    entry: float
    """The same for one entry of the weight."""

    def live(self, work: Work, places: int, *, exact: bool) -> float:
        """Return the seconds of a call beside the layer.

        Args:
            work: of the layer.
            places: tokens or pixels that it computes.
            exact: whether the layer adds a pair to its weight in scratch memory where there are many.
        """
        if work.builds:
            return self.call + self.build * work.entries + self._sum(work)
        most = MARGIN * work.entries / work.sides if exact else places
        return self.call + self.multiply * work.numbers * min(places, most)

    def merging(self, work: Work) -> float:
        """Return the seconds to merge into the layer and to restore its weight."""
        return self.touch + self.entry * work.entries + self._sum(work)

    def _sum(self, work: Work) -> float:
        return self.multiply * work.numbers * work.entries / work.sides


class RateBook:
    """Rates by device and dtype.

    Args:
        measure: gives those that are in no book yet.
        path: of the file where they outlive the process; None where nothing does. A file that cannot be read or
            written is as none.
    """

    def __init__(self, measure: Callable[[torch.device, torch.dtype], Rates], path: Path | None = None) -> None:
        self._measure = measure
        self._path = path
        self._known: dict[str, Rates] = {}
        self._lock = threading.Lock()

    def of(self, device: torch.device, dtype: torch.dtype) -> Rates:
        """Return the rates of a device; measure them the first time."""
        key = _name(device, dtype)
        with self._lock:
            if key not in self._known:
                self._known = {**self._read(), **self._known}
            if key not in self._known:
                self._known[key] = self._measure(device, dtype)
                self._write()
            return self._known[key]

    def _read(self) -> dict[str, Rates]:
        try:
            text = "{}" if self._path is None else self._path.read_text(encoding="utf-8")
            found = {key: Rates(**rates) for key, rates in json.loads(text).items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            logger.warning("%s cannot be read, its measurements are made again: %s", self._path, error)
            return {}
        return {key: rates for key, rates in found.items() if all(map(_is_time, astuple(rates)))}

    def _write(self) -> None:
        if self._path is None:
            return
        text = json.dumps({key: asdict(rates) for key, rates in self._known.items()}, indent=1)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = self._path.with_suffix(f".{os.getpid()}")
            new.write_text(text, encoding="utf-8")
            new.replace(self._path)
        except OSError as error:
            logger.warning("%s cannot be written, so its measurements are made again next time: %s", self._path, error)


def _is_time(value: object) -> bool:
    return isinstance(value, float) and isfinite(value) and value >= 0.0


def _name(device: torch.device, dtype: torch.dtype) -> str:
    if device.type == "cuda":
        what = torch.cuda.get_device_name(device)
    else:
        what = f"{device.type}, {platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    return f"{what}, {dtype}, torch {torch.__version__}, cold caches"
