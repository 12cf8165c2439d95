"""Jobs, one at a time, in order of arrival."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from ..hosts.txt2img import Progress, RequestError, Result, Txt2Img
from .pnginfo import save_picture
from .render import Watch, check, render

if TYPE_CHECKING:
    from .studio import Studio

logger = logging.getLogger(__name__)

MOST_WAITING = 100
"""Jobs that wait at one time."""
MOST_PIXELS_WAITING = 500_000_000
"""Of the pictures that they start from."""

T = TypeVar("T")


class BusyError(RequestError):
    """Too many jobs are waiting."""


class Job:
    """One text-to-image job, from waiting to done."""

    def __init__(self, request: Txt2Img, start: Callable[[Job], Future[Result]]) -> None:
        self.request = request
        self._progress = Progress(waiting=True)
        self._started: float | None = None
        self._cancel, self._interrupt, self._skip = threading.Event(), threading.Event(), threading.Event()
        self._future = start(self)

    @property
    def progress(self) -> Progress:
        """Return the progress; keeps the latest preview."""
        return self._progress

    @property
    def done(self) -> bool:
        return self._future.done()

    def cancel(self) -> None:
        """Stop at the next step, and at once where the job waits; finished pictures are kept."""
        self._cancel.set()
        self._future.cancel()  # without effect on a job that runs

    def interrupt(self) -> None:
        """Stop at the next step; the unfinished pictures are kept, too."""
        self._interrupt.set()

    def skip(self) -> None:
        """Stop the present batch at the next step, keep its unfinished pictures and go on with the next batch."""
        self._skip.set()

    @property
    def interrupted(self) -> bool:
        """Return whether it is to stop."""
        return self._cancel.is_set() or self._interrupt.is_set()

    @property
    def skipped(self) -> bool:
        """Return whether the present batch is to stop."""
        return self._skip.is_set()

    @property
    def seconds_left(self) -> float:
        """Return how long it takes from now on, by the time of the steps so far; 0 before the first."""
        done, started = self._progress.fraction, self._started
        return 0.0 if started is None or not done else (time.monotonic() - started) * (1 - done) / done

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for the end; tell whether the job is done."""
        wait([self._future], seconds)
        return self.done

    def over(self) -> asyncio.Event:
        """Return an event of the running loop that is set at the end, so that no thread has to wait."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def tell(_: object) -> None:
            with suppress(RuntimeError):  # the loop was closed before the job ended
                loop.call_soon_threadsafe(event.set)

        self._future.add_done_callback(tell)
        return event

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end.

        Raises:
            TimeoutError: not done after `timeout` seconds.
            Exception: any error of the job.
        """
        try:
            return self._future.result(timeout)
        except CancelledError:  # it never began
            return Result((), self.request.seed, cancelled=True)

    def begin(self) -> Watch:
        """Note that it waits no more; return what its work has to watch."""
        self._progress, self._started = Progress(), time.monotonic()
        asked = self._cancel.is_set, self._interrupt.is_set, self._skip.is_set
        return Watch(self._report, *asked, batch_begins=self._skip.clear)

    def _report(self, progress: Progress) -> None:
        if progress.text is not None:  # between two steps
            progress = replace(self._progress, text=progress.text or None)
        if progress.preview is None and self._progress.preview is not None:
            progress = replace(progress, preview=self._progress.preview)
        self._progress = progress


class Runner:
    """Runs jobs one after another on its own thread."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self._worker = ThreadPoolExecutor(1, "remora-jobs")
        self._jobs: list[Job] = []

    @property
    def current(self) -> Job | None:
        """Return the job that runs, or is next."""
        self._forget_those_done()
        return self._jobs[0] if self._jobs else None

    def _forget_those_done(self) -> None:
        """Forget finished jobs; the caller holds their pictures."""
        self._jobs = [job for job in self._jobs if not job.done]

    def submit(self, request: Txt2Img, save: bool = False) -> Job:
        """Queue a job; `save` writes its pictures to the output folder.

        Raises:
            RequestError: a value is out of bounds, or the sampler is unknown.
            BusyError: too many jobs are waiting.
            LoraError: a LoRA tag cannot be parsed, and the setting is to fail.
        """
        self.admit(request)
        job = Job(request, lambda job: self._worker.submit(_work, self.studio, save, job))
        self._jobs.append(job)
        return job

    def admit(self, request: Txt2Img) -> None:
        """Check a job before it waits for its turn; raises as `submit`."""
        check(self.studio, request)
        self.refuse_if_busy(0 if request.source is None else request.source.pixels)

    def refuse_if_busy(self, pixels: int = 0) -> None:
        """Refuse another job while too many wait, or while they keep too many pixels in memory.

        Raises:
            BusyError: try again later.
        """
        self._forget_those_done()
        if len(self._jobs) > MOST_WAITING:
            raise BusyError(f"{MOST_WAITING} jobs are waiting already; try again when some are done")
        sources = [job.request.source for job in self._jobs]
        if pixels and sum(source.pixels for source in sources if source is not None) + pixels > MOST_PIXELS_WAITING:
            raise BusyError("the waiting jobs have too many large pictures already; try again when some are done")

    async def call(self, function: Callable[[], T]) -> T:
        """Run a function between two jobs, and wait for it without a thread."""
        return await asyncio.wrap_future(self._worker.submit(function))

    def close(self) -> None:
        """Cancel all jobs and wait until the present step has ended."""
        for job in self._jobs:
            job.cancel()
        self._worker.shutdown(wait=True)


def _work(studio: Studio, save: bool, job: Job) -> Result:
    result = render(studio, job.request, job.begin())
    folder = studio.output_dir
    if not save or folder is None:
        return result
    try:
        pictures = tuple(replace(picture, path=save_picture(picture, folder)) for picture in result.pictures)
    except OSError as error:  # what was made is shown all the same
        logger.warning("pictures cannot be saved in %s: %s", folder, error.strerror or error)
        problem = f"the pictures could not be saved in {folder} ({error.strerror or error}); save them from here"
        return replace(result, notes=(*result.notes, problem))
    return replace(result, pictures=pictures)
