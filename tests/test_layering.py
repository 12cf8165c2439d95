"""Who may import whom. Every exception to the design is one visible line of the tables below."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# What a module or plug-in folder of lib_lora may import of lib_lora, beside its own folder and BASICS.
# "slot?" is for type checking only, "*" is anything.
BASICS = "compiler errors modules registry tensors"
LIB_LORA = {
    "__init__": (
        "blocks buckets components engine file multiplier network patch provenance reading region report rows schedule"
        " stack"
    ),
    "__main__": "*",
    "engine": (
        "auto buckets budget cache calibration carriers families hearing kernels layer model multiplier network outputs"
        " parking patch plan rates reading report resident rows schedule scratch slot stack steady storage"
        " timing trace uncalled"
    ),
    "model": "families layer multiplier patch pristine residency stack",
    "uncalled": "auto patch report slot",
    "outputs": "calls components",
    "patterns": "",
    "auto": "binding calls effective merged rates slot transient",
    "rates": "effective",
    "calibration": "cache families layer plan rates resident slot stack",
    "buckets": "",
    "kernels": "budget",
    "steady": "storage",
    "triton_pair": "",
    "carriers": "patch slot",
    "parking": "network plan stack",
    "hearing": "calls components families picture rows stack strength timing",
    "pairs": "effective kernels patch?",
    "picture": "calls",
    "region": "",
    "spread": "picture region",
    "live": "picture windows",
    "plan": (
        "auto binding blocks by_tokens cells evaluation factored layer merged multiplier network places pristine report"
        " residency resident slot stack strength trace transient whole"
    ),
    "cells": "blocks evaluation layer places stack",
    "evaluation": "blocks components multiplier region schedule spread stack strength",
    "timing": "calls schedule",
    "network": (
        "adapters._narrow adapters._part adapters.base blocks components families file layer numbered parsed places"
        " reading recipe report whole"
    ),
    "parsed": (
        "adapters.base architectures.base components families file formats peft_config provenance reading recipe report"
    ),
    "numbered": "formats.base layer places",
    "families": "architectures layer places report",
    "provenance": "",
    "cache": "file layer network parsed reading",
    "recipe": "adapters",
    "peft_config": "adapters.base file patterns",
    "skeleton": "components file",
    "factored": (
        "adapters.base binding buckets effective live opaque operation pairs patch? picture resident rows"
        " storage streaming strength"
    ),
    "opaque": "forwards? slot?",
    "transient": (
        "adapters.base apart base_weights.base binding build layer live opaque operation patch? picture places"
        " resident scratch spread storage streaming strength"
    ),
    "by_tokens": "effective factored operation patch? strength transient",
    "merged": "adapters.base binding build layer patch? pristine rounding strength transient",
    "resident": ("adapters.base binding budget kernels layer patch? residency steady storage streaming strength trace"),
    "budget": "streaming",
    "streaming": "storage",
    "storage": "",
    "pristine": "file layer skeleton",
    "build": "adapters.base",
    "rounding": "",
    "trace": "binding? report?",
    "apart": "operation rows",
    "calls": "",
    "rows": "calls",
    "effective": "patch? scratch spread strength?",
    "proportion": "",
    "scratch": "",
    "operation": "",
    "binding": "adapters.base file places strength whole",
    "whole": "adapters._part adapters.base layer places",
    "places": "adapters.base architectures.base components",
    "components": "",
    "patch": "forwards slot",
    "forwards": "residency slot?",
    "slot": "forwards? opaque patch?",
    "layer": "base_weights blocks places projections",
    "projections": "",
    "file": "",
    "reading": "",
    "report": "",
    "stack": "multiplier reading schedule",
    "strength": "adapters.base picture proportion schedule spread steady windows",
    "windows": "picture spread? steady strength?",
    "multiplier": "blocks region schedule",
    "schedule": "",
    "blocks": "components",
    # plug-in folders and basics: each by itself
    "adapters": "operation reading",
    "architectures": "components",
    "base_weights": "",
    "formats": "components",
    "residency": "",
    "compiler": "",
    "errors": "",
    "modules": "",
    "registry": "",
    "tensors": "",
}

# The same for extension, which has no BASICS.
EXTENSION = {
    "__init__": "guest hosts options session",
    "guest": "always_on api hosts options paste prompt regions session tag ui xyz",
    "standalone": "*",
    "ui": "catalog generation hosts infotext options prompt session",
    "api": (
        "always_on block_weights catalog collection compare generation hosts options presets prompt region_files"
        " regions session state version"
    ),
    "compare": "generation hosts prompt_edit",
    "presets": "collection known prompt store",
    "prompt_edit": "block_weights prompt",
    "state": "catalog hosts options session version",
    "xyz": "hosts options presets prompt prompt_edit regions session",
    "options": "hosts request session tag",
    "request": "tag",
    "infotext": "prompt",
    "paste": "always_on catalog infotext",
    "session": ("always_on batch block_presets catalog hosts known presets prompt region_files request tag"),
    "known": "any_name block_weights",
    "any_name": "",
    "regions": "",
    "region_files": "collection regions store",
    "always_on": "block_weights prompt store tag",
    "block_presets": "block_weights store",
    "block_weights": "",
    "tag": "block_weights regions",
    "batch": "catalog tag",
    "catalog": "collection",
    "collection": "atomic store",
    "store": "atomic",
    "atomic": "",
    "generation": "",
    "hosts": "generation tag",
    "prompt": "block_weights known regions tag",
    "version": "",
}

# The same for training, which nobody but its tests imports.
TRAINING = {
    "__init__": "",
    "__main__": "*",
    "world": "",
    "draw": "world",
    "loop": "",
    "curves": "",
    "text": "",
    "vae": "draw loop world",
    "latents": "draw text vae",
    "denoiser": "draw latents loop text vae world",
    "judge": "draw loop vae world",
    "ideas": "world",
    "adapters": "denoiser draw ideas latents loop",
    "files": "adapters ideas world",
    "check": "denoiser ideas judge world",
    "loras": "adapters check denoiser files ideas judge vae",
    "card": "check ideas",
    "pictures": "",
}

# Where a package from outside may be imported; the standard library may everywhere.
TORCH_FREE = ("lib_lora/formats/", "lib_lora/architectures/")
PIPELINE = ("extension/standalone/", "extension/hosts/standalone.py", "training/")
OUTSIDE = {
    "PIL": ("extension/", "training/"),
    "accelerate": PIPELINE,
    "diffusers": PIPELINE,
    "extension": ("training/",),
    "fastapi": ("extension/api/", "extension/standalone/"),
    "gradio": ("extension/ui/", "extension/hosts/_webui.py"),  # a setting's description names its component
    "huggingface_hub": PIPELINE,
    "lib_lora": ("extension/", "training/"),  # its public names: a module of it is refused
    "lycoris": ("training/",),
    "matplotlib": ("training/curves.py",),
    "modules": ("extension/hosts/",),
    "numpy": PIPELINE,
    "peft": ("training/",),
    "safetensors": ("lib_lora/", *PIPELINE),
    "tokenizers": PIPELINE,
    "starlette": ("extension/api/", "extension/standalone/"),  # what fastapi is made of
    "torch": ("lib_lora/", "extension/", "training/"),
    "tqdm": ("training/",),
    "transformers": PIPELINE,
    "triton": ("lib_lora/triton_pair.py",),
    "typing_extensions": ("lib_lora/", "extension/"),
    "watchdog": ("extension/collection/scan.py",),
    "uvicorn": ("extension/standalone/",),
}
TABLES = {"lib_lora": LIB_LORA, "extension": EXTENSION, "training": TRAINING}


@dataclass(frozen=True)
class Import:
    """One imported module."""

    target: str  # dotted; starts with the importing package's name when relative
    line: int
    relative: bool
    for_types: bool


def imports_of(path: str, source: str, modules: set[str]) -> Iterator[Import]:
    """Yield what `source`, the text of `path`, imports; `modules` tells a sub-module from a name in its parent."""
    tree = ast.parse(source, path)
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    for_types = {id(inner) for block in blocks for statement in block.body for inner in ast.walk(statement)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(name.name, node.lineno, False, id(node) in for_types)
        elif isinstance(node, ast.ImportFrom):
            package = path.split("/")[: -node.level] if node.level else []
            base = ".".join([*package, *filter(None, [node.module])])
            for name in node.names:
                full = f"{base}.{name.name}"
                yield Import(full if full in modules else base, node.lineno, bool(node.level), id(node) in for_types)


def violations(path: str, source: str, modules: set[str]) -> list[str]:
    """Return one line for each import that the tables do not allow."""
    package, unit = unit_of(path)
    table = TABLES.get(package, {})
    if package in TABLES and unit not in table:
        return [f"{path}: {unit} is not in the table of {package}: say what it may import"]
    refused = []
    for found in dict.fromkeys(imports_of(path, source, modules)):
        if found.target.partition(".")[0] == package and package in TABLES:
            reason = inside_reason(package, unit, table[unit], found)
        else:
            reason = outside_reason(path, found.target)
        if reason:
            refused.append(f"{path}:{found.line}: imports {found.target}: {reason}")
    return refused


def unit_of(path: str) -> tuple[str, str]:
    package, _, rest = path.partition("/")
    return package, rest.partition("/")[0].removesuffix(".py")


def inside_reason(package: str, unit: str, row: str, found: Import) -> str:
    """Say why a module may not import this one of its own package, or nothing."""
    if not found.relative:
        return "inside a package imports are relative"
    if row == "*":
        return ""
    target = found.target.removeprefix(package).removeprefix(".")
    if not target:
        return "the package's own public names are for those outside"
    allowed = {unit, *row.split()}
    if package == "lib_lora":
        allowed |= set(BASICS.split())
    if f"{package}/{unit}/" in TORCH_FREE:
        allowed -= {"tensors"}  # it imports torch
    if found.for_types:
        allowed |= {name.removesuffix("?") for name in allowed}
    if {target, target.partition(".")[0]} & allowed:
        return ""
    return f"{unit} may import only: {' '.join(sorted(allowed - {unit})) or 'nothing'}"


def outside_reason(path: str, target: str) -> str:
    """Say why a file may not import this package from outside, or nothing."""
    top = target.partition(".")[0]
    if top in sys.stdlib_module_names:
        return ""
    if top not in OUTSIDE:
        return "not in the table of outside packages"
    if not path.startswith(OUTSIDE[top]):
        return f"allowed only in {', '.join(OUTSIDE[top])}"
    if top in {"torch", "safetensors"} and path.startswith(TORCH_FREE):
        return "this folder is a table of names, and free of torch"
    return "only its public names" if top == "lib_lora" and target != top else ""


def sources() -> dict[str, str]:
    files = [ROOT / "install.py", *(ROOT / "scripts").glob("*.py")]
    files += [file for package in TABLES for file in (ROOT / package).rglob("*.py")]
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


def modules_of(paths: dict[str, str]) -> set[str]:
    return {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in paths}


def test_every_import_is_allowed() -> None:
    texts = sources()
    modules = modules_of(texts)
    refused = [line for path, source in sorted(texts.items()) for line in violations(path, source, modules)]
    assert not refused, "\n".join(["", *refused])


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("lib_lora/slot.py", "from .engine import Engine"),
        ("lib_lora/slot.py", "from . import engine"),
        ("lib_lora/slot.py", "from .patch import ClassPatch"),
        ("lib_lora/slot.py", "from . import Engine"),
        ("lib_lora/slot.py", "from .adapters.lora import LoRA"),
        ("lib_lora/slot.py", "from lib_lora.errors import LoraError"),
        ("lib_lora/slot.py", "def late():\n    from .network import load_network"),
        ("lib_lora/slot.py", "import diffusers"),
        ("lib_lora/slot.py", "from einops import rearrange"),
        ("lib_lora/adapters/lora.py", "from ..slot import Slot"),
        ("lib_lora/formats/kohya.py", "import torch"),
        ("lib_lora/formats/kohya.py", "from ..tensors import TensorFields"),
        ("lib_lora/architectures/sd1.py", "from torch import nn"),
        ("lib_lora/novel.py", ""),
        ("extension/session.py", "from .ui import tab"),
        ("extension/session.py", "from extension.catalog import Catalog"),
        ("extension/session.py", "from modules import shared"),
        ("extension/session.py", "import gradio as gr"),
        ("extension/session.py", "from lib_lora.engine import Engine"),
        ("extension/prompt.py", "from fastapi import FastAPI"),
        ("extension/ui/tab.py", "import diffusers"),
        ("extension/hosts/a1111.py", "import diffusers"),
        ("scripts/remora.py", "import torch"),
        ("extension/session.py", "from training.world import Teller"),
        ("training/world.py", "from .draw import draw"),
    ],
)
def test_violation_is_found(path: str, source: str) -> None:
    modules = {f"{package}.{unit}" for package, table in TABLES.items() for unit in table}
    assert violations(path, source, modules)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "lib_lora/slot.py",
            "import torch\nfrom .errors import LoraError\nif TYPE_CHECKING:\n    from .patch import ClassPatch",
        ),
        ("lib_lora/adapters/lora.py", "from .base import Adapter\nfrom ..tensors import TensorFields"),
        ("lib_lora/formats/kohya.py", "from .base import KeyFormat\nfrom .. import errors"),
        ("lib_lora/__main__.py", "from . import load_network"),
        ("extension/session.py", "from lib_lora import Engine\nfrom . import catalog"),
        ("extension/hosts/a1111.py", "def components():\n    from modules import shared"),
    ],
)
def test_allowed_import_passes(path: str, source: str) -> None:
    modules = {f"{package}.{unit}" for package, table in TABLES.items() for unit in table}
    assert violations(path, source, modules) == []
