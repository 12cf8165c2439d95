"""scripts/remora.py as each web UI runs it, beside an extension that has a package named `extension` too."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.fakes.loaders import A1111, HOSTS, Forge, ScriptHost

ENTRY = Path(__file__).resolve().parents[1] / "scripts" / "remora.py"
OURS = {
    "lib_lora/__init__.py": "",
    "lib_lora/late.py": "WHOSE = 'remora'",
    "extension/__init__.py": (
        "import lib_lora\n"
        "from . import session\n"
        "calls = 0\n"
        "def register():\n"
        "    global calls\n"
        "    calls += 1\n"
        "def import_late():\n"
        "    from . import late\n"
        "    from lib_lora.late import WHOSE\n"
        "    return late.WHOSE, WHOSE\n"
    ),
    "extension/session.py": "",
    "extension/late.py": "WHOSE = 'remora'",
}
NEIGHBOUR = {
    "extension/__init__.py": "",
    "extension/owner.py": "WHOSE = 'neighbour'",
    "extension/late.py": "WHOSE = 'neighbour'",
    "scripts/neighbour.py": (
        "import extension\n"
        "from extension.owner import WHOSE\n"
        "def import_late():\n"
        "    from extension import late\n"
        "    return late.WHOSE\n"
    ),
}
NAIVE = "from extension import register\nregister()\n"

HostClass = type[ScriptHost]


def is_ours(name: str) -> bool:
    return name.partition(".")[0] in {"lib_lora", "remora", "extension"}


def loaded() -> set[str]:
    return {name for name in sys.modules if is_ours(name)}


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    importlib.invalidate_caches()
    return root


@pytest.fixture(autouse=True)
def fresh_interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide the repository's own packages, and take back everything a host changes."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if Path(entry).resolve() != ENTRY.parents[1]])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    hidden = {name: sys.modules.pop(name) for name in loaded()}
    yield
    for name in loaded():
        del sys.modules[name]
    sys.modules.update(hidden)


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    root = write(tmp_path / "ours", OURS)
    (root / "scripts").mkdir()
    shutil.copy(ENTRY, root / "scripts")
    return root


@pytest.fixture
def neighbour(tmp_path: Path) -> Path:
    return write(tmp_path / "neighbour", NEIGHBOUR)


@pytest.fixture(params=["ours first", "neighbour first"])
def roots(request: pytest.FixtureRequest, ours: Path, neighbour: Path) -> list[Path]:
    return [ours, neighbour] if request.param == "ours first" else [neighbour, ours]


def start(host_class: HostClass, roots: list[Path]) -> ScriptHost:
    host = host_class(roots)
    host.load_scripts()
    return host


@pytest.mark.parametrize("host_class", HOSTS)
class TestBesideAnotherExtension:
    def test_each_gets_its_own_packages(self, host_class: HostClass, roots: list[Path], ours: Path) -> None:
        host = start(host_class, roots)
        assert not host.errors
        assert sys.modules["remora"].__file__ == str(ours / "extension" / "__init__.py")
        assert sys.modules["lib_lora"].__file__ == str(ours / "lib_lora" / "__init__.py")
        assert host.scripts["neighbour"].WHOSE == "neighbour"
        assert "remora.py" not in sys.modules

    def test_late_imports_work(self, host_class: HostClass, roots: list[Path]) -> None:
        host = start(host_class, roots)
        assert sys.modules["remora"].import_late() == ("remora", "remora")
        assert host.scripts["neighbour"].import_late() == "neighbour"
        assert importlib.import_module("lib_lora.late").WHOSE == "remora"

    def test_ui_reload_registers_again_and_reuses_the_packages(self, host_class: HostClass, roots: list[Path]) -> None:
        host = start(host_class, roots)
        before = {name: sys.modules[name] for name in loaded()}
        host.load_scripts()
        assert not host.errors
        assert {name: sys.modules[name] for name in loaded()} == before
        assert sys.modules["remora"].calls == 2

    def test_search_path_is_left_alone(self, host_class: HostClass, roots: list[Path]) -> None:
        before, expected = sys.path, list(sys.path)
        start(host_class, roots)
        if host_class is Forge:
            expected = [*map(str, reversed(roots)), *expected]
        else:
            assert sys.path is before
        assert sys.path == expected

    def test_naive_import_would_break_one_of_the_two(
        self, host_class: HostClass, roots: list[Path], ours: Path
    ) -> None:
        write(ours, {"scripts/remora.py": NAIVE})
        assert start(host_class, roots).errors


@pytest.mark.parametrize("host_class", HOSTS)
@pytest.mark.parametrize("name", ["lib_lora", "remora"])
class TestTakenName:
    def test_is_refused_before_anything_is_loaded(self, host_class: HostClass, name: str, ours: Path) -> None:
        other = ModuleType(name)
        other.__file__ = str(ours.parent / "elsewhere" / "__init__.py")
        sys.modules[name] = other
        error = start(host_class, [ours]).errors["remora"]
        assert isinstance(error, ImportError)
        assert name in str(error)
        assert other.__file__ in str(error)
        assert loaded() == {name}
        assert sys.modules[name] is other

    def test_by_a_folder_without_init_is_refused(self, host_class: HostClass, name: str, ours: Path) -> None:
        sys.modules[name] = ModuleType(name)
        assert isinstance(start(host_class, [ours]).errors["remora"], ImportError)
        assert loaded() == {name}


@pytest.mark.parametrize("host_class", HOSTS)
class TestFailure:
    def test_leaves_nothing_half_loaded(self, host_class: HostClass, ours: Path) -> None:
        write(ours, {"extension/__init__.py": "from . import session, late\n", "extension/late.py": "1 / 0\n"})
        host = start(host_class, [ours])
        assert isinstance(host.errors["remora"], ZeroDivisionError)
        assert loaded() == {"lib_lora"}

    def test_in_the_library_leaves_nothing(self, host_class: HostClass, ours: Path) -> None:
        write(ours, {"lib_lora/__init__.py": "from . import late\n1 / 0\n"})
        assert isinstance(start(host_class, [ours]).errors["remora"], ZeroDivisionError)
        assert loaded() == set()

    def test_is_over_once_the_cause_is(self, host_class: HostClass, ours: Path) -> None:
        write(ours, {"extension/session.py": "1 / 0\n"})
        host = start(host_class, [ours])
        write(ours, OURS)
        host.load_scripts()
        assert not host.errors
        assert sys.modules["remora"].calls == 1


def test_interrupt_leaves_nothing_half_loaded(ours: Path) -> None:
    write(ours, {"extension/session.py": "raise KeyboardInterrupt\n"})
    with pytest.raises(KeyboardInterrupt):
        start(A1111, [ours])
    assert loaded() == {"lib_lora"}


def test_real_packages_load_twice_and_late(tmp_path: Path) -> None:
    program = (
        "import runpy, sys\n"
        "for _ in range(2): runpy.run_path(sys.argv[1])\n"
        "import lib_lora.errors, remora.text.prompt\n"
        "assert 'extension' not in sys.modules\n"
    )
    command = [sys.executable, "-I", "-c", program, str(ENTRY)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
