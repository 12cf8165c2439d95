"""Change one place of the code at a time, and see whether a test notices: `python -m tests.mutation`.

Mutants are drawn at random with a fixed seed. The quick tests that run the changed line come first; a run under
coverage finds them. If none fails, all tests run of the test files that run the changed file, first the quick ones and
then every one. README.md says how to run it, and gives the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory

import coverage

from .mutants import ROOMS, ROOT, Mutant, draw

TESTS: Mapping[str, tuple[str, ...]] = {
    "lib_lora": ("tests/lib_lora",),
    "extension": ("tests/extension", "tests/javascript", "tests/demo"),
}
"""The folders of a package's tests."""
_PROCESSES = ("subprocess", "serving", "served: Served")
"""Words of test files that run the code in other processes."""
MOST_SECONDS = 1500  # of one run; a mutant that loops for ever is noticed, too


def main(argv: Sequence[str] | None = None) -> int:
    """Run to the end; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--mutants", type=int, default=65, help="how many to draw (default: 65)")
    parser.add_argument("--seed", type=int, default=20261123)
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=list(ROOMS))
    parser.add_argument("--processes", type=int, default=2, help="copies of the project that run side by side")
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "mutation", help="where results are kept")
    parser.add_argument("--list", action="store_true", help="print the mutants, and run nothing")
    parser.add_argument("--quick-only", action="store_true", help="leave out the full suite for survivors")
    arguments = parser.parse_args(argv)
    mutants = draw(arguments.mutants, arguments.seed, arguments.rooms)
    if arguments.list:
        for mutant in mutants:
            print(mutant.room, f"{mutant.path}:{mutant.line}", mutant.operator, mutant.occurrence)
        return 0
    arguments.results.mkdir(parents=True, exist_ok=True)
    run = Run(arguments.results, full=not arguments.quick_only)
    run.all(mutants, arguments.processes)
    print(table(run.results))
    return 0


def tests_by_line(copy: Path, file: Path) -> dict[str, dict[int, list[str]]]:
    """Return path -> line -> quick tests that run it; kept in a file.

    Raises:
        RuntimeError: a test fails though nothing was changed.
    """
    if file.is_file():
        return _read(file)
    data_file = copy / "coverage" / "data"
    data_file.parent.mkdir()
    command = ["-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    command += ["-p", "tests.mutation.recorder", *sum(TESTS.values(), ())]
    own = {**environment(copy), "REMORA_COVERAGE": str(data_file)}
    if subprocess.run([sys.executable, *command], cwd=copy, env=own, check=False).returncode != 0:
        raise RuntimeError("tests fail though nothing was changed: mend them first")
    combined = coverage.Coverage(data_file=str(data_file), config_file=False)
    combined.combine([str(data_file.parent)])
    combined.save()
    data = combined.get_data()
    tests = sorted(filter(None, data.measured_contexts()))
    numbers = {test: number for number, test in enumerate(tests)}
    lines = {
        Path(measured).relative_to(copy).as_posix(): {
            line: sorted(numbers[test] for test in own if test)
            for line, own in data.contexts_by_lineno(measured).items()
        }
        for measured in data.measured_files()
    }
    file.write_text(json.dumps({"tests": tests, "lines": lines}), encoding="utf-8")
    return _read(file)


def _read(file: Path) -> dict[str, dict[int, list[str]]]:
    kept = json.loads(file.read_text(encoding="utf-8"))
    tests = kept["tests"]
    return {
        path: {int(line): [tests[number] for number in numbers] for line, numbers in lines.items()}
        for path, lines in kept["lines"].items()
    }


class Run:
    """Runs mutants, each in a copy of the project, and keeps what became of them in a file, to go on from there."""

    def __init__(self, folder: Path, *, full: bool) -> None:
        self.folder = folder
        self.file = folder / "results.json"
        self.full = full
        self.covering: Mapping[str, Mapping[int, Sequence[str]]] = {}
        self.results: list[dict[str, object]] = json.loads(self.file.read_text()) if self.file.is_file() else []
        self._times = count(int(time.time()))

    def all(self, mutants: Sequence[Mutant], processes: int) -> None:
        """Run those that were not run before."""
        done = [{key: row[key] for key in Mutant.__dataclass_fields__} for row in self.results]
        waiting = [mutant for mutant in mutants if mutant.to_json() not in done]
        with TemporaryDirectory() as folder, ThreadPoolExecutor(processes) as pool:
            copies: Queue[Path] = Queue()
            for number in range(processes):
                copies.put(copy_of_project(Path(folder).resolve() / str(number)))
            self.covering = tests_by_line(copies.queue[0], self.folder / "coverage.json")

            def one(mutant: Mutant) -> None:
                copy = copies.get()
                try:
                    self._add(self._run(mutant, copy))
                finally:
                    copies.put(copy)

            list(pool.map(one, waiting))

    def _add(self, row: dict[str, object]) -> None:
        self.results.append(row)
        self.file.write_text(json.dumps(self.results, indent=1))
        print(f"{row['path']}:{row['line']} {row['operator']}: {row['verdict']}, {row['seconds']} s", flush=True)

    def _run(self, mutant: Mutant, copy: Path) -> dict[str, object]:
        path, began = copy / mutant.path, time.monotonic()
        source = path.read_text(encoding="utf-8")
        self._write(path, mutant.apply(source))
        try:
            verdict, test = self._verdict(mutant, copy)
        finally:
            self._write(path, source)
        seconds = round(time.monotonic() - began)
        return {**mutant.to_json(), "verdict": verdict, "test": test, "seconds": seconds}

    def _write(self, path: Path, source: str) -> None:
        """Write a file with a time that no other version has: compiled code is told from older one by it."""
        path.write_text(source, encoding="utf-8")
        moment = next(self._times)
        os.utime(path, (moment, moment))

    def _verdict(self, mutant: Mutant, copy: Path) -> tuple[str, str]:
        """Return who noticed it, and by which test."""
        lines = self.covering.get(mutant.path, {})
        asked = lines.get(mutant.line) or sorted({test for tests in lines.values() for test in tests})
        if asked and (test := failing(copy, [f"@{listed(copy, asked)}"])):
            return "quick", test
        room = self._files(mutant, copy)
        if test := failing(copy, room):
            return "quick", test
        if self.full and (test := failing(copy, ["--all", *room])):
            return "full", test
        return "survived", ""

    @cached_property
    def _run_by(self) -> Mapping[str, set[str]]:
        """File of tests -> files that its quick tests run."""
        found: dict[str, set[str]] = defaultdict(set)
        for path, lines in self.covering.items():
            for test in set(chain.from_iterable(lines.values())):
                found[test.partition("::")[0]].add(path)
        return found

    def _files(self, mutant: Mutant, copy: Path) -> list[str]:
        """Return the files of the package's tests that may run the changed file.

        The run under coverage tells nothing of files without a quick test, nor of those that start processes.
        """
        places = [copy / place for place in TESTS[mutant.path.partition("/")[0]]]
        files = sorted(file for place in places for file in place.rglob("test_*.py"))
        return [
            name
            for file in files
            if mutant.path in self._run_by.get(name := file.relative_to(copy).as_posix(), {mutant.path})
            or any(word in file.read_text(encoding="utf-8") for word in _PROCESSES)
        ]


def copy_of_project(folder: Path) -> Path:
    """Copy what git tracks, and new files that it does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():  # it may have been deleted
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def listed(copy: Path, tests: Sequence[str]) -> Path:
    """Write the ids of tests into a file that pytest takes arguments from."""
    file = copy / "tests.txt"
    file.write_text("\n".join(tests), encoding="utf-8")
    return file


