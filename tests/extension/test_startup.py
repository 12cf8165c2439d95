"""What a web UI that starts with Remora imports for it: nothing large that a session may never need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENTRY = ROOT / "scripts" / "remora.py"
PACKAGES = {"remora", "lib_lora", "filelock", "watchdog"}
"""What a start adds to the host's packages; filelock is small, and a thread imports watchdog."""
AT_FIRST_USE = (
    "lib_lora.adapters",
    "lib_lora.engine",
    "lib_lora.inspection",
    "lib_lora.naming.index",
    "lib_lora.naming.network",
    "lib_lora.placement.resident",
    "lib_lora.plan",
    "lib_lora.plugins",
    "lib_lora.strengths.table",
    "lib_lora.weights",
)
STARTING = """
import json, runpy, sys
from pathlib import Path
import fastapi, fastapi.openapi.utils, PIL.Image, safetensors.torch, torch
theirs = fastapi.FastAPI()
def route(name: str = ""): return name
theirs.add_api_route("/host", route)
known = set(sys.modules)
runpy.run_path(sys.argv[1])
from remora.hosts.standalone import STANDALONE
STANDALONE.open([Path(sys.argv[2])], {}, Path(sys.argv[2]))
assert sys.modules["remora"].register() is not None
STANDALONE.app_started(fastapi.FastAPI())
print(json.dumps(sorted(set(sys.modules) - known)))
"""


def test_a_start_imports_nothing_large(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTING, str(ENTRY), str(tmp_path)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    imported = json.loads(done.stdout.splitlines()[-1])
    assert "remora.generation.session" in imported
    assert "lib_lora.execution.hooks" in imported, "it patches the layers before a model is loaded"
    packages = {name.partition(".")[0] for name in imported} - sys.stdlib_module_names
    assert packages <= PACKAGES, f"a start imports {packages - PACKAGES}"
    assert [name for name in imported if name.startswith(AT_FIRST_USE)] == []


PICTURE = """
import importlib, pkgutil
import torch
import lib_lora
names = [info.name for info in pkgutil.walk_packages(lib_lora.__path__, "lib_lora.") if "__main__" not in info.name]
with torch.inference_mode():
    modules = [importlib.import_module(name) for name in names]
assert lib_lora.Engine
values = [(module.__name__, name, value) for module in modules for name, value in vars(module).items()]
kept = [(module, name) for module, name, value in values if isinstance(value, torch.Tensor) and value.is_inference()]
assert kept == [], "an error where autograd meets them"
"""


def test_a_first_picture_in_inference_mode_imports_the_rest() -> None:
    done = subprocess.run([sys.executable, "-c", PICTURE], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
