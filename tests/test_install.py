"""install.py with every child process replaced: no network, nothing installed."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import install
from extension.serve.__main__ import parser as serve_parser
from extension.standalone.__main__ import _parser
from install import Environment, InstallError

INSTALL = Path(install.__file__)
REQUIREMENTS = INSTALL.parent / "requirements"


class Processes:
    """Stands in for subprocess.run: makes virtual environments, records what pip is told, fails where asked to."""

    def __init__(self) -> None:
        self.pip: list[list[str]] = []
        self.shown: list[tuple[list[str], bool]] = []
        self.made = 0
        self.failing = ""
        self.python_version: str | None = install.THIS_PYTHON

    def run(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.shown.append((list(command), "stdout" not in options and not options.get("capture_output")))
        if self.failing and self.failing in command:
            return subprocess.CompletedProcess(command, 1, stdout="first line\nno space left on device\n")
        if "venv" in command:
            self.made += 1
            self.python_version = install.THIS_PYTHON
            (Path(command[-1]) / "pyvenv.cfg").write_text("")
        elif "pip" in command:
            self.pip.append(list(command))
        elif self.python_version is None:
            raise FileNotFoundError(command[0])
        return subprocess.CompletedProcess(command, 0, stdout=f"{self.python_version}\n")

    def packages(self) -> list[str]:
        """Return what pip was told to install since the last call."""
        told, self.pip = self.pip, []
        return [word.partition("==")[0] for command in told for word in command if "==" in word]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    fake = Processes()
    monkeypatch.setattr(subprocess, "run", fake.run)
    return fake


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    files = {
        "torch": "torch==2",
        "run": "# why\ngradio==1",
        "data": "words==3",
        "test": "pytest==4",
        "bench": "peft==5",
    }
    requirements = tmp_path / "requirements"
    requirements.mkdir()
    for name, text in {**files, "constraints": "six==1"}.items():
        (requirements / f"{name}.txt").write_text(text)
    return Environment(tmp_path / ".venv", requirements)


class TestEnsure:
    def test_installs_torch_first_in_a_call_of_its_own(self, environment: Environment, processes: Processes) -> None:
        environment.ensure("run", "test")
        installed = [[word for word in command if "==" in word] for command in processes.pip]
        assert installed == [["torch==2"], ["gradio==1"], ["words==3"], ["pytest==4"]]
        assert all("--constraint" in command for command in processes.pip)
        assert ["--no-deps" in command for command in processes.pip] == [False, False, True, False]

    def test_does_nothing_the_second_time(self, environment: Environment, processes: Processes) -> None:
        environment.ensure("run")
        environment.ensure("run")
        assert processes.packages() == ["torch", "gradio", "words"]
        assert processes.made == 1

    def test_what_is_installed_is_told_by_name(
        self, environment: Environment, processes: Processes, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (environment.requirements / "test.txt").write_text('pytest==4\nwords==3.3; sys_platform == "linux"')
        environment.ensure("test")
        assert "Remora: step 1 of 1: installing pytest, words\n" in capsys.readouterr().out

    def test_size_and_steps_are_told_before_pip_runs(
        self, environment: Environment, processes: Processes, capsys: pytest.CaptureFixture[str]
    ) -> None:
        environment.ensure("run", "test")
        folder, size, *steps = capsys.readouterr().out.splitlines()
        assert folder.startswith("Remora: making .venv")
        assert size == "Remora: .venv grows by about 2.2 GB, or several GB more if torch has CUDA"
        assert [step.partition(":")[2] for step in steps] == [
            " step 1 of 4: installing torch",
            " step 2 of 4: installing gradio",
            " step 3 of 4: installing words",
            " step 4 of 4: installing pytest",
        ]
        environment.ensure("run", "test")
        assert capsys.readouterr().out == ""
        environment.ensure("bench")
        assert "Remora: .venv grows by about 0.2 GB\n" in capsys.readouterr().out  # it brings no torch

    def test_in_a_terminal_pip_shows_its_own_progress(
        self, environment: Environment, processes: Processes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        environment.ensure("run")
        assert [shown for command, shown in processes.shown if "pip" in command] == [True] * 3
        processes.failing = "pytest==4"
        with pytest.raises(InstallError, match="run the same command again"):
            environment.ensure("test")
        assert "test" not in environment.stamp.read_text()

    def test_elsewhere_pip_is_silent(self, environment: Environment, processes: Processes) -> None:
        environment.ensure("run")
        assert [shown for command, shown in processes.shown if "pip" in command] == [False] * 3

    def test_adds_only_the_missing_group(self, environment: Environment, processes: Processes) -> None:
        environment.ensure("run")
        processes.packages()
        environment.ensure("run", "bench")
        assert processes.packages() == ["peft"]

    @pytest.mark.parametrize(
        ("name", "redone"), [("test", ["pytest"]), ("constraints", ["torch", "gradio", "words", "pytest"])]
    )
    def test_follows_a_changed_pin(
        self, environment: Environment, processes: Processes, name: str, redone: list[str]
    ) -> None:
        environment.ensure("run", "test")
        processes.packages()
        (environment.requirements / f"{name}.txt").write_text("pytest==4.1" if name == "test" else "six==2")
        environment.ensure("run", "test")
        assert processes.packages() == redone

    def test_completes_an_interrupted_install(
        self, environment: Environment, processes: Processes, capsys: pytest.CaptureFixture[str]
    ) -> None:
        processes.failing = "gradio==1"
        with pytest.raises(InstallError, match="run the same command again"):
            environment.ensure("run")
        assert capsys.readouterr().err.endswith("no space left on device\n")
        processes.failing = ""
        processes.packages()
        environment.ensure("run")
        assert processes.packages() == ["torch", "gradio", "words"]
        assert processes.made == 1

    def test_counts_a_failed_update_as_not_installed(self, environment: Environment, processes: Processes) -> None:
        environment.ensure("run")
        (environment.requirements / "run.txt").write_text("gradio==2")
        processes.failing = "gradio==2"
        with pytest.raises(InstallError):
            environment.ensure("run")
        (environment.requirements / "run.txt").write_text("gradio==1")
        processes.packages()
        environment.ensure("run")
        assert processes.packages() == ["torch", "gradio", "words"]

    def test_survives_a_damaged_stamp(self, environment: Environment, processes: Processes) -> None:
        environment.ensure("run")
        environment.stamp.write_text("{")
        processes.packages()
        environment.ensure("run")
        assert processes.packages() == ["torch", "gradio", "words"]


class TestFolder:
    def test_is_made_again_for_another_python(self, environment: Environment, processes: Processes) -> None:
        environment.ensure("run")
        environment.marker.write_text("3.1")
        self.assert_made_again(environment, processes)

    def test_is_made_again_when_its_python_is_gone(self, environment: Environment, processes: Processes) -> None:
        environment.ensure("run")
        processes.python_version = None
        self.assert_made_again(environment, processes)

    def test_is_made_again_when_half_made(self, environment: Environment, processes: Processes) -> None:
        environment.folder.mkdir()
        environment.marker.touch()
        (environment.folder / "pyvenv.cfg").touch()
        self.assert_made_again(environment, processes)

    def assert_made_again(self, environment: Environment, processes: Processes) -> None:
        (environment.folder / "old").touch()
        made = processes.made
        processes.packages()
        environment.ensure("run")
        assert processes.made == made + 1
        assert processes.packages() == ["torch", "gradio", "words"]
        assert not (environment.folder / "old").exists()

    def test_without_a_config_is_never_deleted(self, environment: Environment, processes: Processes) -> None:
        environment.folder.mkdir()
        environment.marker.touch()
        (environment.folder / "kept").touch()
        environment.ensure("run")
        assert (environment.folder / "kept").exists()

    def test_of_the_user_is_completed_in_place(self, environment: Environment, processes: Processes) -> None:
        self.make_users_own(environment)
        processes.python_version = "3.99"
        environment.ensure("run")
        environment.ensure("run")
        assert processes.packages() == ["torch", "gradio", "words"]
        assert processes.made == 0
        assert not environment.marker.exists()

    def test_of_the_user_that_is_broken_is_refused(self, environment: Environment, processes: Processes) -> None:
        self.make_users_own(environment)
        processes.python_version = None
        with pytest.raises(InstallError, match="Remora did not make it"):
            environment.ensure("run")
        assert (environment.folder / "pyvenv.cfg").exists()

    def test_with_other_things_in_it_is_refused(self, environment: Environment, processes: Processes) -> None:
        environment.folder.mkdir()
        (environment.folder / "thesis.txt").touch()
        processes.python_version = None
        with pytest.raises(InstallError, match="not a virtual environment"):
            environment.ensure("run")
        assert (environment.folder / "thesis.txt").exists()

    @pytest.mark.skipif(os.name == "nt", reason="links need a privilege there")
    def test_behind_a_link_is_never_deleted(self, environment: Environment, processes: Processes) -> None:
        environment.ensure("run")
        real = environment.folder.rename(environment.folder.with_name("real"))
        environment.folder.symlink_to(real)
        processes.python_version = "3.99"
        environment.ensure("run")
        assert environment.marker.exists()
        assert processes.made == 1

    def make_users_own(self, environment: Environment) -> None:
        environment.folder.mkdir()
        (environment.folder / "pyvenv.cfg").touch()


class TestCalledByAWebUI:
    """Plainly, at every start."""

    def test_is_silent_when_all_is_well(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert install.main([]) == 0
        assert capsys.readouterr().out == ""

    def test_names_each_problem_and_lets_the_host_start(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def version(name: str) -> str:
            if name == "torch":
                return "2.0.1+cu118"
            raise metadata.PackageNotFoundError(name)

        monkeypatch.setattr(metadata, "version", version)
        monkeypatch.setattr(sys, "version_info", (3, 9, 1))
        assert install.main([]) == 0
        python, torch, safetensors, filelock = capsys.readouterr().out.splitlines()
        assert "needs Python 3.10 or newer" in python
        assert torch == "Remora: needs torch 2.1 or newer, found 2.0.1+cu118"
        assert safetensors == "Remora: needs safetensors, which is not installed"
        assert filelock == "Remora: needs filelock, which is not installed"

    def test_imports_no_torch_and_changes_nothing(self, tmp_path: Path) -> None:
        program = (
            "import runpy, sys\n"
            "try: runpy.run_path(sys.argv.pop(), run_name='__main__')\n"
            "except SystemExit as exit: assert not exit.code\n"
            "assert 'torch' not in sys.modules\n"
        )
        copy = tmp_path / INSTALL.name
        copy.write_bytes(INSTALL.read_bytes())
        command = [sys.executable, "-c", program, str(copy)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert list(tmp_path.iterdir()) == [copy]


class TestCommands:
    @pytest.fixture(autouse=True)
    def quiet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ensured: list[str] = []
        self.calls: list[list[str]] = []
        self.codes: dict[str, int] = {}
        monkeypatch.setattr(Environment, "ensure", lambda _, *groups: self.ensured.extend(groups))
        monkeypatch.setattr(install, "become", self.call)
        monkeypatch.setattr(install, "call", self.call)

    def call(self, command: list[str]) -> int:
        self.calls.append(command[1:])
        return next((code for word, code in self.codes.items() if any(word in part for part in command)), 0)

    def test_demo(self) -> None:
        self.codes = {"extension.standalone": 7}
        assert install.main(["demo", "--port", "1", "--host", "0.0.0.0", "--auth", "a:b"]) == 7
        assert self.ensured == ["run"]
        given = ["--port", "1", "--host", "0.0.0.0", "--auth", "a:b"]
        assert self.calls == [["-m", "extension.standalone", "--demo", *given]]

    def test_test(self) -> None:
        assert install.main(["test", "-k", "entry"]) == 0
        assert self.ensured == ["run", "test"]
        assert self.calls == [["-m", "pytest", "-k", "entry"]]

    @pytest.mark.parametrize(("cores", "processes", "threads"), [(1, "1", "1"), (2, "3", "1"), (16, "4", "4")])
    def test_all_tests_share_the_cores(
        self, monkeypatch: pytest.MonkeyPatch, cores: int, processes: str, threads: str
    ) -> None:
        monkeypatch.setattr(os, "cpu_count", lambda: cores)
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        spread = ["-n", processes, "--dist", "loadfile", "--no-loadscope-reorder"]
        for arguments in ([], ["--ci"], ["--all"], ["--all", "--record"]):
            assert install.main(["test", *arguments]) == 0
            assert self.calls.pop() == ["-m", "pytest", *spread, *arguments]
        assert os.environ["OMP_NUM_THREADS"] == threads

    def test_soak(self) -> None:
        self.codes = {"tests.soak": 1}
        assert install.main(["soak", "--minutes", "2"]) == 1
        assert self.ensured == ["run", "test"]
        assert self.calls == [["-m", "tests.soak", "--minutes", "2"]]

    def test_gpu(self) -> None:
        self.codes = {"tests.gpu": 1}
        assert install.main(["gpu", "--small", "--device", "cpu"]) == 1
        assert self.ensured == ["run", "bench", "gpu"]
        assert self.calls == [["-m", "tests.gpu", "--small", "--device", "cpu"]]

    def test_pin_keeps_what_fits_and_writes_what_is_brought(
        self, environment: Environment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(install, "GROUPS", {"run": ("torch", "run", "data"), "test": ("test",)})
        ran: list[list[str]] = []

        def uv(command: list[str], advice: str) -> None:
            ran.append(command)
            out = Path(command[command.index("--output-file") + 1])
            assert out.read_text() == "six==1"
            lines = ["gradio==1", "nvidia-nccl==2 ; sys_platform == 'linux'", "six==2 ; python_full_version < '3.11'"]
            out.write_text("\n".join(lines))

        monkeypatch.setattr(install, "run_quietly", uv)
        assert install.pin(environment, ["--upgrade"]) == 0
        written = (environment.requirements / "constraints.txt").read_text()
        assert written == f'{install.CONSTRAINTS}\nsix==2; python_full_version < "3.11"\n'
        assert self.ensured == ["pin"]
        ((_, *command),) = ran
        assert command[:6] == ["-m", "uv", "pip", "compile", "--universal", "--python-version"]
        assert [Path(word).name for word in command[-4:]] == ["torch.txt", "run.txt", "test.txt", "--upgrade"]

    def test_pin_changes_nothing_if_no_versions_fit(
        self, environment: Environment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def uv(command: list[str], advice: str) -> None:
            raise InstallError(advice)

        monkeypatch.setattr(install, "GROUPS", {"run": ("torch", "run")})
        monkeypatch.setattr(install, "run_quietly", uv)
        with pytest.raises(InstallError, match="no versions that fit"):
            install.pin(environment, [])
        assert (environment.requirements / "constraints.txt").read_text() == "six==1"

    def test_train(self) -> None:
        assert install.main(["train", "judge"]) == 0
        assert self.ensured == ["run", "train"]
        assert self.calls == [["-m", "training", "judge"]]

    def test_docs(self) -> None:
        assert install.main(["docs"]) == 0
        assert install.main(["docs", "build", "--strict"]) == 0
        assert self.ensured == ["docs", "docs"]
        assert self.calls == [["-m", "mkdocs", "serve"], ["-m", "mkdocs", "build", "--strict"]]

    def test_serve(self) -> None:
        assert install.main(["serve", "--replicas", "2"]) == 0
        assert self.ensured == ["run", "serve"]
        assert self.calls == [["-m", "extension.serve", "--replicas", "2"]]

    def test_fuzz(self) -> None:
        self.codes = {"tests.fuzz": 1}
        assert install.main(["fuzz", "--minutes", "1", "--target", "prompts"]) == 1
        assert self.ensured == ["run", "test", "fuzz"]
        assert self.calls == [["-m", "tests.fuzz", "--minutes", "1", "--target", "prompts"]]

    def test_bench_runs_every_program_and_fails_with_any(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "benchmarks").mkdir()
        for name in ("a.py", "b.py", "_common.py"):
            (tmp_path / "benchmarks" / name).touch()
        monkeypatch.setattr(install, "ROOT", tmp_path)
        self.codes = {"a.py": 1}
        results = tmp_path / "runs" / "benchmarks"
        results.mkdir(parents=True)
        (results / "a.json").write_text("of an earlier run")
        assert install.main(["bench", "--tiny"]) == 1
        assert self.ensured == ["run", "bench"]
        assert [[Path(call[0]).name, *call[1:]] for call in self.calls] == [
            ["a.py", "--tiny", "--json", str(results / "a.json")],
            ["b.py", "--tiny", "--json", str(results / "b.json")],
            ["_report.py", str(results)],
        ]
        assert not list(results.iterdir())
        assert capsys.readouterr().err == "Remora: failed: a.py\n"

    @pytest.mark.parametrize(("codes", "code"), [({}, 0), ({"format": 1}, 1), ({"mypy": -9}, 9), ({"--silent": 1}, 1)])
    def test_check_runs_every_tool(self, monkeypatch: pytest.MonkeyPatch, codes: dict[str, int], code: int) -> None:
        monkeypatch.setattr(install, "install_node_modules", lambda python: None)
        self.codes = codes
        assert install.main(["check"]) == code
        assert [call[1] for call in self.calls] == ["ruff", "ruff", "mypy", install.IMPORTS, install.NPM]
        assert self.calls[-1][2:] == ["run", "--silent", "check"]

    def test_node_modules_are_installed_once_for_each_lock_file(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(install, "ROOT", tmp_path)
        (tmp_path / "node_modules").mkdir()
        ran: list[list[str]] = []
        monkeypatch.setattr(install, "run_quietly", lambda command, advice: ran.append(command[3:]))
        for text in ("{}", "{}", "{ }"):
            (tmp_path / "package-lock.json").write_text(text)
            install.install_node_modules("python")
        assert ran == [["ci"], ["ci"]]

    def test_unknown_shows_the_usage(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert install.main(["upgrade"]) == 2
        assert "usage: python install.py" in capsys.readouterr().err
        assert not self.ensured

    def test_help(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert install.main(["--help"]) == 0
        assert "usage: python install.py" in capsys.readouterr().out

    @pytest.mark.parametrize("flag", ["-h", "--help"])
    @pytest.mark.parametrize("command", sorted(install.COMMANDS))
    def test_help_of_a_command_installs_and_changes_nothing(
        self, command: str, flag: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert install.main([command, flag]) == 0
        assert not self.ensured
        if command in ("demo", "serve"):
            own = {"demo": ["extension.standalone", "--demo"], "serve": ["extension.serve"]}
            assert self.calls == [["-m", *own[command], "--help"]]
        else:
            assert f"usage: python install.py {command}" in capsys.readouterr().out
            assert not self.calls

    def test_old_python_is_refused(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setattr(sys, "version_info", (3, 9, 1))
        assert install.main(["demo"]) == 1
        assert "needs Python 3.10" in capsys.readouterr().err
        assert not self.ensured

    def test_interrupt_has_no_traceback(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Environment, "ensure", interrupt)
        assert install.main(["demo"]) == 130


class TestPins:
    def pins(self) -> dict[str, list[str]]:
        return {file.stem: install.pins(file) for file in REQUIREMENTS.glob("*.txt")}

    def test_every_file_is_used(self) -> None:
        assert set(self.pins()) == {"constraints", *(name for names in install.GROUPS.values() for name in names)}

    def test_every_line_is_one_exact_public_version(self) -> None:
        pins = [pin for pins in self.pins().values() for pin in pins]
        read = {pin: Requirement(pin) for pin in pins}
        assert [
            pin for pin in pins if not re.match(r"[a-z0-9.-]+(\[[a-z]+\])?==[0-9.]+((post|b)\d+)?(; |$)", pin)
        ] == []
        assert [
            pin for pin, one in read.items() if (one.extras and one.name != "ray") or one.url or len(one.specifier) != 1
        ] == []

    def test_what_is_named_is_not_among_what_it_brings(self) -> None:
        others = self.pins()
        constraints = others.pop("constraints")
        named = {install.package(pin) for pins in others.values() for pin in pins}
        assert [pin for pin in constraints if install.package(pin) in named] == []
        assert (REQUIREMENTS / "constraints.txt").read_text().splitlines()[0] == install.CONSTRAINTS
        assert constraints == sorted(constraints, key=install.package)

    def test_the_hooks_of_git_have_the_same_versions(self) -> None:
        config = yaml.safe_load((INSTALL.parent / ".pre-commit-config.yaml").read_text())
        ((_, hooks),) = (repo.values() for repo in config["repos"])
        wanted = {needs for hook in hooks for needs in hook["additional_dependencies"]}
        biome = json.loads((INSTALL.parent / "package.json").read_text())["devDependencies"]["@biomejs/biome"]
        (ruff,) = (pin for pin in self.pins()["test"] if install.package(pin) == "ruff")
        assert wanted == {ruff, f"@biomejs/biome@{biome}"}

    def test_no_package_has_two_versions(self) -> None:
        found: dict[tuple[str, str], set[str]] = {}
        for pin in {pin for pins in self.pins().values() for pin in pins}:
            name, _, version = pin.partition("==")
            found.setdefault((name, version.partition(";")[2]), set()).add(version)
        assert [name for name, versions in found.items() if len(versions) > 1] == []
        conditional = {name for name, condition in found if condition}
        assert [name for name, condition in found if not condition and name in conditional] == []


def test_the_demos_help_needs_the_standard_library_only() -> None:
    """As on a machine with nothing installed: -S takes all packages away."""
    command = [sys.executable, "-S", "-m", "extension.standalone", "--demo", "--help"]
    done = subprocess.run(command, cwd=INSTALL.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: python install.py demo ")
    assert "--lora-dir" in done.stdout


def documented() -> list[str]:
    """Return each `python install.py` in the code of the documents, without what follows on its line."""
    root = INSTALL.parent
    found = []
    for page in (root / "README.md", root / "CONTRIBUTING.md", root / "BENCHMARKS.md", *sorted(root.glob("docs/*.md"))):
        text = page.read_text(encoding="utf-8")
        code = [
            *re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL),
            *re.findall(r"(?m)^    python.*", text),
        ]
        code += re.findall(r"`(python install.py [^`\n]+)`", text)
        found += [
            line.partition("#")[0].strip() for part in code for line in part.splitlines() if "python install.py" in line
        ]
    return sorted({line for line in found if "COMMAND" not in line})


@pytest.mark.parametrize("line", documented())
def test_a_command_of_the_documents_is_one(line: str) -> None:
    _, program, command, *arguments = shlex.split(line)
    assert (program, command in install.COMMANDS) == ("install.py", True)
    assert "-" not in command
    if command == "demo":
        known = vars(_parser().parse_args(["--demo", *arguments]))
        assert known["demo"]
    if command == "serve":
        assert serve_parser().parse_args(arguments).waiting
    text = inspect.getdoc(install.COMMANDS[command]) or ""
    told = re.findall(r"--[a-z-]+", text)
    if command not in ("demo", "serve", "test", "docs"):
        assert [word for word in arguments if word.startswith("--") and word not in told] == []


def test_the_demo_says_no_with_the_standard_library_only(tmp_path: Path) -> None:
    """A port that is taken or a model that is missing is told before anything large is imported."""
    command = [sys.executable, "-S", "-m", "extension.standalone", "--no-browser"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused = {
            f"--demo --port={taken.getsockname()[1]}": "error: port ",
            f"--port=0 --model {tmp_path / 'nothing'}": f"error: {tmp_path / 'nothing'} is neither a checkpoint",
            "--port=0": "error: choose a model with --model",
        }
        for arguments, sentence in refused.items():
            done = subprocess.run(
                [*command, *arguments.split()], cwd=INSTALL.parent, capture_output=True, text=True, check=False
            )
            assert done.returncode in (1, 2)
            assert (done.stderr.startswith(sentence), done.stderr.count("\n")) == (True, 1), done.stderr
