"""Every target over its kept inputs and some made ones; and what finds faults finds them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from . import engines, faults
from .__main__ import Row, main, table
from .changes import changed_bytes
from .faults import Trial, where_from
from .target import CORPUS, Fault, Target, all_targets, remove_folders
from .targets.requests import served

TARGETS = all_targets()
MADE, CHANGED = 15, 40


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Other tests of this process find no host, and no folders of ours."""
    yield
    if served.cache_info().currsize:
        served().close()
    remove_folders()


@pytest.mark.parametrize("name", sorted(TARGETS))
@pytest.mark.quick
def test_no_input_is_a_fault(name: str) -> None:
    target = TARGETS[name]
    trial = Trial(target)
    kept = [path.read_bytes() for path in target.seeds]
    assert kept, f"put some small inputs into {CORPUS / name}"
    for data in kept:
        trial(data)

    @settings(
        max_examples=MADE,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(target.inputs)
    def made(data: bytes) -> None:
        trial(data)

    made()
    random = Random(26)
    for _ in range(CHANGED):
        data = random.choice(kept)
        for _ in range(random.choice((1, 2, 5))):
            data = target.change(data, random)
        trial(data)
    assert trial.figures.executions >= len(kept) + CHANGED


@pytest.mark.parametrize("name", ["routes", "picture_routes"])
def test_requests_are_tried_where_a_loop_runs_already(name: str) -> None:
    target = TARGETS[name]

    async def tried() -> None:  # as in a process where Playwright waits for its browser
        target.run(target.seeds[0].read_bytes())

    with ThreadPoolExecutor(1) as thread:  # in this one a loop may run already
        thread.submit(lambda: asyncio.run(tried())).result()


def test_every_folder_of_kept_inputs_belongs_to_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


def made(run: Callable[[bytes], object], *refusals: type[Exception]) -> Trial:
    return Trial(Target("made", run, st.binary(), changed_bytes, refusals))


def test_a_documented_error_is_no_fault_and_any_other_is() -> None:
    def refuse(data: bytes) -> None:
        raise LookupError("there is none of that name")

    made(refuse, LookupError)(b"x")
    with pytest.raises(LookupError):
        made(refuse, ValueError)(b"x")


@pytest.mark.parametrize(
    ("answer", "what"),
    [({1, 2}, "JSON"), (float("nan"), "JSON"), ("no <object object at 0x7f9a267f6c30>", "address"), (b"x", "JSON")],
)
def test_an_answer_that_nobody_can_use_is_a_fault(answer: object, what: str) -> None:
    with pytest.raises(Fault, match=what):
        made(lambda data: answer)(b"x")


def test_an_error_that_shows_an_object_is_a_fault() -> None:
    def refuse(data: bytes) -> None:
        raise ValueError(f"cannot identify {object()}")

    with pytest.raises(Fault, match="address"):
        made(refuse, ValueError)(b"x")


def test_an_input_that_takes_long_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "MOST_SECONDS", 0.01)
    slow = made(lambda data: time.sleep(0.02))
    with pytest.raises(Fault, match=r"it takes 0\.0 s"):
        slow(b"x")
    assert slow.figures.longest > 0.01


def test_an_input_that_takes_much_memory_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter([0, 600 << 20])
    monkeypatch.setattr(faults, "peak_memory", lambda: next(peaks))
    with pytest.raises(Fault, match="600 MB"):
        made(lambda data: None)(b"x")


def test_an_error_that_is_caught_and_logged_is_a_fault() -> None:
    import logging

    def log(data: bytes) -> None:
        try:
            raise KeyError("nobody foresaw it")
        except KeyError:
            logging.getLogger("extension.made").exception("it goes on")

    with pytest.raises(Fault, match="in the log") as caught:
        made(log)(b"x")
    assert where_from(caught.value).startswith("KeyError")


def test_a_fault_is_kept_made_smaller_and_can_be_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(data: bytes) -> None:
        if b"!" in data:
            raise ZeroDivisionError("it cannot be divided")

    broken = Target("prompts", run, st.just(b"a"), changed_bytes, ())
    monkeypatch.setitem(TARGETS, "prompts", broken)
    monkeypatch.setattr(engines, "_limit_memory", lambda: None)
    tries = engines.Run("prompts", tmp_path, 60, 0)
    for data in (b"a", b"many bytes before it ! and behind it", b"b!"):
        tries.one(data)
    kept = tmp_path / "faults" / "prompts"
    (path,) = (one for one in kept.iterdir() if not one.suffix)
    assert path.read_bytes() == b"!"
    assert "ZeroDivisionError: it cannot be divided" in path.with_suffix(".txt").read_text()
    assert tries.trial.figures.executions == 1
    assert main(["--repeat", str(path)]) == 1
    assert "it cannot be divided" in capsys.readouterr().out
    monkeypatch.setitem(TARGETS, "prompts", Target("prompts", lambda data: None, st.just(b"a"), changed_bytes, ()))
    assert main(["--repeat", str(path)]) == 0
    assert engines.last_input(tmp_path / "figures" / "prompts.input") == b"b!"


def test_the_table_tells_what_a_run_came_to() -> None:
    figures = {"executions": 12_000, "seconds": 6.0, "longest": 0.0251, "growth": 3 << 20}
    text = table([Row("prompts", figures, [])])
    assert text.splitlines()[-1] == "| prompts | 12,000 | 2,000 | 25 | 3 | 0 |"