def environment(copy: Path) -> dict[str, str]:
    """Return the environment of a run in a copy."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    own.setdefault("REMORA_REAL_LORAS", str(ROOT.parent / "shared" / "real-loras"))
    return {**own, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}


def failing(copy: Path, arguments: Sequence[str]) -> str:
    """Run tests until one fails; return its id, `timeout`, or nothing where all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no", "-rfE", *arguments]
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment(copy), capture_output=True, text=True, timeout=MOST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    if done.returncode == 0:
        return ""
    said = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return said[0].split(" ", 1)[1][:200] if said else (done.stderr or done.stdout).strip()[-200:]


def table(results: Sequence[Mapping[str, object]]) -> str:
    """Return the figures, a row for each room."""
    rooms: dict[str, list[object]] = defaultdict(list)
    for row in results:
        rooms[str(row["room"])].append(row["verdict"])
        rooms["all"].append(row["verdict"])
    lines = ["| room | mutants | killed by all tests | of these by the quick ones |", "|---|--:|--:|--:|"]
    for room in [*(name for name in ROOMS if name in rooms), "all"]:
        verdicts = rooms[room]
        quick, full = verdicts.count("quick"), verdicts.count("quick") + verdicts.count("full")
        lines.append(f"| {room} | {len(verdicts)} | {full} | {quick} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
