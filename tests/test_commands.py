"""Each command of README.md and docs/ runs as it is written, with files in place of its words in capitals."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from lib_lora.__main__ import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
HOOK = ROOT / ".ci" / "run"
MODEL, LORAS = ROOT / "demo" / "remora-shapes", ROOT / "demo" / "loras"
PROGRAM = re.compile(r"(?:cd|curl|git|pip|python) ")

RUN_BY = {  # command, or its beginning -> file and function of the test that runs it
    "git clone": "tests/test_commands.py::test_remora_is_installed_by_hand_and_upgraded",
    "cd extensions/remora": "tests/test_commands.py::test_remora_is_installed_by_hand_and_upgraded",
    "git pull": "tests/test_commands.py::test_remora_is_installed_by_hand_and_upgraded",
    "pip install .": "tests/test_commands.py::test_the_library_is_installed_by_itself",
    "python install.py demo": "tests/test_commands.py::test_the_demo_starts_as_it_is_written",
    "python install.py serve": "tests/test_install.py::test_serve",
    "python install.py docs": "tests/test_install.py::test_docs",
    "python -m lib_lora inspect FILE": "tests/test_commands.py::test_files_are_inspected",
    "python -m lib_lora families FILE": "tests/test_commands.py::test_files_are_inspected",
    "python -m lib_lora save": "tests/test_commands.py::test_files_are_saved_and_converted",
    "python -m lib_lora convert": "tests/test_commands.py::test_files_are_saved_and_converted",
    "python -m lib_lora combine": "tests/test_commands.py::test_files_are_saved_and_converted",
    "python -m lib_lora bake": "tests/lib_lora/saving/test_baked.py::test_the_command_line",
    "python -m lib_lora extract": "tests/lib_lora/saving/test_extraction.py::test_the_command_line",
    "python -m lib_lora doctor FILE": "tests/test_commands.py::test_files_are_inspected",
    "curl": "tests/extension/standalone/test_sdapi.py::test_the_requests_in_the_documents_are_answered",
    "python benchmarks/count.py --kinds": "tests/test_benchmarks.py::test_the_page_of_pefts_kinds_has_their_cost",
    "python benchmarks/saving.py": "tests/test_benchmarks.py::test_program_prints_a_table_and_writes_json",
    "python install.py gpu": "tests/gpu/test_gpu.py::test_small_models_on_the_cpu",
    "python -m extension.api.contract": (
        "tests/extension/api/test_contract.py::test_the_types_of_the_tab_and_the_tables_of_the_docs_are_up_to_date"
    ),
    "python docs/architecture.py": "tests/test_architecture.py::test_the_picture_is_up_to_date",
    "python -m tests.families": "tests/lib_lora/test_families.py::test_the_documents_have_the_table_of_families",
    "python -m tests.real URL": (
        "tests/extension/standalone/test_real.py::test_the_checks_pass_on_the_embedded_web_ui_and_find_a_fault"
    ),
}
RUN_BY_CI = {"python install.py test", "python install.py test --all", "python install.py check"}


def blocks() -> Iterator[str]:
    """Yield each block of commands: code without a language, whose first word is a program."""
    for page in PAGES:
        fences = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        for language, block in fences:
            if not language and PROGRAM.match(block):
                yield block.replace("\\\n", " ")


def commands() -> list[str]:
    """Return each command of the documents, without the remark on its line."""
    found = {line.partition("  #")[0].strip() for block in blocks() for line in block.splitlines()}
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        found |= {code for code in re.findall(r"`([^`\n]+)`", text) if PROGRAM.match(code)}
    return sorted(found - {""})


def block_with(command: str) -> str:
    """Return the block of commands that has this one."""
    (found,) = {
        block for block in blocks() if command in [line.partition("  #")[0].strip() for line in block.split("\n")]
    }
    return found


def test_every_command_is_run_by_a_test() -> None:
    for command in commands():
        if command in RUN_BY_CI:
            hook = rf"python3 {command.removeprefix('python ').removesuffix(' --all')}\b"
            assert re.search(hook, HOOK.read_text()), command
            continue
        begins = [one for one in RUN_BY if command.startswith(one)]
        assert begins, command
        file, _, function = RUN_BY[max(begins, key=len)].partition("::")
        assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8"), command


@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="no clone made by git")
def test_remora_is_installed_by_hand_and_upgraded(tmp_path: Path) -> None:
    """In a web UI's folder, from a copy of this repository that goes on after the installation."""
    trusted = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    author = {f"GIT_{who}_{what}": "x@x.example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environ = {**os.environ, **trusted, **author}

    def run(code: str, folder: Path) -> str:
        command = ["bash", "-e", "-c", code]
        return subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True, text=True).stdout

    run(f"git clone -q {shlex.quote(str(ROOT))} origin", tmp_path)
    (tmp_path / "webui" / "extensions").mkdir(parents=True)
    by_hand = r"web UI's folder `(\w+)`\. Type `([^`]+)`, paste the address, type `([^`]+)`,"
    (written,) = re.findall(by_hand, (ROOT / "README.md").read_text(encoding="utf-8"))
    folder, clone, name = written
    run(f"{clone} {shlex.quote(str(tmp_path / 'origin'))} {name}", tmp_path / "webui" / folder)
    installed = tmp_path / "webui" / "extensions" / "remora"
    assert (installed / "scripts" / "remora.py").is_file()
    assert run(f"{shlex.quote(sys.executable)} install.py", installed) == "", "as a web UI calls it at its start"
    run("git commit -q --allow-empty -m later", tmp_path / "origin")
    run(block_with("git pull"), tmp_path / "webui")
    assert run("git log -1 --format=%s; git status --short", installed) == "later\n"


