"""The checks of a running web UI, `python -m tests.real`, on the embedded one: they pass, and find a fault."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import uvicorn

from extension.standalone.jobs import Runner
from extension.standalone.server import make_api
from tests.real.__main__ import main
from tests.real.checks import CHECKS

NOT_THERE = {"batch", "checkpoints", "plot"}
"""What the embedded web UI lacks."""


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an application; yields its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def results(text: str) -> dict[str, str]:
    """Return the results in a table of the checks, by the name of the check."""
    found = dict(line.strip("| ").split(" | ") for line in text.splitlines()[2:])
    return {check.__name__: found[title] for title, check in CHECKS.items() if title in found}


class Baking:
    """An application whose model keeps something of each LoRA, as that of a host that rounds when it unmerges."""

    def __init__(self, app: Any, weight: torch.Tensor) -> None:
        self.faulty = False
        self._app = app
        self._weight = weight

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def heard() -> Any:
            message = await receive()
            if self.faulty and b"<lora:" in message.get("body", b""):
                with torch.no_grad():
                    self._weight.mul_(1.001)
            return message

        await self._app(scope, heard, send)


def test_the_checks_pass_on_the_embedded_web_ui_and_find_a_fault(
    runner: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = runner.studio.session.host.adapter_dirs()[0]
    before = sorted(folder.iterdir())
    app = Baking(make_api(runner), runner.studio.model.pipeline.unet.conv_in.weight)
    with served(app) as url:
        status = main([url, "--lora-dir", str(folder), "--steps=1"])
        sound = results(capsys.readouterr().out)
        app.faulty = True
        only = [f"--only={name}" for name in ("changes", "strengths", "returns")]
        faulty_status = main([url, *(f"--lora={name}" for name in ("zorp", "night", "neon")), "--steps=1", *only])
        faulty = results(capsys.readouterr().out)
    assert status == 0
    assert {name for name, result in sound.items() if result.startswith("not tried: ")} == NOT_THERE
    assert all(result.startswith("yes") for name, result in sound.items() if name not in NOT_THERE)
    assert sound["is_told"] == "yes 172 of 172 layers"
    assert sorted(folder.iterdir()) == before
    assert faulty_status == 1
    assert faulty["changes"].startswith("yes by ")
    assert faulty["strengths"].startswith("**no**: a picture without LoRA after 0.2 differs by ")
    assert faulty["returns"].startswith("**no**: the first LoRA after another one differs by ")
