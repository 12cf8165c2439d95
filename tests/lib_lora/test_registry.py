"""Plug-ins are found by lying in the folder, in a stable order, and mistakes are named."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lib_lora import adapters
from lib_lora.adapters import Modifier
from lib_lora.adapters.base import Adapter
from lib_lora.errors import RegistryError
from lib_lora.files import formats
from lib_lora.files.formats.base import KeyFormat
from lib_lora.naming import architectures
from lib_lora.naming.architectures.base import Architecture
from lib_lora.placement import schemes
from lib_lora.placement.schemes.base import Scheme
from lib_lora.registry import discover, discover_classes
from lib_lora.weights import readers
from lib_lora.weights.readers.base import WeightReader


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write plug-in files, import their folder as a package."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(**files: str):
        folder = tmp_path / "plugins"
        folder.mkdir()
        (folder / "__init__.py").touch()
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        return importlib.import_module("plugins")

    yield make
    for name in [name for name in sys.modules if name.split(".")[0] == "plugins"]:
        del sys.modules[name]


def plugin(name: str, before: str = "") -> str:
    return (
        "from lib_lora.files.formats.base import KeyFormat\n"
        f"{name.upper()} = KeyFormat(name={name!r}, patterns=(), example='', before=({before}))\n"
    )


def test_a_new_file_is_all_it_takes(package):
    found = discover(package(b=plugin("b"), a=plugin("a"), _hidden=plugin("hidden"), base=plugin("base")), KeyFormat)
    assert list(found) == ["a", "b"]


def test_order_follows_before(package):
    found = discover(package(a=plugin("a"), b=plugin("b"), c=plugin("c", "'a','b'"), d=plugin("d", "'c',")), KeyFormat)
    assert list(found) == ["d", "c", "a", "b"]


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"a": plugin("same"), "b": plugin("same")}, "two plug-ins are named 'same'"),
        ({"a": plugin("a", "'ghost',")}, "'a' wants to be before unknown 'ghost'"),
        ({"a": plugin("a", "'b',"), "b": plugin("b", "'a',")}, "circle among a, b"),
    ],
)
def test_mistakes_are_named(package, files, text):
    with pytest.raises(RegistryError, match=text):
        discover(package(**files), KeyFormat)


def files(package: ModuleType) -> dict[str, ast.Module]:
    """Return the plug-in files of a folder, by name, without importing them."""
    (folder,) = package.__path__
    names = {path.stem: path for path in Path(folder).glob("*.py") if path.stem != "base"}
    return {
        name: ast.parse(path.read_text(encoding="utf-8")) for name, path in names.items() if not name.startswith("_")
    }


def named_classes(package: ModuleType) -> set[str]:
    """Return the names that the classes of these files give themselves."""
    return {
        statement.value.value
        for tree in files(package).values()
        for one in tree.body
        if isinstance(one, ast.ClassDef)
        for statement in one.body
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Constant)
        for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
        if isinstance(target, ast.Name) and target.id == "name"
    } | {
        statement.value.args[0].value  # of a table of refused kinds
        for tree in files(package).values()
        for statement in tree.body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
        if getattr(statement.value.func, "id", "") == "_refused"
    }


INSTANCES = [(architectures, Architecture), (formats, KeyFormat)]
CLASSES = [(adapters, (Adapter, Modifier)), (readers, (WeightReader,)), (schemes, (Scheme,))]


@pytest.mark.parametrize(("package", "kind"), INSTANCES)
def test_what_is_shipped_is_named(package, kind):
    """Every file has a plug-in, and all of them are found."""
    modules = {name: vars(importlib.import_module(f"{package.__name__}.{name}")) for name in files(package)}
    own = {name: {one.name for one in values.values() if isinstance(one, kind)} for name, values in modules.items()}
    assert all(own.values())
    assert set().union(*own.values()) == set(discover(package, kind))
    assert len(own) > 10


@pytest.mark.parametrize(("package", "bases"), CLASSES)
def test_what_is_shipped_is_found(package, bases):
    """Every file has a plug-in, and every class with a name is one."""
    found = [kind for base in bases for kind in discover_classes(package, base)]
    assert {kind.__module__.rpartition(".")[2] for kind in found} == set(files(package))
    assert {kind.name for kind in found} == named_classes(package)
    assert len(found) > 2


@pytest.mark.parametrize(("package", "kind"), INSTANCES)
def test_files_are_asked_in_the_order_they_want(package, kind):
    check_order(discover(package, kind).values())


@pytest.mark.parametrize(("package", "base"), [(package, base) for package, bases in CLASSES for base in bases])
def test_classes_are_asked_in_the_order_they_want(package, base):
    check_order(discover_classes(package, base))


def check_order(plugins):
    places = {plugin.name: place for place, plugin in enumerate(plugins)}
    for one in plugins:
        for other in getattr(one, "before", ()):
            assert places[one.name] < places[other], (one.name, other)
