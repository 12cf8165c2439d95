"""The queue of one model: which requests share a batch, whose turn it is, and how requests end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from extension.hosts.txt2img import RequestError, Txt2Img
from extension.library.catalog import CatalogError
from extension.serve import mixed
from extension.serve.queue import BatchQueue, BatchReport, BatchRunner, DeadlineError, Waiting
from extension.standalone import jobs
from extension.standalone.jobs import BusyError
from extension.standalone.render import Watch, render
from extension.standalone.studio import Studio

SMALL = Txt2Img("a square", steps=2, width=64, height=64, seed=1)


def waiting(names: str, users: str = "", count: int = 1) -> list[Waiting]:
    """Return requests of which each has a letter as its prompt and its key; a key of `-` is None."""
    own = users or "u" * len(names)
    request = replace(SMALL, batch_size=count)
    return [
        Waiting(replace(request, prompt=one), one if one != "-" else None, user)
        for one, user in zip(names, own, strict=True)
    ]


def batches(queue: BatchQueue) -> list[str]:
    found = []
    while batch := queue.next_batch():
        found.append("".join(one.request.prompt for one in batch))
    return found


@pytest.mark.parametrize(
    ("asked", "expected"), [("aaaaa", ["aaaa", "a"]), ("abaab", ["aaa", "bb"]), ("--a", ["-", "-", "a"]), ("", [])]
)
def test_requests_with_one_key_share_a_batch_in_order_of_arrival(asked: str, expected: list[str]) -> None:
    queue = BatchQueue(most=4)
    for one in waiting(asked):
        queue.add(one)
    assert batches(queue) == expected
    assert len(queue) == 0


def test_a_batch_has_no_more_pictures_than_allowed() -> None:
    queue = BatchQueue(most=4)
    for one in (*waiting("aa", count=3), *waiting("a"), *waiting("b", count=9)):
        queue.add(one)
    assert batches(queue) == ["aa", "a", "b"]


def test_users_share_the_batches_evenly() -> None:
    queue = BatchQueue(most=2)
    for one in waiting("abcdefgh", "xxxxxxyz"):
        queue.add(one)
    assert batches(queue) == list("aghbcdef")
    queue = BatchQueue(most=2)
    for one in waiting("aaaaaa", "xxxxyy"):
        queue.add(one)
    users = []
    while batch := queue.next_batch():
        users.append("".join(one.user for one in batch))
    assert users == ["xy", "xy", "xx"]


@pytest.fixture
def reports() -> list[BatchReport]:
    return []


@pytest.fixture
def runner(studio: Studio, reports: list[BatchReport]) -> Iterator[BatchRunner]:
    runner = BatchRunner(studio, most=3, report=reports.append)
    yield runner
    runner.close()


@pytest.fixture
def held(runner: BatchRunner) -> Iterator[threading.Event]:
    """Keep the model busy until the event is set, so that requests gather."""
    ready = threading.Event()
    runner._worker.submit(ready.wait)
    yield ready
    ready.set()


def test_requests_that_gather_share_batches(
    runner: BatchRunner, held: threading.Event, reports: list[BatchReport], studio: Studio
) -> None:
    tags = ("<lora:stars:1>", "<lora:zorp:0.5>", "", "<lora:stars:0.2>")
    requests = [replace(SMALL, prompt=f"a square {tag}", seed=i) for i, tag in enumerate(tags)]
    waiting = [runner.submit(request) for request in requests]
    assert runner.waiting == 4
    assert waiting[0].progress.waiting
    held.set()
    made = [job.result(60) for job in waiting]
    runner.close()
    assert [(one.requests, one.pictures, one.loras) for one in reports] == [(3, 3, 2), (1, 1, 0)]
    assert len(reports[0].waited) == 3
    assert all(seconds >= 0 for one in reports for seconds in (*one.waited, one.seconds))
    for request, result in zip(requests, made, strict=True):
        alone = render(studio, request, Watch(lambda _: None, lambda: False))
        difference = np.asarray(result.pictures[0].image).astype(int) - np.asarray(alone.pictures[0].image)
        assert np.abs(difference).max() <= 1


def test_requests_that_come_later_are_made_too(runner: BatchRunner) -> None:
    for seed in range(3):
        assert runner.submit(replace(SMALL, seed=seed)).result(60).seed == seed


def test_a_fault_is_that_of_its_request(runner: BatchRunner, held: threading.Event) -> None:
    good, bad = runner.submit(SMALL), runner.submit(replace(SMALL, prompt="a <lora:nobody:1>"))
    with pytest.raises(RequestError, match="steps is 0"):
        runner.submit(replace(SMALL, steps=0))
    held.set()
    assert good.result(60).pictures
    with pytest.raises(CatalogError, match="nobody"):
        bad.result(60)


def test_a_fault_of_the_program_leaves_nobody_waiting(
    runner: BatchRunner, held: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("of the test")

    monkeypatch.setattr("extension.serve.queue.render_mixed", fail)
    waiting = [runner.submit(SMALL), runner.submit(SMALL)]
    held.set()
    for job in waiting:
        with pytest.raises(ZeroDivisionError):
            job.result(60)
    assert runner.failures == 1
    monkeypatch.undo()
    assert runner.submit(SMALL).result(60).pictures
    assert runner.failures == 0
    assert "a batch failed" in caplog.text


def test_a_request_nobody_waits_for_is_not_made(
    runner: BatchRunner, held: threading.Event, reports: list[BatchReport]
) -> None:
    left, stays = runner.submit(SMALL), runner.submit(SMALL)
    left.cancel()
    held.set()
    assert left.result(60).cancelled
    assert stays.result(60).pictures
    runner.close()
    assert [one.requests for one in reports] == [1]


def test_a_request_that_waits_beyond_its_deadline_is_not_made(
    runner: BatchRunner, held: threading.Event, reports: list[BatchReport]
) -> None:
    late = runner.submit(SMALL, seconds=0)
    held.set()
    with pytest.raises(DeadlineError, match="not done in the time"):
        late.result(60)
    runner.close()
    assert reports == []


def test_a_request_stops_at_its_deadline(runner: BatchRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    original = jobs.Job._report
    monkeypatch.setattr(jobs.Job, "_report", lambda job, progress: (steps.append(1), original(job, progress))[1])
    with pytest.raises(DeadlineError):
        runner.submit(replace(SMALL, steps=150), seconds=0.2).result(60)
    assert len(steps) < 150


def test_too_many_waiting_requests_are_refused(
    runner: BatchRunner, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MOST_WAITING", 2)
    waiting = [runner.submit(SMALL) for _ in range(3)]
    with pytest.raises(BusyError):
        runner.submit(SMALL)
    held.set()
    assert all(job.result(60).pictures for job in waiting)


def test_progress_is_told_to_each(runner: BatchRunner, held: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = mixed.text_to_image

    def followed(*arguments: object) -> object:
        seen.append([job.progress.waiting for job in waiting])
        return original(*arguments)

    monkeypatch.setattr(mixed, "text_to_image", followed)
    waiting = [runner.submit(SMALL), runner.submit(replace(SMALL, seed=2))]
    held.set()
    assert [job.result(60).seed for job in waiting] == [1, 2]
    assert seen == [[False, False]]
    assert [(job.progress.step, job.progress.steps) for job in waiting] == [(2, 2), (2, 2)]
