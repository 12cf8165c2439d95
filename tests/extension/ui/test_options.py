"""Remora's settings on the page, without a browser."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from extension.generation.options import (
    ALWAYS,
    CACHE,
    DEFAULT_MULTIPLIER,
    ENABLED,
    GRAMMAR,
    HASHES,
    IN_ORDER,
    MERGE,
    ON_BAD_LORA,
    ONLINE,
    TABLE,
)
from extension.hosts.txt2img import Picture, Txt2Img
from extension.standalone.jobs import Runner
from extension.standalone.server import PageBackend
from tests.fakes.coroutines import completed

ROOT = Path(__file__).resolve().parents[3]
PAGE = """
import json
from types import SimpleNamespace
from extension.standalone.page import build_page
backend = SimpleNamespace(
    model_name="", first_prompt="", first_seed=-1, side=64, samplers=["Euler a"],
    offload_modes=["none"], offload_mode="none",
)
print(json.dumps(build_page(backend).get_config_file()["components"], default=str))
"""


@pytest.fixture
def backend(runner: Runner) -> PageBackend:
    assert runner.studio.output_dir is not None
    return PageBackend(runner, runner.studio.output_dir)


@pytest.fixture
def handlers(backend: PageBackend) -> Any:
    from extension.standalone.handlers import Handlers  # imports gradio, which takes seconds that other tests can spare

    return Handlers(backend)


def updates(made: Callable[[], AsyncIterator[Any]]) -> list[Any]:
    """Return what one of the page's events yields, in a loop of its own."""

    async def gathered() -> list[Any]:
        return [update async for update in made()]

    return completed(gathered())


