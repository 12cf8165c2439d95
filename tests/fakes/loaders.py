"""How each web UI runs the scripts of its extensions: sys.path, sys.modules and errors, nothing else."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


class ScriptHost:
    """What they share. `load_scripts` runs every script; a UI reload calls it again."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = roots
        self.scripts: dict[str, ModuleType] = {}
        self.errors: dict[str, BaseException] = {}

    def load_scripts(self) -> None:
        self.scripts.clear()
        self.errors.clear()
        for root in self.roots:
            for path in sorted((root / "scripts").glob("*.py")):
                with self.search_path(root):
                    self.run(path)

    @contextmanager
    def search_path(self, root: Path) -> Iterator[None]:
        """Put `root` first, in a new list; then give back the old list object."""
        before = sys.path
        sys.path = [str(root), *before]
        try:
            yield
        finally:
            sys.path = before

    def run(self, path: Path) -> None:
        """Execute a script as a module named like the file, suffix included, that is not in sys.modules."""
        spec = importlib.util.spec_from_file_location(path.name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # noqa: BLE001  reported, and the next script runs
            self.errors[path.stem] = error
            self.after_error(path, module)
        else:
            self.scripts[path.stem] = module

    def after_error(self, path: Path, module: ModuleType) -> None:
        """Forget a script that failed."""


class A1111(ScriptHost):
    """AUTOMATIC1111."""


class SDNext(ScriptHost):
    """SD.Next: a script that failed is kept as far as it came."""

    def after_error(self, path: Path, module: ModuleType) -> None:
        self.scripts[path.stem] = module


class Forge(ScriptHost):
    """Forge, reForge, Forge Classic: before the first script, every root joins sys.path and stays there."""

    def load_scripts(self) -> None:
        for root in self.roots:
            if str(root) not in sys.path:
                sys.path = [str(root), *sys.path]
        super().load_scripts()


HOSTS = (A1111, SDNext, Forge)
