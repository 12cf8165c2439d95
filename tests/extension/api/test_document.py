"""The client in docs/api.md runs as it is written, on the demo."""

from __future__ import annotations

import io
import json
import re
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from extension.kept.always_on import AlwaysOn
from extension.standalone.jobs import Runner
from extension.standalone.server import make_api

PAGE = Path(__file__).resolve().parents[3] / "docs" / "api.md"


def test_the_client_of_the_page(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    with TestClient(make_api(runner), base_url="http://127.0.0.1:7860") as client:
        asked: list[tuple[str, str, Any]] = []

        def opened(request: urllib.request.Request) -> io.BytesIO:
            data = request.data
            assert data is None or isinstance(data, bytes)
            answer = client.request(
                request.get_method(), request.full_url, content=data, headers=dict(request.header_items())
            )
            asked.append((request.get_method(), answer.request.url.path, None if data is None else json.loads(data)))
            if answer.is_error:
                body = io.BytesIO(answer.content)
                raise urllib.error.HTTPError(request.full_url, answer.status_code, "", Message(), body)
            return io.BytesIO(answer.content)

        monkeypatch.setattr(urllib.request, "urlopen", opened)
        runner.studio.session.catalog.wait(60)
        space: dict[str, Any] = {}
        try:
            exec(code, space)
            assert runner.studio.session.always_on.stack.entries == AlwaysOn().entries
            with pytest.raises(ValueError, match="'nowhere' is not in the LoRA folders"):
                space["remora"].ask("GET", "lora", name="nowhere")
        finally:
            client.delete("/remora/v1/compare")
    assert [(method, path.removeprefix("/remora/v1/")) for method, path, _ in asked[:6]] == [
        ("GET", "loras"),
        ("PATCH", "lora"),
        ("PUT", "stack"),
        ("GET", "state"),
        ("PUT", "stack"),
        ("POST", "compare"),
    ]
    assert asked[5][2]["width"] == runner.studio.model.side
    assert "zorp" in capsys.readouterr().out
