"""The reference in docs/reference: every public name of the library is in it, with a docstring that fits its code."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import lib_lora
from lib_lora import plugins
from lib_lora.__main__ import parser

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
PUBLIC = [(module, name) for module in (lib_lora, plugins) for name in module.__all__]
OF_PLUGINS = {"lib_lora.register", "lib_lora.unregister"}
"""They are in `lib_lora.plugins`, too, whose page has them."""


def source_of(file: Path, name: str) -> tuple[Path, str]:
    """Return the file that has a name itself, and its name there, by the imports as they are written."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        for alias in node.names if isinstance(node, ast.ImportFrom) and node.level else ():
            if (alias.asname or alias.name) == name:
                found = file.parent.joinpath(*(node.module or "").split("."))
                return source_of(found / "__init__.py" if found.is_dir() else found.with_suffix(".py"), alias.name)
    return file, name


def docstring_of(module: ModuleType, name: str) -> str:
    """Return what is written below a name: nothing that Python makes up for a dataclass without a docstring."""
    file, name = source_of(Path(str(module.__file__)), name)
    body = ast.parse(file.read_text(encoding="utf-8")).body
    for node, below in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node) or ""
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(one, ast.Name) and one.id == name for one in targets) and isinstance(below, ast.Expr):
            return str(ast.literal_eval(below.value))
    return ""


def calls() -> Iterator[tuple[str, Any]]:
    """Yield every public class, function and method by its name, without what classes have from other packages."""
    for module, public in PUBLIC:
        value = getattr(module, public)
        if inspect.isfunction(value) or inspect.isclass(value):
            yield public, value
        for name, member in inspect.getmembers(value) if inspect.isclass(value) else ():
            function = member.fget if isinstance(member, property) else member
            if not name.startswith("_") and str(getattr(function, "__module__", "")).startswith("lib_lora"):
                yield f"{public}.{name}", member


def documented(call: object, section: str) -> list[str]:
    """Return the names in a section of a docstring."""
    found = re.search(rf"^{section}:\n((?: .*\n|\n)*)", f"{inspect.getdoc(call)}\n", re.MULTILINE)
    return [] if found is None else re.findall(r"^ {4}(\w+):", found[1], re.MULTILINE)


def test_every_public_name_is_in_the_reference_once() -> None:
    pages = [page.read_text(encoding="utf-8") for page in sorted(REFERENCE.glob("*.md"))]
    found = re.findall(r"^::: (\S+)$", "\n".join(pages), re.MULTILINE)
    assert sorted(found) == sorted({f"{module.__name__}.{name}" for module, name in PUBLIC} - OF_PLUGINS)


def test_every_public_name_has_a_docstring() -> None:
    assert [f"{module.__name__}.{name}" for module, name in PUBLIC if not docstring_of(module, name)] == []


def test_a_public_call_has_a_docstring_that_names_its_arguments_and_errors() -> None:
    errors = {*vars(builtins), *plugins.__all__, *lib_lora.__all__}
    seen = dict(calls())
    assert len(seen) > 200
    assert [name for name, call in seen.items() if not inspect.getdoc(call)] == []
    for name, call in seen.items():
        arguments = documented(call, "Args")
        assert not arguments or set(arguments) <= set(inspect.signature(call).parameters), name
        assert set(documented(call, "Raises")) <= errors, name


def test_options_are_typed() -> None:
    """No call takes any options: a type checker knows each."""
    found = 0
    for name, call in calls():
        for one in inspect.signature(call).parameters.values() if inspect.isroutine(call) else ():
            if one.kind is one.VAR_KEYWORD:
                assert str(one.annotation).startswith("Unpack["), name
                found += 1
    assert found >= 4


def helps() -> dict[str, str]:
    """Return the help of the command line, and of each command."""
    made = parser()
    (commands,) = [action.choices for action in made._actions if action.dest == "command"]
    assert commands is not None
    return {"": made.format_help(), **{name: one.format_help() for name, one in dict(commands).items()}}


@pytest.mark.parametrize("command", helps())
def test_the_page_of_the_command_line_has_the_help(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    page = (REFERENCE / "command_line.md").read_text(encoding="utf-8")
    assert " ".join(f"```\n{helps()[command]}```".split()) in " ".join(page.split())  # lines differ by Python's version
    assert not command or f"\n## {command}\n" in page
