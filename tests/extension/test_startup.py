"""What a web UI that starts with Remora imports for it: nothing large that a session may never need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ENTRY = Path(__file__).resolve().parents[2] / "scripts" / "remora.py"
LARGE = ("torch._dynamo", "torch._inductor", "triton", "diffusers", "transformers", "peft", "gradio", "matplotlib")
STARTING = """
import json, runpy, sys
from pathlib import Path
import fastapi, torch
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
    assert "lib_lora.engine" in imported
    assert [name for name in imported if name.startswith(LARGE)] == []
