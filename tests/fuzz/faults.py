"""One input to its end, and what of that is a fault."""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .target import Fault, Target, check_answer

MOST_SECONDS = 1.0
MOST_GROWTH = 500 << 20  # bytes, of the process's peak


@dataclass
class Figures:
    """What a run over a target came to."""

    executions: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    """Seconds, of one input."""
    growth: int = 0
    """Bytes by which the process's peak of memory grew after its first inputs."""


class Trial:
    """Tries one input after the other.

    Args:
        target: of the inputs.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.figures = Figures()
        self.current: bytes = b""
        """The input that is tried, for whoever watches."""
        self.since = 0.0
        """When it was begun; 0 while none is."""
        self._first_peak = 0

    def __call__(self, data: bytes) -> None:
        """Try one input.

        Raises:
            Exception: a fault; of whatever kind the target raised.
        """
        self.current, self.since = data, time.perf_counter()
        before = peak_memory()
        try:
            self._run(data)
            seconds = time.perf_counter() - self.since
            if seconds > MOST_SECONDS:
                seconds = min(
                    seconds, *(self._seconds(data) for _ in range(2))
                )  # another program may have had the core
        finally:
            self.since = 0.0
        figures = self.figures
        figures.executions += 1
        figures.longest = max(figures.longest, seconds)
        peak = peak_memory()
        if figures.executions <= 20:
            self._first_peak = peak  # whatever is made once was made by then
        figures.growth = max(figures.growth, peak - self._first_peak)
        if seconds > MOST_SECONDS:
            raise Fault(f"it takes {seconds:.1f} s")
        if peak - before > MOST_GROWTH:
            raise Fault(f"it takes {(peak - before) >> 20} MB of memory")

    def _run(self, data: bytes) -> None:
        with listening() as unforeseen:
            try:
                answer = self.target.run(data)
            except self.target.refusals as error:
                answer = str(error)
                if not answer.strip():
                    raise Fault(f"{type(error).__name__} says nothing") from error
        check_answer(answer)
        if unforeseen:
            raise Fault("an error that nobody foresaw is in the log") from unforeseen[0]

    def _seconds(self, data: bytes) -> float:
        self.since = begun = time.perf_counter()
        self._run(data)
        return time.perf_counter() - begun


class _Listener(logging.Handler):
    """Notes the errors that were caught and logged with their traceback, and shows nothing of the log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.found.append(record.exc_info[1])


_LOGGERS = tuple(map(logging.getLogger, ("extension", "lib_lora")))


@contextmanager
def listening() -> Iterator[list[BaseException]]:
    """Note what the packages log, in a `with` statement."""
    listener = _Listener()
    for logger in _LOGGERS:
        logger.addHandler(listener)
        logger.propagate = False
    try:
        yield listener.found
    finally:
        for logger in _LOGGERS:
            logger.removeHandler(listener)
            logger.propagate = True


def where_from(error: BaseException) -> str:
    """Return what tells two faults apart: their kind, and the place in the project they come from."""
    error = error.__cause__ if isinstance(error, Fault) and error.__cause__ is not None else error
    frames = [one for one in traceback.extract_tb(error.__traceback__) if os.sep + "fuzz" + os.sep not in one.filename]
    own = [one for one in frames if "lib_lora" in one.filename or f"{os.sep}extension{os.sep}" in one.filename]
    place = f"{Path(own[-1].filename).name}:{own[-1].name}" if own else ""
    return f"{type(error).__name__} {place or str(error)[:60]}"


def peak_memory() -> int:
    """Return how much memory this process had at most, in bytes."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
