"""The page of the embedded web UI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MOUNTS = """
import sys
from pathlib import Path
import gradio as gr
from fastapi import FastAPI
from extension.standalone.page import mount_page

with gr.Blocks() as page:
    gr.Button()
mount_page(FastAPI(), page, Path(sys.argv[1]), "script.js")
print(page._queue.sleep_when_free, page._queue.progress_update_sleep_when_free)
"""


def test_an_idle_page_looks_for_work_a_few_times_a_second(tmp_path: Path) -> None:
    """By default gradio does so a thousand times, which takes a tenth of a core."""
    done = subprocess.run([sys.executable, "-c", MOUNTS, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert min(map(float, done.stdout.split())) >= 0.05


KEEPS = """
import sys
from pathlib import Path
import gradio as gr
from fastapi import FastAPI
from fastapi.testclient import TestClient
from extension.standalone.page import mount_page

with gr.Blocks() as page:
    gr.Button()
client = TestClient(mount_page(FastAPI(), page, Path(sys.argv[1]), "script.js"))
print(client.post("/gradio_api/upload", files={"files": ("a.png", b"content")}).status_code)
"""


def test_the_page_keeps_no_file_that_is_sent_to_it(tmp_path: Path) -> None:
    """Nothing of it takes a file; by default gradio keeps each in its folder, of any size."""
    folder = tmp_path / "gradio"
    environment = {**os.environ, "GRADIO_TEMP_DIR": str(folder)}
    command = [sys.executable, "-c", KEEPS, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "413"
    assert [path for path in folder.rglob("*") if path.is_file()] == []
