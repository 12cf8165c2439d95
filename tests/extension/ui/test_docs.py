"""What the documentation shows works as it stands there."""

from __future__ import annotations

import contextlib
import io
import re
import time
from pathlib import Path

import httpx

from tests.extension.ui.serving import ROOT, Served


def test_the_client_of_the_documentation(served: Served) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "api.md").read_text("utf-8"), re.DOTALL)
    noted = served.loras / "zorp.json"
    deadline = time.monotonic() + 300
    while not all(lora["read"] for lora in httpx.get(f"{served.url}/remora/v1/loras").json()["loras"]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(code.replace("http://127.0.0.1:7860", served.url), {})
        assert '"activation text": "fur coat"' in noted.read_text("utf-8")
        assert "zorp loha [2, 2] zorp" in printed.getvalue()
        assert httpx.get(f"{served.url}/remora/v1/stack").json()["entries"] == []  # the last change of it
        assert httpx.get(f"{served.url}/remora/v1/compare").json()["comparison"]["columns"][1] == "0.25"
    finally:
        httpx.delete(f"{served.url}/remora/v1/compare")
        httpx.put(f"{served.url}/remora/v1/stack", json={})
        noted.unlink(missing_ok=True)
        httpx.post(f"{served.url}/remora/v1/refresh")


def test_every_route_is_in_the_documentation(served: Served) -> None:
    text = Path(ROOT / "docs" / "api.md").read_text("utf-8")
    for path in httpx.get(f"{served.url}/remora/v1/openapi.json").json()["paths"]:
        assert path.removeprefix("/remora/v1/") in text, path


def test_the_start_tells_its_steps_and_prints_no_warning_of_another_library(served: Served) -> None:
    lines = (served.pictures / "log.txt").read_text("utf-8").splitlines()
    start = lines[: next(number for number, line in enumerate(lines) if "; open http" in line)]
    steps = [line.partition(":")[0] for line in start if line.startswith("step ")]
    assert steps == [f"step {number} of 4" for number in range(1, 5)]
    assert [line for line in start if not line.startswith(("step ", "offload mode "))] == []
