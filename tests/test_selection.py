"""The tests that run without `--all` are chosen by rules."""

from __future__ import annotations

import json
from itertools import combinations, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import selection
from tests.covering import covering, some_of

pytest_plugins = "pytester"
CONFTEST = """
from pathlib import Path
from tests import selection
from tests.selection import pytest_addoption, pytest_fixture_setup, pytest_runtest_setup
from tests.selection import pytest_terminal_summary, pytest_testnodedown, select

selection.RECORD = Path(__file__).with_name("seconds.json")
selection.LONG, selection.BUDGET, selection.CI_BUDGET, selection.ALONE = 1.0, 1.0, 10.0, 3.0

def pytest_configure(config):
    if config.getoption("--record") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(selection.Recorder(config.rootpath))

def pytest_collection_modifyitems(config, items):
    select(config, items)
"""
CASES = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.tuples(*[st.integers(0, 3)] * width), min_size=1, max_size=60)
)


def met(cases: list[tuple[int, ...]], strength: int) -> set[tuple[tuple[int, int], ...]]:
    return {each for case in cases for each in combinations(enumerate(case), strength)}


@given(CASES, st.integers(1, 2))
def test_a_design_has_every_combination_that_any_case_has(cases: list[tuple[int, ...]], strength: int) -> None:
    places = covering(cases, strength)
    assert met([cases[place] for place in places], strength) == met(cases, strength)
    assert places == sorted(set(places))
    assert len(places) <= len(met(cases, strength))


def test_a_design_is_small_even_and_the_same_each_time() -> None:
    cases = list(product(range(40), range(4), range(3)))
    places = covering(cases)
    assert len(places) <= 1.2 * 40 * 4  # each pair of the two largest has to be there
    assert places == covering(cases)
    for value in range(3):
        assert 0.8 < sum(cases[place][2] == value for place in places) / (len(places) / 3) < 1.2


def test_a_test_gets_some_combinations_of_its_values() -> None:
    pair = [pytest.param("x", 1, id="x one"), pytest.param("y", 2)]
    mark = some_of(("letter", "number", "third", "fourth"), pair, range(3), range(4))
    names, cases = mark.args
    assert names == ("letter", "number", "third", "fourth")
    assert {case.values[:2] for case in cases} == {("x", 1), ("y", 2)}
    assert 12 <= len(cases) < 24
    assert {case.id.rpartition("-")[0].rpartition("-")[0] for case in cases} == {"x one", "y-2"}
    assert len(some_of(("a", "b"), range(3), range(5), strength=1).args[1]) == 5


MODULE = """
import pytest

@pytest.mark.parametrize("a", range(150))
def test_of_one(a): pass

@pytest.mark.full
def test_that_takes_long(): pass
"""
SLOW = """
import time
import pytest

@pytest.mark.parametrize("seconds", [0, 0.2, 1.1])
def test_of_one_slow_case(seconds): time.sleep(seconds)

def test_that_is_too_slow(): time.sleep(1.6)

@pytest.mark.quick
def test_that_is_wanted(): time.sleep(1.6)

@pytest.mark.parametrize("case", range(8))
def test_of_many_cases(case): time.sleep(0.15)

@pytest.fixture(scope="module")
def shared(): time.sleep(1.6)

def test_with_what_others_use_too(shared): pass
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Return a project with the same rules, and more tests than they let through."""
    # its conftest changes these, in this process as in others
    for name in ("RECORD", "LONG", "BUDGET", "CI_BUDGET", "ALONE"):
        monkeypatch.setattr(selection, name, getattr(selection, name))
    pytester.syspathinsert(Path(__file__).parents[1])
    pytester.makeconftest(CONFTEST)
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\nmarkers = ["full: ", "long: ", "quick: "]')
    pytester.makepyfile(test_module=MODULE)
    return pytester


def names(result: pytest.RunResult) -> list[str]:
    return [line.partition("::")[2] for line in result.outlines if "::" in line]


@pytest.mark.parametrize("processes", [(), ("-n", "2")])
def test_the_end_says_how_many_were_left_out(project: pytest.Pytester, processes: tuple[str, ...]) -> None:
    result = project.runpytest(*processes, "test_module.py")
    assert result.parseoutcomes()["passed"] == 150
    result.stdout.fnmatch_lines(["1 tests were left out; `python install.py test --all` runs them, too."])


def test_ci_runs_full_tests_too(project: pytest.Pytester) -> None:
    assert "test_that_takes_long" in names(project.runpytest("--collect-only", "-q", "--ci", "test_module.py"))
    assert "test_that_takes_long" not in names(project.runpytest("--collect-only", "-q", "test_module.py"))


