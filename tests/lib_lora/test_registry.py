"""Plug-ins are found by lying in the folder, in a stable order, and mistakes are named."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from types import ModuleType

import pytest

from lib_lora import adapters, architectures, base_weights, formats, residency
from lib_lora.adapters.base import Adapter
from lib_lora.architectures.base import Architecture
from lib_lora.base_weights.base import WeightReader
from lib_lora.errors import RegistryError
from lib_lora.formats.base import KeyFormat
from lib_lora.registry import discover, discover_classes
from lib_lora.residency.base import Scheme


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
        "from lib_lora.formats.base import KeyFormat\n"
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


def files(package: ModuleType) -> set[str]:
    return {info.name for info in pkgutil.iter_modules(package.__path__) if not info.name.startswith("_")} - {"base"}


@pytest.mark.parametrize(("package", "kind"), [(architectures, Architecture), (formats, KeyFormat)])
def test_what_is_shipped_is_named_as_its_file(package, kind):
    assert set(discover(package, kind)) == files(package)


def test_what_is_shipped_is_found():
    kinds = discover_classes(adapters, Adapter)
    assert {kind.__module__.rpartition(".")[2] for kind in kinds} == files(adapters)
    assert {"lora", "loha", "lokr"} <= {kind.name for kind in kinds}
    readers = [reader.name for reader in discover_classes(base_weights, WeightReader)]
    assert set(readers) == {
        *("dense", "float8", "scaled_float", "sdnq", "quanto", "wrapper"),
        *("bitsandbytes_8bit", "bitsandbytes_4bit", "gguf_diffusers", "gguf_forge", "gguf_wrapped"),
    }
    packed = {"bitsandbytes_4bit", "gguf_diffusers", "gguf_forge", "gguf_wrapped", "quanto", "sdnq", "scaled_float"}
    assert packed <= set(readers[: readers.index("dense")]), "these may show a floating dtype"
    assert {scheme.name for scheme in discover_classes(residency, Scheme)} == {
        "accelerate_hook",
        "cast_on_forward",
        "diffusers_hook",
    }
