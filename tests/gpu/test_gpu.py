"""The program that tries a graphics card, with small models: on the CPU, and on Vulkan's driver in software."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from install import pins
from tests.gpu import __main__ as program
from tests.gpu.journal import FAIL, PASS, ROOT, SKIP, Journal, Row, scrubbed
from tests.gpu.report import markdown

KNOWN: dict[str, dict[tuple[str, str], str]] = {
    "cpu": {},
    "vulkan": {
        ("waits", "a change of strength, 1 LoRA"): "the device grants no page-locked memory, so a copy waits",
        ("waits", "a change of strength, region"): "the same",
        ("waits", "the next step of a schedule"): "the same, at each step",
    },
}
"""Device -> (section, check) that fails there -> the fault of Remora that it shows."""

RUNS_SECTIONS = """
import os, sys
from pathlib import Path
from tests.gpu.check import Found
from tests.gpu.child import run
from tests.gpu.journal import Journal

def checks(setup):
    yield "before", lambda: Found(True)
    yield "crash", lambda: os.kill(os.getpid(), 11)
    yield "error", lambda: 1 // 0
    yield "after", lambda: Found(True, "all is well")

journal = Journal(Path(sys.argv[sys.argv.index("--journal") + 1]))
sys.exit(run(["waits"], journal, "cpu", small=True, load=lambda name: checks))
"""
PARTS_OF_OTHERS = {"httpx"}
"""Packages of the tests that huggingface_hub brings, too."""
MACHINE = {"name": "A card", "memory": 8 << 30, "torch": "2.13.0", "cuda": "13.0", "hip": None, "driver": "580.1"}
MACHINE |= {"python": "3.12.1", "system": "Linux 6.1", "packages": {"diffusers": "0.42.1", "peft": None}}


def missing() -> list[str]:
    """Return the modules of the tests that `install.py gpu` does not install."""
    test, own = (
        {re.split("[=<>; ]", pin)[0] for name in names for pin in pins(ROOT / "requirements" / f"{name}.txt")}
        for names in (("test",), ("run", "bench", "gpu"))
    )
    return sorted({name.replace("-", "_") for name in test - own - PARTS_OF_OTHERS} - {"torchvulkan"})


def run(*arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run the program; `path` is added to Python's path, also of the processes that the program starts."""
    command = [sys.executable, "-m", "tests.gpu", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH")]))}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def check_run(device: str, folder: Path, sections: Sequence[str], passed: int) -> None:
    """Run sections, and compare what failed with what is known to fail, and the tables with those of the file."""
    file, without = folder / "report.json", missing()
    assert {"hypothesis", "sdnq"} <= set(without)
    (folder / "sitecustomize.py").write_text(f"import sys; sys.modules.update(dict.fromkeys({without}))")
    asked = ("--small", "--device", device, "--json", str(file), "--only", *sections)
    done = run(*asked, path=str(folder))
    if done.returncode == 2 and "no device" in done.stderr:
        pytest.skip(done.stderr)
    report = json.loads(file.read_text(encoding="utf-8"))
    failed = {(row["section"], row["check"]): row["figure"] for row in report["rows"] if row["result"] == FAIL}
    assert failed.keys() == {known for known in KNOWN[device] if known[0] in sections}, failed
    assert done.returncode == bool(failed)
    assert {row["section"] for row in report["rows"]} == set(sections)
    assert sum(row["result"] == PASS for row in report["rows"]) > passed
    assert all(row["figure"] for row in report["rows"] if row["result"] == SKIP), "a reason"
    tables = run("--report", str(file)).stdout
    assert tables.strip() == markdown(report)
    assert tables.strip() in done.stdout
    assert str(Path.home()) not in file.read_text(encoding="utf-8")


needs_packages = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("accelerate", "diffusers", "peft")),
    reason="the sections need accelerate, diffusers and PEFT",
)


@needs_packages
def test_small_models_on_the_cpu(tmp_path: Path) -> None:
    """Without the packages that `install.py gpu` does not install. The compiler takes as long as all other sections."""
    check_run("cpu", tmp_path, [name for name in program.SECTIONS if name != "compiled"], 50)


@needs_packages
@pytest.mark.long
def test_small_compiled_models_on_the_cpu(tmp_path: Path) -> None:
    check_run("cpu", tmp_path, ["compiled"], 1)


VULKAN = ("waits", "memory")
"""Sections that do nothing on the CPU. `tests/device` has the numbers of the others on Vulkan."""
needs_vulkan = pytest.mark.skipif(
    importlib.util.find_spec("torchvulkan") is None, reason="torchvulkan is not installed"
)