def test_the_library_is_installed_by_itself(tmp_path: Path) -> None:
    """Without its requirements, which are here already, and away from the environment's own packages."""
    copy, target = tmp_path / "copy", tmp_path / "target"
    (copy / "docs").mkdir(parents=True)
    shutil.copytree(ROOT / "lib_lora", copy / "lib_lora", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("docs/library.md", "LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, copy / name)
    here = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(target)]
    subprocess.run([sys.executable, "-m", *shlex.split("pip install ."), *here], cwd=copy, check=True)
    code = "import lib_lora; print(lib_lora.Engine.for_pipeline.__name__, lib_lora.__file__)"
    environ = {**os.environ, "PYTHONPATH": str(target)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.stdout.split() == ["for_pipeline", str(target / "lib_lora" / "__init__.py")], done.stderr


def test_files_are_inspected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = {"FILE": str(LORAS / "stripes.safetensors"), "PATH": str(MODEL), "FILE.json": str(tmp_path / "a.json")}
    written = {command for command in commands() if re.match("python -m lib_lora (inspect|families|doctor)", command)}
    for command in sorted(written | {"python -m lib_lora inspect FILE --json --report FILE.json"}):
        assert main([words.get(word, word) for word in shlex.split(command)[3:]]) == 0, command
        assert ("Stable Diffusion 1.x" if " families " in command else "278") in capsys.readouterr().out
    assert json.loads((tmp_path / "a.json").read_text())


def test_files_are_saved_and_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("stripes", "night", "large", "style", "lokr"):
        shutil.copy(LORAS / f"{name if name == 'night' else 'stripes'}.safetensors", f"{name}.safetensors")
    words = {"MODEL": str(MODEL), "PATH": str(MODEL), "FILE": "style.safetensors", "FILE=0.8": "style.safetensors=0.8"}
    words |= {"OUT": "out.safetensors", "FOLDER": ".", "SAVED": "mine.safetensors"}
    written = [command for command in commands() if re.match("python -m lib_lora (save|convert|combine)", command)]
    assert len(written) > 8
    for command in sorted(written, key=lambda one: "--again" in one):
        assert main([*[words.get(word, word) for word in shlex.split(command)[3:]], "--replace"]) == 0, command
        assert "layers of rank" in capsys.readouterr().out
    assert Path("again.safetensors").read_bytes() == Path("mine.safetensors").read_bytes()


@contextmanager
def started(command: str, folder: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run a command of the demo on a free port, with folders of its own for what it writes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder.mkdir()
    command = command.replace("PATH", str(MODEL)).replace("FOLDER", str(LORAS))
    own = [f"--port={port}", "--no-browser", "--device=cpu", f"--data-dir={folder}", f"--output-dir={folder}"]
    with (folder / "log.txt").open("wb") as log:
        # of a session of its own, as install.py starts another process
        process = subprocess.Popen(
            [sys.executable, *shlex.split(command)[1:], *own],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield port, process
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)


@pytest.mark.full
@pytest.mark.skipif(
    not (ROOT / ".venv" / "remora-installed.json").is_file() or os.name == "nt",
    reason="install.py has made no environment here, which takes minutes",
)
def test_the_demo_starts_as_it_is_written(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    written = [command for command in commands() if command.startswith("python install.py demo")]
    assert len(written) == 4
    if not pytestconfig.getoption("--all"):  # each start takes over ten seconds, and `test_main.py` reads the options
        written = written[:1]
    with ExitStack() as stack:
        places = [tmp_path / str(number) for number in range(len(written))]
        running = [stack.enter_context(started(*one)) for one in zip(written, places, strict=True)]
        for command, place, (port, process) in zip(written, places, running, strict=True):
            status = 0
            while not status:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/remora/v1/loras", timeout=60) as answer:
                        status, listed = answer.status, json.load(answer)
                        assert {"stripes", "night"} <= {one["name"] for one in listed["loras"]}
                except urllib.error.HTTPError as error:
                    status = error.code
                except OSError:  # it does not listen yet
                    assert process.poll() is None, (place / "log.txt").read_text()
                    time.sleep(0.1)
            assert status == (401 if "--auth" in command else 200), command
