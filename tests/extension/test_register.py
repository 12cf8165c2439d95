"""register(): with a host, without one, twice, and when something fails."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient
from torch import nn

import extension
from extension.generation.options import DEFAULT_MULTIPLIER, FAIL, ON_BAD_LORA, SKIP, TABLE
from extension.hosts import Batch
from extension.hosts.standalone import STANDALONE
from extension.kept.always_on import AlwaysOn, AlwaysOnEntry
from extension.library.catalog import CatalogError
from extension.standalone.demo import Demo
from extension.text.prompt import PromptError
from tests.fakes.demo import demo_pipeline

ROOT = Path(extension.__file__).resolve().parents[1]


def batch(*arguments: str) -> Batch:
    return Batch((arguments,))


@pytest.fixture
def pipeline(demo: Demo) -> Iterator[object]:
    """Yield the standalone host with a fresh model."""
    pipeline = demo_pipeline()
    STANDALONE.open([demo.loras], {})
    STANDALONE.set_components(pipeline.components)
    yield pipeline
    STANDALONE.close()


def test_without_a_host_one_line_says_so_and_nothing_is_changed(caplog: pytest.LogCaptureFixture) -> None:
    before = (nn.Linear.forward, nn.Linear.__dict__.get("_apply"))
    with caplog.at_level(logging.INFO):
        assert extension.register() is None
    (record,) = caplog.records
    assert "not supported yet" in record.getMessage()
    assert (nn.Linear.forward, nn.Linear.__dict__.get("_apply")) == before


def test_what_a_host_calls_works(pipeline: object, caplog: pytest.LogCaptureFixture) -> None:
    assert extension.register() is not None
    remora = STANDALONE._remora
    assert remora is not None
    encoder, tokens = pipeline.text_encoder.eval(), torch.arange(10)[None]
    with torch.no_grad():
        before = encoder(tokens).last_hidden_state
        remora.batch(batch("zorp:0.8", "stripes:0"))
        assert not torch.equal(encoder(tokens).last_hidden_state, before)
        outcome = remora.batch(batch("no-such", "zorp:x"))  # skipped by default, and said
        assert [("no-such" in outcome.problems[1]), ("'x' is not a number" in outcome.problems[0])] == [True, True]
        assert "no-such" in caplog.text
        assert torch.equal(encoder(tokens).last_hidden_state, before)
        STANDALONE.set_option(ON_BAD_LORA, FAIL)
        remora.batch(batch("zorp"))
        for bad, kind in (("zorp:x", PromptError), ("no-such", CatalogError)):
            with pytest.raises(kind):
                remora.batch(batch("zorp", bad))
            assert torch.equal(encoder(tokens).last_hidden_state, before)  # no picture comes of it, so nothing stays
        remora.batch(batch("zorp"))
        remora.generation_ended()
        assert torch.equal(encoder(tokens).last_hidden_state, before)


def test_always_on_loras_are_in_force_for_every_image_and_said(pipeline: object) -> None:
    session = extension.register()
    assert session is not None
    remora = STANDALONE._remora
    encoder, tokens = pipeline.text_encoder.eval(), torch.arange(10)[None]
    with torch.no_grad():
        remora.batch(batch("zorp:0.5:1"))
        written = encoder(tokens).last_hidden_state
        entries = (AlwaysOnEntry("zorp", True, 1.0, 0.5), AlwaysOnEntry("stripes", False))
        session.always_on.put(AlwaysOn(True, entries))
        outcome = remora.batch(batch())
        assert torch.equal(encoder(tokens).last_hidden_state, written)
    assert outcome.settings == {"Remora stack": "<lora:zorp:0.5:1>"}
    assert [[used.name for used in image] for image in outcome.images] == [["zorp"]]
    mixed = remora.batch(Batch((("zorp:0",), ("stripes:1",))))
    assert [[used.name for used in image] for image in mixed.images] == [[], ["zorp", "stripes"]]
    pasted = {"Prompt": "a fox", **outcome.settings}
    assert remora.pasted(pasted) == ("<lora:zorp:0.5:1> a fox", {})
    without_text = remora.batch(Batch(((),), without=frozenset({"text_encoder"})))
    assert without_text.settings == outcome.settings
    assert set(remora.text_keys()) == {()}


def test_a_tag_that_cannot_be_read_is_what_a_batch_failed_for(pipeline: object) -> None:
    session = extension.register()
    assert session is not None
    STANDALONE._remora.batch(batch("zorp:x", "stripes"))
    assert [(one.name, one.written) for one in session.last.left_out] == [("zorp", "zorp:x")]
    STANDALONE.set_option(ON_BAD_LORA, FAIL)
    with pytest.raises(PromptError):
        STANDALONE._remora.batch(batch("zorp:x", "stripes"))
    (failed,) = session.failed
    assert (failed.name, failed.written) == ("zorp", "zorp:x")


def test_a_reload_keeps_the_session_and_the_users_settings(pipeline: object) -> None:
    first = extension.register()
    STANDALONE.set_option(DEFAULT_MULTIPLIER, 0.5)
    assert extension.register() is first
    assert STANDALONE.option(DEFAULT_MULTIPLIER) == 0.5
    assert STANDALONE.option(ON_BAD_LORA) == SKIP
    assert all(STANDALONE.option(option.key) is not None for option in TABLE)


def test_unloading_undoes_everything(pipeline: object) -> None:
    before = nn.Linear.forward
    session = extension.register()
    assert session is not None
    STANDALONE._remora.batch(batch("zorp"))
    extension.unregister()
    assert nn.Linear.forward is before
    assert extension.register() is not session


def test_routes_are_added_beside_a_hosts_own(pipeline: object) -> None:
    extension.register()
    app = FastAPI()
    app.add_api_route("/sdapi/v1/loras", lambda: "the host's", methods=["GET"])
    STANDALONE.app_started(app)
    STANDALONE.app_started(app)  # a reload
    with TestClient(app) as client:
        assert client.get("/sdapi/v1/loras").json() == "the host's"
        assert client.get("/remora/v1/state").json()["loras"] == []
    assert [getattr(route, "path", "") for route in app.routes].count("/remora/v1/state") == 1


def test_routes_are_there_where_the_search_for_conflicts_fails(
    pipeline: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    extension.register()
    app = FastAPI()
    monkeypatch.setattr(STANDALONE, "conflicts", lambda: 1 / 0)
    with suppress(ZeroDivisionError):
        STANDALONE.app_started(app)
    assert "/remora/v1/state" in [getattr(route, "path", "") for route in app.routes]


def test_a_failure_is_logged_with_its_traceback_and_the_host_goes_on(
    pipeline: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(options: object) -> None:
        raise RuntimeError("the host's settings page is another")

    extension.unregister()
    forward = nn.Linear.forward
    monkeypatch.setattr(STANDALONE, "add_options", fails)
    assert extension.register() is None
    assert extension._session is None
    assert nn.Linear.forward is forward  # nothing of what was set up before the failure stays
    assert "stays off" in caplog.text
    assert "Traceback" in caplog.text
    assert "the host's settings page is another" in caplog.text


def test_importing_and_registering_is_light() -> None:
    script = (
        "import sys, logging; import extension; extension.register();"
        "heavy = {'gradio', 'fastapi', 'diffusers', 'transformers', 'accelerate', 'torch._dynamo'} & set(sys.modules);"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "not supported yet" in done.stderr