@needs_packages
@pytest.mark.device
@needs_vulkan
@pytest.mark.long
def test_small_models_on_vulkan(tmp_path: Path) -> None:
    check_run("vulkan", tmp_path, VULKAN, 5)


@needs_packages
@pytest.mark.device
@needs_vulkan
@pytest.mark.long
def test_all_other_small_models_on_vulkan(tmp_path: Path) -> None:
    check_run("vulkan", tmp_path, [name for name in program.SECTIONS if name not in VULKAN], 50)


def rows_of(code: str, folder: Path) -> list[Row]:
    """Run the sections of a program in place of the real ones."""
    journal = Journal(folder / "journal")
    program.supervise([["waits"]], journal, [sys.executable, "-c", code])
    return journal.rows()


def test_a_crash_is_one_check_that_failed(tmp_path: Path) -> None:
    found = {row["check"]: (row["result"], row["figure"]) for row in rows_of(RUNS_SECTIONS, tmp_path)}
    assert list(found) == ["before", "crash", "error", "after"]
    assert found["before"] == (PASS, "")
    assert found["crash"][0] == FAIL
    assert re.search(r"SIGSEGV|status \d+", found["crash"][1])
    assert found["error"] == (FAIL, "ZeroDivisionError: integer division or modulo by zero")
    assert found["after"] == (PASS, "all is well")


def test_a_check_that_hangs_ends_its_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "SECTIONS", {"waits": 0})
    monkeypatch.setattr(program, "_PATIENCE", 2)
    Journal(tmp_path / "journal").write(section="waits", begun="forever")
    (row,) = rows_of("import time; time.sleep(60)", tmp_path)
    assert (row["check"], row["result"], row["figure"]) == ("forever", FAIL, "over 2 s")


def test_a_program_that_does_not_start_fails_once(tmp_path: Path) -> None:
    (row,) = rows_of("raise SystemExit('no such module')", tmp_path)
    assert (row["section"], row["check"], row["result"]) == ("waits", "all checks", FAIL)
    assert "no such module" in row["figure"]


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    done = run("--small", "--device", "cuda:99", "--only", "waits", "--json", str(tmp_path / "a.json"))
    assert done.returncode == 2
    assert "no device" in done.stderr
    assert not list(tmp_path.iterdir())


def row(section: str, check: str, result: str = PASS, figure: str = "", **values: object) -> Row:
    return {"section": section, "check": check, "result": result, "figure": figure, "values": values}


def cells(text: str, first: str) -> Sequence[str]:
    """Return the cells of the row of the tables that begins with a word."""
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {first}"))
    return [cell.strip() for cell in line.split(" | ")]


def test_the_tables_have_what_was_measured() -> None:
    step = {"table": "step", "model": "SDXL", "loras": 4, "rank": 16, "base_s": 0.0312, "ours": 1.2, "peft": 1.5}
    change = {"table": "change", "model": "FLUX.1", "what": "another strength"}
    text = markdown(
        {
            "machine": MACHINE,
            "small": False,
            "rows": [
                row("speed", "SDXL: a step", **step, goal=1.15),
                row("speed", "FLUX.1: strength", **change, median_s={"ours": 5e-5, "PEFT": 2e-3}),
                row("offloading", "group-leaf", base_s=0.25, ours_s=0.5, base_peak=1 << 30, ours_peak=None),
                row("waits", "a step", FAIL, "1 | wait"),
                row("streams", "all checks", SKIP, "CUDA only"),
            ],
        }
    )
    assert text.startswith(
        "A card, 8.0 GB, driver 580.1, cuda 13.0, torch 2.13.0, diffusers 0.42.1, Python 3.12.1, Linux"
    )
    assert cells(text, "SDXL") == ["| SDXL", "4", "16", "31.2 ms", "1.200", "1.500", "<= 1.15 missed |"]
    assert cells(text, "FLUX.1")[1:4] == ["50 us", "2 ms", "-"]
    assert cells(text, "group-leaf")[1:] == ["250 ms", "2.000", "1024 MB", "- |"]
    assert cells(text, "speed")[1:] == ["2", "0", "0 |"]
    assert "1 \\| wait" in text
    assert "CUDA only" in text
    assert "nothing was measured" not in text


def test_reports_do_not_have_the_users_folders() -> None:
    home = str(Path.home())
    assert home not in scrubbed(f"{home}/models/a.safetensors is missing")
    assert "jane" not in scrubbed('File "C:\\Users\\jane\\remora\\install.py", or /home/jane/remora')