def test_every_setting_has_a_control_with_its_bounds() -> None:
    # in a process of its own: gradio leaves event loops open, and warnings are errors here
    done = subprocess.run([sys.executable, "-c", PAGE], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    props = {component["props"].get("elem_id"): component["props"] for component in json.loads(done.stdout)}
    order = list(props)
    for option in TABLE:
        control = option.key.replace("_", "-")
        assert props[control]["label"] == option.label
        assert (order.index(control) > order.index("expert-settings")) is option.expert
    assert props["expert-settings"]["open"] is False
    assert [option.key for option in TABLE if not option.expert] == [
        ENABLED,
        DEFAULT_MULTIPLIER,
        ON_BAD_LORA,
        HASHES,
        ONLINE,
        GRAMMAR,
        MERGE,
    ]
    assert (props["remora-cache-mb"]["minimum"], props["remora-cache-mb"]["maximum"]) == (0, 1 << 20)
    assert [value for _, value in props["remora-merge"]["choices"]] == ["never", "always"]


def test_a_setting_is_changed_and_shown(backend: PageBackend, handlers: Any) -> None:
    before = handlers.options()
    try:
        handlers.set_option(MERGE, ALWAYS)
        handlers.set_option(IN_ORDER, True)
        shown = dict(zip([option.key for option in TABLE], handlers.options(), strict=True))
        assert (shown[MERGE], shown[IN_ORDER]) == (ALWAYS, True)
    finally:
        for option, value in zip(TABLE, before, strict=True):
            backend.set_option(option.key, value)


def test_a_parameters_text_sets_what_its_picture_was_made_with(
    backend: PageBackend, handlers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gradio as gr

    told: list[str] = []
    monkeypatch.setattr(gr, "Info", told.append)
    before = handlers.options()
    text = "a fox\nSteps: 3, Sampler: Euler a, Seed: 5, Remora mode: merged, Remora stacking: in order"
    inputs = (text, "", 20, "Euler a", 7, 64, 64, -1, 1, 1)
    try:
        for _ in range(2):  # the second time, nothing differs
            understood = handlers.understood(*inputs)
            assert understood[0] == "a fox"
            shown = dict(zip([option.key for option in TABLE], understood[len(inputs) :], strict=True))
            assert (shown[MERGE], shown[IN_ORDER]) == (ALWAYS, True)
        labels = [option.label for option in TABLE if option.key in (MERGE, IN_ORDER)]
        assert told == [f"The parameters text changed these LoRA settings: {', '.join(labels)}."]
    finally:
        for option, value in zip(TABLE, before, strict=True):
            backend.set_option(option.key, value)


def test_a_bad_value_changes_nothing_and_is_said(backend: PageBackend, handlers: Any) -> None:
    import gradio as gr

    with pytest.raises(gr.Error, match="remora_cache_mb must be a whole number from 0"):
        handlers.set_option(CACHE, None)
    assert backend.option(CACHE) == 4096


def test_a_page_that_opens_later_shows_the_latest_pictures(backend: PageBackend, handlers: Any) -> None:
    """As after a reload: the stack's report of the picture is there, so the picture is, too."""
    opened = SimpleNamespace(session_hash="another")
    (nothing,) = updates(lambda: handlers.first(opened))
    job = backend.submit(Txt2Img("a fox", steps=1, width=64, height=64, seed=1))
    *_, last = updates(lambda: handlers._follow(job))
    (again,) = updates(lambda: handlers.first(opened))
    assert nothing == type(last)()
    assert (again.gallery, again.infotext, again.outcome) == (last.gallery, last.infotext, last.outcome)
    assert again.infotext.startswith("a fox")
    assert again.generate == nothing.generate, "the buttons of the page are those of its own jobs"


def test_pictures_that_could_not_be_saved_are_shown_with_the_reason(
    backend: PageBackend, handlers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(picture: Picture, folder: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("extension.standalone.jobs.save_picture", full)
    job = backend.submit(Txt2Img("a fox", steps=1, width=64, height=64, seed=1))
    *_, last = updates(lambda: handlers._follow(job))
    assert [picture.size for picture in last.gallery["value"]] == [(64, 64)]
    assert "No space left on device" in last.outcome


INPUTS: dict[str, Any] = {
    "prompt": "a fox",
    "negative": "",
    "Steps": 1,
    "Sampler": "Euler a",
    "CFG scale": 7,
    "Width": 64,
    "Height": 64,
    "Seed": 1,
    "Batch size": 1,
    "Batch count": 1,
}


@pytest.mark.parametrize(
    ("label", "value", "said"),
    [
        *((label, None, "is empty") for label in INPUTS if label[0].isupper() and label != "Seed"),
        ("Steps", float("nan"), "write a number"),
        ("Width", float("inf"), "write a number"),
        ("Batch size", 1.5, "write a whole number"),
        ("Seed", 0.5, "write a whole number"),
        ("Height", "x", "write a number"),
        ("CFG scale", True, "write a number"),
    ],
)
def test_an_input_without_a_number_is_one_sentence(handlers: Any, label: str, value: object, said: str) -> None:
    inputs = {**INPUTS, label: value}
    (update,) = updates(lambda: handlers.generate(SimpleNamespace(session_hash="x"), *inputs.values()))
    assert f"“{label}” " in update.outcome
    assert said in update.outcome


@pytest.mark.parametrize(
    "infotext", ["a fox\nSteps: 1, Sampler: x, Seed: none", "", "a\nSteps: 1, CFG scale: 1, Seed: 1e999"]
)
def test_parameters_without_a_seed_leave_it_as_it_is(handlers: Any, infotext: str) -> None:
    assert handlers.last_seed(infotext, 5.0) == 5.0
    assert handlers.last_seed(infotext, None) is None


def test_a_waiting_job_of_the_page_holds_no_thread_and_ends_with_its_tab(handlers: Any, runner: Runner) -> None:
    ready = threading.Event()
    runner._worker.submit(ready.wait)

    async def opened_and_closed() -> tuple[int, int]:
        before = threading.active_count()
        made = [handlers.generate(SimpleNamespace(session_hash=str(tab)), *INPUTS.values()) for tab in range(30)]
        for one in made:
            await anext(one)
        waiting = [asyncio.ensure_future(anext(one)) for one in made]
        await asyncio.wait(waiting, timeout=0.5)
        during = threading.active_count()
        await asyncio.wait(waiting)
        for one in made:
            await one.aclose()
        return before, during

    try:
        before, during = completed(opened_and_closed())
        assert during - before < 10, "each of them waits in a thread"
        assert all(job.interrupted for job in runner._jobs)
    finally:
        ready.set()
