"""Jobs, one at a time, in order of arrival."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from ..hosts.txt2img import Progress, Result, Txt2Img
from .pnginfo import save_picture
from .render import Watch, check, render

if TYPE_CHECKING:
    from .studio import Studio

logger = logging.getLogger(__name__)

T = TypeVar("T")
Work: TypeAlias = Callable[[Txt2Img, Watch], Result]


class Job:
    """One text-to-image job, from waiting to done."""

    def __init__(self, request: Txt2Img, start: Callable[[Callable[[], Result]], Future[Result]], work: Work) -> None:
        self.request = request
        self._progress = Progress(waiting=True)
        self._started: float | None = None
        self._cancel, self._interrupt, self._skip = threading.Event(), threading.Event(), threading.Event()
        self._future = start(lambda: self._run(work))

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

    def _run(self, work: Work) -> Result:
        self._progress, self._started = Progress(), time.monotonic()
        asked = self._cancel.is_set, self._interrupt.is_set, self._skip.is_set
        return work(self.request, Watch(self._report, *asked, batch_begins=self._skip.clear))

    def _report(self, progress: Progress) -> None:
        if progress.preview is None and self._progress.preview is not None:
            progress = Progress(progress.step, progress.steps, preview=self._progress.preview)
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
            LoraError: a LoRA tag cannot be parsed, and the setting is to fail.
        """
        check(self.studio, request)
        self._forget_those_done()
        job = Job(request, self._worker.submit, partial(_work, self.studio, save))
        self._jobs.append(job)
        return job

    def call(self, function: Callable[[], T]) -> T:
        """Run a function between two jobs, and wait for it."""
        return self._worker.submit(function).result()

    def close(self) -> None:
        """Cancel all jobs and wait until the present step has ended."""
        for job in self._jobs:
            job.cancel()
        self._worker.shutdown(wait=True)


def _work(studio: Studio, save: bool, request: Txt2Img, watch: Watch) -> Result:
    result = render(studio, request, watch)
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