def test_ci_leaves_out_what_is_long_and_cases_of_what_takes_too_long(project: pytest.Pytester) -> None:
    project.path.joinpath("test_slow.py").write_text(
        "import pytest\n@pytest.mark.long\ndef test_long(): pass\n"
        "@pytest.mark.parametrize('case', range(20))\ndef test_slow(case): pass\n"
    )
    seconds = {"test_slow.py::test_slow": 0.4} | {f"test_slow.py::test_slow[{case}]": 2.0 for case in range(10)}
    project.path.joinpath("seconds.json").write_text(json.dumps(seconds))
    ran = names(project.runpytest("--collect-only", "-q", "--ci", "test_slow.py"))
    assert ran == [f"test_slow[{case * 20 // 8}]" for case in range(8)]
    result = project.runpytest("--all", "test_slow.py")
    assert result.parseoutcomes() == {"passed": 21}


def test_of_a_file_whose_cases_all_take_long_the_quickest_runs(project: pytest.Pytester) -> None:
    text = "import pytest\n@pytest.mark.full\ndef test_0(): pass\ndef test_1(): pass\ndef test_2(): pass\n"
    for name in ("slow", "slower", "partly"):
        project.path.joinpath(f"test_{name}.py").write_text(text)
    seconds = {"slow.py::test_1": 2.9, "slow.py::test_2": 2.0, "slower.py::test_1": 3.1, "slower.py::test_2": 3.2}
    seconds |= {"slow.py::test_0": 0.1, "partly.py::test_1": 1.1}
    project.path.joinpath("seconds.json").write_text(json.dumps({f"test_{k}": one for k, one in seconds.items()}))
    result = project.runpytest("--collect-only", "-q", "test_slow.py", "test_slower.py", "test_partly.py")
    assert [line for line in result.outlines if "::" in line] == ["test_slow.py::test_2", "test_partly.py::test_2"]


def test_several_processes_begin_with_what_takes_longest(project: pytest.Pytester) -> None:
    for folder, found in (("a", "xy"), ("b", "xyz")):
        for name in found:
            project.path.joinpath(folder).mkdir(exist_ok=True)
            project.path.joinpath(folder, f"test_{name}.py").write_text("def test_1(): pass\ndef test_2(): pass\n")
    items, _ = project.inline_genitems("--import-mode=importlib", "a", "b")
    recorded = {"a/test_x.py::test_1": 1.0, "a/test_y.py::test_2": 9.0, "b/test_x.py::test_2": 5.0}
    recorded |= {"b/test_z.py::test_1": 6.0}
    ordered = [item.nodeid for item in selection.longest_first(items, recorded)]
    files = ("a/test_y", "a/test_x", "b/test_z", "b/test_x", "b/test_y")
    assert ordered == [f"{file}.py::test_{number}" for file in files for number in (1, 2)]


def test_all_runs_everything_and_says_nothing(project: pytest.Pytester) -> None:
    result = project.runpytest("--all")
    assert result.parseoutcomes()["passed"] == 150 + 1
    assert "left out" not in result.stdout.str()


def test_a_test_that_is_named_runs(project: pytest.Pytester) -> None:
    result = project.runpytest("test_module.py::test_that_takes_long")
    assert result.parseoutcomes() == {"passed": 1}


@pytest.mark.full
def test_what_took_long_when_it_was_recorded_is_left_out(project: pytest.Pytester) -> None:
    project.makepyfile(test_slow=SLOW)
    assert project.runpytest("--all", "--record", "-n", "2", "--dist", "loadfile", "test_slow.py").ret == 0
    ran = names(project.runpytest("--collect-only", "-q", "test_slow.py"))
    many = [name for name in ran if name.startswith("test_of_many_cases")]
    assert 1 <= len(many) <= 6, "eight take 1.2 s or more"
    assert sorted(set(ran) - set(many)) == [
        "test_of_one_slow_case[0.2]",
        "test_of_one_slow_case[0]",
        "test_that_is_wanted",
        "test_with_what_others_use_too",
    ]


def test_a_run_of_some_tests_keeps_what_others_took(project: pytest.Pytester) -> None:
    project.path.joinpath("test_other.py").write_text("def test_stays(): pass\n")
    record = project.path.joinpath("seconds.json")
    record.write_text(
        json.dumps(
            {"test_other.py::test_stays": 7.0, "test_other.py::test_gone": 7.0, "test_module.py::test_of_one": 7.0}
        )
    )
    project.runpytest("--all", "--record", "test_module.py")
    assert json.loads(record.read_text()) == {"test_other.py::test_stays": 7.0}
