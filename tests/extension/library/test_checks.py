"""Files are measured one at a time, once, and only while somebody asks; what is wrong with one costs that one only."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from extension.library import CatalogFile
from extension.library.checks import Check, Checks, Progress, TooManyChecks
from lib_lora import LoraError


@pytest.fixture
def checks() -> Iterator[Checks]:
    made = Checks()
    yield made
    made.close()


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], CatalogFile]:
    """Make a file, or return it as it is now."""

    def of(name: str) -> CatalogFile:
        path = tmp_path / f"{name}.safetensors"
        if not path.exists():
            path.write_bytes(name.encode())
        stat = path.stat()
        return CatalogFile(path, name, stat.st_size, stat.st_mtime_ns)

    return of


class Measure:
    """A measure that counts its calls, and waits within a file where it is told to."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.at_once = 0
        self.most = 0
        self.left = threading.Event()

    def __call__(self, paths: Sequence[Path], progress: Progress) -> str:
        self.names.append(paths[0].stem)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            progress(3, 7)
            while not self.go_on.wait(0.005):
                progress(3, 7)
        finally:
            self.at_once -= 1
            self.left.set()
        if paths[0].stem == "broken":
            raise LoraError("broken is broken; get it again")
        if paths[0].stem == "odd":
            raise RuntimeError("unheard of")
        return f"measures of {paths[0].stem}"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def ended(checks: Checks, measure: Measure, file: CatalogFile) -> Check[str]:
    check = checks.of(measure, [file])
    until(lambda: check.ended)
    return checks.of(measure, [file])


def test_a_file_is_measured_once_until_it_or_its_sidecar_changes(
    checks: Checks, file: Callable[[str], CatalogFile]
) -> None:
    measure = Measure()
    assert ended(checks, measure, file("a")).result == "measures of a"
    assert ended(checks, measure, file("a")).result == "measures of a"
    assert measure.names == ["a"]
    (file("a").path.parent / "a.txt").write_text("no sidecar")
    ended(checks, measure, file("a"))
    assert measure.names == ["a"]
    file("a").path.with_suffix(".json").write_text('{"remora": {"alpha": 8}}')
    ended(checks, measure, file("a"))
    assert measure.names == ["a"] * 2
    os.utime(file("a").path, ns=(0, 5_000_000_000))
    ended(checks, measure, file("a"))
    assert measure.names == ["a"] * 3


def test_one_file_at_a_time_and_a_request_does_not_wait(checks: Checks, file: Callable[[str], CatalogFile]) -> None:
    measure = Measure()
    measure.go_on.clear()
    asked = [checks.of(measure, [file(name)]) for name in "abc"]
    until(lambda: asked[0].done == 3)
    assert [(one.done, one.layers, one.result) for one in asked] == [(3, 7, None), (0, 0, None), (0, 0, None)]
    measure.go_on.set()
    until(lambda: all(one.ended for one in asked))
    assert (measure.names, measure.most) == (["a", "b", "c"], 1)


def test_a_check_that_nobody_asks_for_stops_in_the_middle(
    checks: Checks, file: Callable[[str], CatalogFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = Measure()
    measure.go_on.clear()
    left = checks.of(measure, [file("a")])
    waiting = checks.of(measure, [file("b")])
    until(lambda: left.done == 3)
    monkeypatch.setattr("extension.library.checks._ASKED_AGAIN", -1.0)
    until(measure.left.is_set)
    monkeypatch.undo()
    assert not left.ended
    measure.go_on.set()
    assert ended(checks, measure, file("a")).result == "measures of a", "it begins again"
    assert checks.of(measure, [file("b")]) is not waiting or waiting.ended


def test_closing_stops_a_file_in_the_middle(checks: Checks, file: Callable[[str], CatalogFile]) -> None:
    measure = Measure()
    measure.go_on.clear()
    one, other = (checks.of(measure, [file(name)]) for name in "ab")
    until(lambda: one.done == 3)
    checks.close()
    assert (one.ended, other.ended, measure.names) == (False, False, ["a"])
    measure.go_on.set()
    assert ended(checks, measure, file("b")).result == "measures of b", "a later page asks again"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "broken is broken; get it again"),
        ("odd", "odd.safetensors cannot be measured: RuntimeError('unheard of')"),
    ],
)
def test_a_problem_is_told_once_and_costs_its_file_only(
    checks: Checks, file: Callable[[str], CatalogFile], name: str, said: str
) -> None:
    measure = Measure()
    broken = checks.of(measure, [file(name)])
    sound = checks.of(measure, [file("a")])
    until(lambda: broken.ended and sound.ended)
    assert checks.of(measure, [file(name)]).problem == said
    assert sound.result == "measures of a"
    ended(checks, measure, file(name))
    assert measure.names == [name, "a", name], "the file may be sound now"


def test_what_waits_and_what_is_kept_is_bounded(
    checks: Checks, file: Callable[[str], CatalogFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = Measure()
    measure.go_on.clear()
    monkeypatch.setattr("extension.library.checks._WAITING", 2)
    for name in "ab":
        checks.of(measure, [file(name)])
    with pytest.raises(TooManyChecks):
        checks.of(measure, [file("c")])
    checks.of(measure, [file("a")])
    measure.go_on.set()
    monkeypatch.setattr("extension.library.checks._KEPT", 2)
    for name in "abcabcd":
        ended(checks, measure, file(name))
    assert measure.names == ["a", "b", "c", "a", "b", "c", "d"], "the two that were asked for last are kept"
