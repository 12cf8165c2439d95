"""The tests that run without `--all`. Rules choose them, so that nobody keeps a list.

1. A test marked `quick` runs.
2. A test marked `long` is left out. Without `--ci`, so are a test marked `full` and a case that took over `LONG`
   seconds; of a file whose cases all took longer, the quickest runs if it took no more than `ALONE` seconds.
3. If the cases of a test take over `BUDGET` seconds together, as many run as take that long; with `--ci`, over
   `CI_BUDGET` seconds.
4. A property test tries a fifth of its examples; half of them with `--ci`.

Tests of many parameters have a few combinations of their values to begin with, see `covering.some_of`.

Where several processes share the tests, the folders of the files that took longest when they were last measured come
first, so that no process works alone at the end. Tests of a folder stay together, as they share fixtures.

`--record` measures the tests that run: `python install.py test --all --record` all of them.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

LONG, BUDGET, CI_BUDGET = 0.5, 0.2, 0.5  # seconds
ALONE = 3.0  # seconds; of the only case of a file
RECORD = Path(__file__).with_name("data") / "seconds.json"
RECORDED = 0.4  # seconds; a case that takes longer than this, and than others of its test, is written down by itself
LEFT_OUT = pytest.StashKey[int]()
_SHARED = pytest.StashKey[list[float]]()
SHARED = "seconds of shared fixtures"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run every test, not only the quick selection")
    parser.addoption("--ci", action="store_true", help="run every test, of a test that takes long a few cases")
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
        config.pluginmanager.register(Recorder(config.rootpath))


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
    kept = chosen(items, seconds, ci=config.getoption("--ci"))
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


def taken_by(item: pytest.Item, seconds: Mapping[str, float]) -> float:
    """Return the seconds of a case: its own, or the mean of the other cases of its test."""
    return seconds.get(item.nodeid, seconds.get(item.nodeid.partition("[")[0], 0.0))


def longest_first(items: Sequence[pytest.Item], seconds: Mapping[str, float]) -> list[pytest.Item]:
    """Return the tests with the folders of the longest files first, and in each the longest files.

    Args:
        items: all tests.
        seconds: as for `chosen`.
    """
    files: Counter[Path] = Counter()
    for item in items:
        files[item.path] += taken_by(item, seconds)
    folders: dict[Path, float] = defaultdict(float)
    for path, taken in files.items():
        folders[path.parent] = max(folders[path.parent], taken)
    # the sort is stable: tests of a file keep their order, and so do files of which nothing is known
    return sorted(items, key=lambda item: (-folders[item.path.parent], item.path.parent, -files[item.path], item.path))


def chosen(items: Sequence[pytest.Item], seconds: Mapping[str, float], *, ci: bool = False) -> set[pytest.Item]:
    """Return the tests that run without `--all`.

    Args:
        items: all tests.
        seconds: what cases take, by their ids, and what the other cases of a test take on average, by the test's id.
        ci: whether the tests are those of `--ci`.
    """
    left_out = ("long",) if ci else ("full", "long")
    kept: set[pytest.Item] = set()
    tests: dict[tuple[object, str], list[pytest.Item]] = defaultdict(list)
    quickest: dict[Path, pytest.Item] = {}
    for item in items:
        taken = taken_by(item, seconds)
        if item.get_closest_marker("quick"):
            kept.add(item)
        elif any(map(item.get_closest_marker, left_out)):
            continue
        elif ci or taken <= LONG:
            tests[item.parent, getattr(item, "originalname", item.name)].append(item)
        elif taken < taken_by(quickest.setdefault(item.path, item), seconds):
            quickest[item.path] = item
    for cases in tests.values():
        kept.update(_within_budget(cases, seconds, CI_BUDGET if ci else BUDGET))
    tried = {item.path for item in kept}
    alone = {item for path, item in quickest.items() if path not in tried and taken_by(item, seconds) <= ALONE}
    return kept | alone


def _within_budget(cases: Sequence[pytest.Item], seconds: Mapping[str, float], budget: float) -> Sequence[pytest.Item]:
    """Return cases from all over the list, at least one."""
    total = sum(taken_by(item, seconds) for item in cases)
    number = len(cases) if total <= budget else max(1, int(len(cases) * budget / total))
    return [cases[place * len(cases) // number] for place in range(number)]


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
    """Writes down the seconds that tests take; those of tests that do not run stay.

    Args:
        root: the folder that ids of tests are relative to.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        shared = dict(report.user_properties).get(SHARED, 0.0) if report.when == "setup" else 0.0
        self._seconds[report.nodeid] += max(0.0, report.duration - shared)

    def pytest_sessionfinish(self) -> None:
        tests: dict[str, dict[str, float]] = defaultdict(dict)
        for case, value in self._seconds.items():
            tests[case.partition("[")[0]][case] = value
        before = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
        found = {case: value for case, value in before.items() if self._stays(case.partition("[")[0], tests)}
        for test, cases in tests.items():
            slow = {case: value for case, value in cases.items() if value >= RECORDED}
            alike = [value for value in cases.values() if value < RECORDED] or list(slow.values())
            if len(slow) < len(cases):  # else their mean says enough
                found |= {case: round(value, 1) for case, value in slow.items()}
            if sum(alike) > (LONG if len(cases) == 1 else BUDGET):
                found[test] = float(f"{sum(alike) / len(alike):.2g}")
        found = dict(sorted(found.items()))
        RECORD.write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")

    def _stays(self, test: str, ran: Collection[str]) -> bool:
        path, *_, name = test.split("::")
        file = self._root / path
        return test not in ran and file.is_file() and f"def {name}(" in file.read_text(encoding="utf-8")
