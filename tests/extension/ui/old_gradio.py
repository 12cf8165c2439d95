"""Pages of the gradio versions that hosts have, each in an environment of its own, made once and kept."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.extension.ui.serving import ROOT, Served, free_port, wait_until_up

VERSIONS = ("3.41.2", "3.43.2", "4.40.0")
"""Of A1111, of SD.Next, of Forge. The embedded web UI has today's."""
WANTED = "REMORA_ALL_GRADIO"
"""The variable that says whether they are tried: 1 or 0. Making the environments takes minutes and a network."""
_FOLDER = ROOT / ".venv-gradio"
_PAGE = Path(__file__).with_name("gradio_page.py")


def python_of(version: str) -> Path:
    """Return the Python of the environment with this gradio; it is made where it is not there."""
    folder = _FOLDER / version
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pins = Path(__file__).with_name("gradio") / f"{version}.txt"
    done = folder / "installed.txt"
    if not done.is_file() or done.read_text("utf-8") != pins.read_text("utf-8"):
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--requirement", pins], check=True, timeout=1200)
        done.write_text(pins.read_text("utf-8"), "utf-8")
    return python


@contextmanager
def page_of(version: str, behind: Served, folder: Path) -> Iterator[Served]:
    """Serve a page made with this gradio; what it shows comes from the web UI behind it."""
    port = free_port()
    log = folder / "log.txt"
    environment = {**os.environ, "GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_TEMP_DIR": str(folder), "NO_PROXY": "*"}
    with log.open("wb") as output:
        command = [python_of(version), _PAGE, str(port), behind.url]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=folder)
    served = Served(f"http://127.0.0.1:{port}", behind.pictures, behind.loras)
    try:
        wait_until_up(served.url, process, log)
        yield served
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    for wanted in sys.argv[1:] or VERSIONS:
        print(python_of(wanted))  # noqa: T201
