"""The page of the embedded web UI."""

from __future__ import annotations

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
