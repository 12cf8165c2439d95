"""The waiting requests of one model, and which of them share the next batch; it needs no Ray."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lib_lora import LoraError

from ..hosts.txt2img import RequestError, Result, Txt2Img
from ..standalone.jobs import Job, Runner
from .mixed import Mixed, batch_key, render_mixed

if TYPE_CHECKING:
    from ..standalone.render import Watch
    from ..standalone.studio import Studio

logger = logging.getLogger(__name__)

MOST_PICTURES = 8
"""Of one batch, unless the user says otherwise."""


@dataclass(frozen=True)
class BatchReport:
    """What one batch has cost."""

    requests: int
    """How many shared the batch."""
    pictures: int
    loras: int
    """Different ones that were active."""
    waited: tuple[float, ...]
    """Seconds of each request in the queue."""
    seconds: float
    """Of the batch."""


class DeadlineError(RequestError):
    """A request was not done in time."""


class Waiting:
    """One request in the queue.

    Args:
        request: what is wanted.
        key: as `batch_key`.
        user: whose it is.
        deadline: after which nobody wants it any more, by `time.monotonic`.
    """

    def __init__(self, request: Txt2Img, key: Hashable | None, user: str = "", deadline: float = math.inf) -> None:
        self.request, self.key, self.user, self.deadline = request, key, user, deadline
        self.since = time.monotonic()
        self.future = Future[Result]()
        self.job = Job(request, lambda _: self.future)

    def begin(self) -> Watch:
        """Note that it waits no more; return what its work has to watch."""
        watch = self.job.begin()
        return replace(watch, cancelled=lambda: watch.cancelled() or time.monotonic() > self.deadline)

    def end(self, result: Result | Exception) -> None:
        """Tell the result, which after the deadline is an error."""
        if time.monotonic() > self.deadline:
            result = DeadlineError("the request was not done in the time that it has; send it again later")
        if isinstance(result, Exception):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


class BatchQueue:
    """The requests that wait, in order of arrival; not thread-safe.

    Args:
        most: pictures of one batch; a request with more has a batch of its own.
    """

    def __init__(self, most: int = MOST_PICTURES) -> None:
        self._most = most
        self._waiting: list[Waiting] = []
        self._served: Counter[str] = Counter()
        """The pictures that each user with waiting requests was given."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, one: Waiting) -> None:
        """Let a request wait; a user who comes anew is treated as the one who was given least."""
        users = {other.user for other in self._waiting}
        if one.user not in users:
            self._served[one.user] = min((self._served[user] for user in users), default=0)
        self._waiting.append(one)

    def next_batch(self) -> list[Waiting]:
        """Take out the requests of the next batch; none if none waits.

        The user who was given the fewest pictures chooses the first one, and what may share its batch follows by the
        same rule.
        """
        batch: list[Waiting] = []
        pictures = 0
        while (one := self._next(batch, pictures)) is not None:
            self._waiting.remove(one)
            batch.append(one)
            pictures += one.request.count
            self._served[one.user] += one.request.count
        waiting = {one.user for one in self._waiting}
        self._served = Counter({user: count for user, count in self._served.items() if user in waiting})
        return batch

    def _next(self, batch: Sequence[Waiting], pictures: int) -> Waiting | None:
        fitting = [one for one in self._waiting if not batch or self._fits(one, batch[0], pictures)]
        return min(fitting, key=lambda one: (self._served[one.user], one.since), default=None)

    def _fits(self, one: Waiting, first: Waiting, pictures: int) -> bool:
        return first.key is not None and one.key == first.key and pictures + one.request.count <= self._most

    def take_late(self, now: float) -> Iterator[Waiting]:
        """Take out the requests that nobody waits for any more, or whose time is over."""
        for one in [one for one in self._waiting if one.future.done() or one.deadline < now]:
            self._waiting.remove(one)
            yield one


class BatchRunner(Runner):
    """Runs jobs in batches of those that fit together; a batch begins as soon as the one before has ended.

    Args:
        studio: the model.
        most: pictures of one batch.
        gather: seconds that the first request after a pause waits for others.
        report: called after each batch.
    """

    def __init__(
        self,
        studio: Studio,
        most: int = MOST_PICTURES,
        gather: float = 0.0,
        report: Callable[[BatchReport], None] = lambda _: None,
    ) -> None:
        super().__init__(studio)
        self._queue = BatchQueue(most)
        self._lock = threading.Lock()
        self._gather, self._report = gather, report
        self._is_busy = False
        self.failures = 0
        """Batches one after the other of which none was made, by a fault of the program or the device."""

    def submit(self, request: Txt2Img, save: bool = False, user: str = "", seconds: float = math.inf) -> Job:
        """Queue a job; its pictures are never saved.

        Args:
            request: the job.
            save: ignored.
            user: whose it is; users share the batches evenly.
            seconds: after which nobody wants it any more.

        Raises:
            RequestError: a value is out of bounds, or the sampler is unknown.
            BusyError: too many jobs are waiting.
            LoraError: a LoRA tag cannot be parsed, and the setting is to fail.
        """
        one = Waiting(request, batch_key(self.studio, request), user, time.monotonic() + seconds)
        with self._lock:
            self.admit(request)
            self._jobs.append(one.job)
            self._queue.add(one)
            starts, self._is_busy = not self._is_busy, True
        if starts:
            self._worker.submit(self._work)
        return one.job

    @property
    def waiting(self) -> int:
        """Return how many requests wait."""
        with self._lock:
            return len(self._queue)

    def _work(self) -> None:
        """Make batches until no request waits."""
        time.sleep(self._gather)
        while batch := self._next_batch():
            self._make(batch)

    def _next_batch(self) -> list[Waiting]:
        while True:
            with self._lock:
                late = list(self._queue.take_late(time.monotonic()))
                batch = [one for one in self._queue.next_batch() if one.future.set_running_or_notify_cancel()]
                self._is_busy = bool(batch) or len(self._queue) > 0
            for one in late:
                if one.future.set_running_or_notify_cancel():
                    one.end(Result((), one.request.seed, cancelled=True))
            if batch or not self._is_busy:
                return batch

    def _make(self, batch: Sequence[Waiting]) -> None:
        began = time.monotonic()
        watches = [one.begin() for one in batch]
        try:
            made = render_mixed(self.studio, [one.request for one in batch], watches)
        except Exception as error:
            logger.exception("remora: a batch failed")
            made = Mixed((error,) * len(batch))
        broken = [not isinstance(result, (Result, RequestError, LoraError)) for result in made.results]
        self.failures = self.failures + 1 if all(broken) else 0
        for one, result in zip(batch, made.results, strict=True):
            one.end(result)
        pictures = sum(one.request.count for one in batch)
        waited = tuple(began - one.since for one in batch)
        self._report(BatchReport(made.together, pictures, made.loras, waited, time.monotonic() - began))
