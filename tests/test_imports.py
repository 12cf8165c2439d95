"""The import contracts of pyproject.toml hold, and each of them finds what it forbids."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import install

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("lib_lora", "extension", "training")


def checked(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", install.IMPORTS], cwd=folder, capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            target = tmp_path / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_import_is_allowed() -> None:
    done = checked(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("path", "source", "contract"),
    [
        ("lib_lora/files/file.py", "from ..naming import index", "Rooms of lib_lora"),
        ("lib_lora/strengths/table.py", "from ..stack import Stack", "Rooms of lib_lora"),
        ("lib_lora/engine.py", "from .inspection.zeros import changes_nothing", "Rooms of lib_lora"),
        ("lib_lora/engine.py", "from .saving import save_stack", "Rooms of lib_lora"),
        ("lib_lora/novel.py", "", "Rooms of lib_lora"),
        ("extension/text/prompt.py", "from ..generation import session", "Rooms of extension"),
        ("extension/novel.py", "", "Rooms of extension"),
        ("lib_lora/engine.py", "import extension", "neither the extension"),
        ("extension/generation/session.py", "from lib_lora.engine import Engine", "public names"),
        ("lib_lora/weights/rounding.py", "import numpy", "torch and safetensors alone"),
        ("lib_lora/files/formats/kohya.py", "import torch", "free of torch"),
        ("lib_lora/naming/architectures/sd3.py", "from torch import nn", "free of torch"),
        ("extension/generation/session.py", "from modules import shared", "A host's own modules"),
        ("extension/generation/session.py", "import gradio as gr", "gradio, diffusers"),
        ("extension/library/catalog.py", "from fastapi import FastAPI", "fastapi belongs"),
        ("extension/standalone/jobs.py", "import ray", "ray belongs"),
        ("extension/serve/queue.py", "from ray import serve", "ray belongs"),
    ],
)
def test_a_violation_is_found(path: str, source: str, contract: str, copy: Path) -> None:
    target = copy / path
    target.write_text(f"{target.read_text() if target.is_file() else ''}\n{source}\n")
    done = checked(copy)
    broken = [line for line in done.stdout.splitlines() if line.endswith("BROKEN")]
    assert done.returncode == 1, done.stdout
    assert any(contract in line for line in broken), done.stdout
