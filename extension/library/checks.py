"""What the doctor measures of LoRA files: in the background, one thing at a time, while somebody asks for it."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from lib_lora import LoraError

from .walk import CatalogFile

logger = logging.getLogger(__name__)

_ASKED_AGAIN = 15.0
"""Seconds after which a check that nobody asks for any more is dropped: its page is closed."""
_KEPT = 64
"""Results that are kept."""
_WAITING = 20
"""Checks that are not done."""

Result = TypeVar("Result")
Progress: TypeAlias = Callable[[int, int], None]
"""Is called with the number of layers that are done, and of all."""
Measure: TypeAlias = Callable[[Sequence[Path], Progress], Result]
_Key: TypeAlias = tuple[Measure[Any], tuple[object, ...]]


class _Dropped(Exception):  # noqa: N818  # a way out, not an error
    """Nobody asks for this check any more."""


class TooManyChecks(Exception):  # noqa: N818  # says what it is
    """Too many checks wait."""


@dataclass
class Check(Generic[Result]):
    """One file or stack that is measured, or was."""

    done: int = 0
    """Layers."""
    layers: int = 0
    """Of the whole; 0 until they are counted."""
    result: Result | None = None
    problem: str = ""
    """Why it cannot be measured, as one sentence."""
    asked: float = field(default_factory=time.monotonic)

    @property
    def ended(self) -> bool:
        """Return whether there is a result or a problem."""
        return self.result is not None or bool(self.problem)


class Checks:
    """Measures files, and keeps the latest results in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._closing = threading.Event()
        self._checks: OrderedDict[_Key, Check[Any]] = OrderedDict()
        """The one asked for last is the last."""

    def of(self, measure: Measure[Result], files: Sequence[CatalogFile]) -> Check[Result]:
        """Return how far the check of some files is, and begin it if they, or their sidecars, are new.

        A check stops if nobody asks for it for a while. A problem is told once; the next request tries again.

        Raises:
            TooManyChecks: too many others wait.
        """
        key = measure, tuple((file.source, file.size, file.mtime_ns, *map(_state, file.files)) for file in files)
        with self._lock:
            check: Check[Result] | None = self._checks.get(key)
            if check is None:
                if sum(not one.ended for one in self._checks.values()) >= _WAITING:
                    raise TooManyChecks
                check = self._checks[key] = Check()
                if self._thread is None:
                    self._thread = ThreadPoolExecutor(1, "remora-check")
                self._thread.submit(self._in_thread, key, check, [file.source for file in files])
            check.asked = time.monotonic()
            self._checks.move_to_end(key)
            if check.problem:
                del self._checks[key]
            ended = [one for one, other in self._checks.items() if other.ended]
            for one in ended[:-_KEPT]:
                del self._checks[one]
        return check

    def close(self) -> None:
        """Stop the thread, in the middle of a file, too."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._closing.set()
            thread.shutdown(wait=True, cancel_futures=True)
            self._closing.clear()
        with self._lock:
            self._checks.clear()

    def _in_thread(self, key: _Key, check: Check[Any], paths: Sequence[Path]) -> None:
        measure, step = key[0], partial(self._step, key, check)
        try:
            step(0, 0)
            check.result = measure(paths, step)
            check.done = check.layers
        except _Dropped:
            return
        except LoraError as error:
            check.problem = str(error)
        except Exception as error:
            names = " and ".join(path.name for path in paths)
            logger.exception("remora: %s cannot be measured", names)
            check.problem = f"{names} cannot be measured: {error!r:.200}"

    def _step(self, key: _Key, check: Check[Any], done: int, layers: int) -> None:
        with self._lock:
            if self._closing.is_set() or time.monotonic() - check.asked > _ASKED_AGAIN:
                self._checks.pop(key, None)
                raise _Dropped
        check.done, check.layers = done, layers


def _state(path: Path) -> object:
    """Return what changes with the file beside a LoRA that may have its alpha."""
    try:
        stat = path.with_suffix(".json").stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns
