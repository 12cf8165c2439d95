"""The tests that run without `--all`. Rules choose them, so that nobody keeps a list.

With `--ci` every test runs that is not marked `long`; of a test with three parameters or more, as many cases as every
pair of values needs, and of a test whose cases take over `CI_BUDGET` seconds together, as many as take that long.
Without it the quick tests run:

1. A test marked `full` or `long` is left out, and one marked `quick` runs.
2. A case that took over `LONG` seconds is left out.
3. Of a test with several parameters some cases are left out. Of three parameters or more, every pair of values still
   occurs; of two, every value.
4. A test whose cases still take over `BUDGET` seconds together runs with as many of them as take that long.
5. A property test tries a fifth of its examples; half of them with `--ci`.

Tests of several files with the same mark `design("name", parameter=value)` count as one test with one more parameter.
The rules 2 and 4 are not for them, so that each pair does occur.

Where several processes share the tests, those that took longest when they were last measured come first, so that no
process works alone at the end. Tests of a folder stay together, as they share fixtures.

`python install.py test --all --record` measures all tests anew.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.covering import covering

LONG, BUDGET, CI_BUDGET = 0.8, 0.2, 1.0  # seconds
RECORD = Path(__file__).with_name("data") / "seconds.json"
RECORDED = 0.7  # seconds; cases that take less are not written down by themselves
LEFT_OUT = pytest.StashKey[int]()
_SHARED = pytest.StashKey[list[float]]()
SHARED = "seconds of shared fixtures"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run every test, not only the quick selection")
    parser.addoption("--ci", action="store_true", help="run every test, and every pair of its parameters' values")
    parser.addoption("--record", action="store_true", help=f"write the seconds that each test takes into {RECORD.name}")


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile(
        "remora",
        settings.default,
        max_examples=100 if config.getoption("--all") else 50 if config.getoption("--ci") else 20,
        deadline=None,  # other programs may use the machine
        derandomize=config.getoption("--hypothesis-seed") is None,  # a change is judged by its own faults alone
    )
    settings.load_profile("remora")
    if config.getoption("--record") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())


def examples(number: int) -> int:
    """Return how many examples a property test tries that tries `number` with `--all`."""
    return max(10, number * settings.default.max_examples // 100)


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take out of `items` what is not chosen, and sort them for several processes; a test named by its id runs."""
    seconds = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    if hasattr(config, "workeroutput"):
        items[:] = longest_first(items, seconds)
    if config.getoption("--all") or any("::" in argument for argument in config.args):
        return
    kept = every_pair(items, seconds) if config.getoption("--ci") else chosen(items, seconds)
    dropped = [item for item in items if item not in kept]
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item in items if item in kept]
    config.stash[LEFT_OUT] = len(dropped)
    if hasattr(config, "workeroutput"):  # one of several processes: the one that prints the end collects nothing
        config.workeroutput["left_out"] = len(dropped)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if number := config.stash.get(LEFT_OUT, 0):
        terminalreporter.section("left out")
        terminalreporter.line(f"{number:,} tests were left out; `python install.py test --all` runs them, too.")


def longest_first(items: Sequence[pytest.Item], seconds: Mapping[str, float]) -> list[pytest.Item]:
    """Return the tests with the longest folders first, and in each the longest files.

    Args:
        items: all tests.
        seconds: as for `chosen`.
    """
    folders: Counter[Path] = Counter()
    files: Counter[Path] = Counter()
    for item in items:
        taken = seconds.get(item.nodeid, seconds.get(item.nodeid.partition("[")[0], 0.0))
        folders[item.path.parent] += taken
        files[item.path] += taken
    # the sort is stable: tests of a file keep their order, and so do files of which nothing is known
    return sorted(items, key=lambda item: (-folders[item.path.parent], item.path.parent, -files[item.path], item.path))


def every_pair(items: Sequence[pytest.Item], seconds: Mapping[str, float]) -> set[pytest.Item]:
    """Return the tests that run with `--ci`; `seconds` is as for `chosen`."""
    short = [item for item in items if not item.get_closest_marker("long")]
    return {
        case
        for cases in (*_by_test(short).values(), *_by_design(short).values())
        for case in _within_budget(_covering(cases) if len(_values_of(cases[0])) > 2 else cases, seconds, CI_BUDGET)
    }


def chosen(items: Sequence[pytest.Item], seconds: Mapping[str, float]) -> set[pytest.Item]:
    """Return the tests that run without `--all` and `--ci`.

    Args:
        items: all tests.
        seconds: what cases take, by their ids, and what those of a test that are not among them take on average, by the
            test's id.
    """
    kept: set[pytest.Item] = {item for item in items if item.get_closest_marker("quick")}
    left_out = {item for item in items for mark in ("full", "long") if item.get_closest_marker(mark)}
    others = [item for item in items if item not in kept and item not in left_out]
    for cases in _by_test(others).values():
        quick = [item for item in cases if seconds.get(item.nodeid, 0.0) <= LONG]
        kept.update(_within_budget(_covering(quick), seconds))
    for cases in _by_design(others).values():
        kept.update(_covering(cases))
    return kept


def _by_test(items: Sequence[pytest.Item]) -> Mapping[Hashable, list[pytest.Item]]:
    """Return the cases of each test without a design, by the test."""
    tests: dict[Hashable, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("design"):
            tests[item.parent, getattr(item, "originalname", item.name)].append(item)
    return tests


def _by_design(items: Sequence[pytest.Item]) -> Mapping[Hashable, list[pytest.Item]]:
    """Return the cases of each design, of all its files, by the design's name."""
    designs: dict[Hashable, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if design := item.get_closest_marker("design"):
            designs[design.args].append(item)
    return designs


def _within_budget(
    cases: Sequence[pytest.Item], seconds: Mapping[str, float], budget: float = BUDGET
) -> Sequence[pytest.Item]:
    """Return cases from all over the list, at least one."""
    if not cases:
        return cases
    mean = seconds.get(cases[0].nodeid.partition("[")[0], 0.0)
    total = sum(seconds.get(item.nodeid, mean) for item in cases)
    number = len(cases) if total <= budget else max(1, int(len(cases) * budget / total))
    return [cases[place * len(cases) // number] for place in range(number)]


def _covering(cases: Sequence[pytest.Item]) -> Sequence[pytest.Item]:
    values = [_values_of(item) for item in cases]
    if not values or len(values[0]) < 2:
        return cases
    return [cases[place] for place in covering(values, strength=2 if len(values[0]) > 2 else 1)]


def _values_of(item: pytest.Item) -> list[Hashable]:
    """Return a case's values, in the order of the names of its parameters."""
    design = item.get_closest_marker("design")
    callspec = getattr(item, "callspec", None)
    values = {**(callspec.params if callspec else {}), **(design.kwargs if design else {})}
    return [_identity(values[name]) for name in sorted(values)]


def _identity(value: object) -> Hashable:
    """Return a key for a value; those without a hash are the same where they are one object."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return (type(value), value)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Note what a fixture of several tests takes: it is not the time of the test that happens to come first."""
    began = time.perf_counter()
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            request.session.stash.setdefault(_SHARED, []).append(time.perf_counter() - began)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    item.session.stash[_SHARED] = []
    try:
        return (yield)
    finally:
        if shared := sum(item.session.stash[_SHARED]):
            item.user_properties.append((SHARED, shared))


class Recorder:
    """Writes down the seconds that tests take."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        shared = dict(report.user_properties).get(SHARED, 0.0) if report.when == "setup" else 0.0
        self._seconds[report.nodeid] += max(0.0, report.duration - shared)

    def pytest_sessionfinish(self) -> None:
        cases: dict[str, list[float]] = defaultdict(list)
        for case, value in self._seconds.items():
            if value < RECORDED:
                cases[case.partition("[")[0]].append(value)
        found = {case: round(value, 1) for case, value in self._seconds.items() if value >= RECORDED}
        found |= {test: round(sum(own) / len(own), 3) for test, own in cases.items() if sum(own) > BUDGET}
        found = dict(sorted(found.items()))
        RECORD.write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
