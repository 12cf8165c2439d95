"""Pictures that a web UI of A1111's family makes for Remora, in its own queue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from extension.hosts._painter import WebUIPainter
from extension.hosts.txt2img import RequestError, Txt2Img

REQUEST = Txt2Img("a fox", "blurry", 5, "Euler", "Karras", 6.0, 64, 96, 7)


class Processing:
    """What both hosts' processing objects take."""

    made: dict[str, Any]

    def __init__(self, sd_model: object = None, scheduler: str = "", **values: Any) -> None:
        self.made = {"sd_model": sd_model, "scheduler": scheduler, **values}
        self.closed = False

    def close(self) -> None:
        self.closed = True


class State:
    """A1111's; SD.Next's `begin` gives a number that its `end` takes."""

    sampling_steps = 10
    sampling_step = 4

    def __init__(self, job: int | None = None) -> None:
        self.interrupted = False
        self.job = job
        self.said: list[object] = []

    def begin(self, job: str = "") -> int | None:
        self.interrupted = False
        self.said.append(job)
        return self.job

    def interrupt(self) -> None:
        self.interrupted = True

    def end(self, task_id: int | None = None) -> None:
        self.said.append(("end", task_id))


class Host:
    """The modules that the painter asks for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = State()
        self.lock = threading.Lock()
        self.objects: list[Processing] = []
        self.on_process: Callable[[], object] = lambda: None
        self.images: list[Image.Image] = [Image.new("RGB", (64, 96))]
        self.shared = SimpleNamespace(sd_model=object(), state=self.state)
        processing = SimpleNamespace(StableDiffusionProcessingTxt2Img=Processing, process_images=self.process)
        samplers = SimpleNamespace(visible_samplers=lambda: [SimpleNamespace(name="Euler")])
        for name, module in {
            "modules.shared": self.shared,
            "modules.processing": processing,
            "modules.call_queue": SimpleNamespace(queue_lock=self.lock),
            "modules.sd_samplers": samplers,
        }.items():
            monkeypatch.setitem(__import__("sys").modules, name, module)

    def process(self, p: Processing) -> SimpleNamespace:
        assert self.lock.locked()
        self.objects.append(p)
        self.on_process()
        return SimpleNamespace(images=self.images)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def test_it_is_made_in_the_hosts_queue_and_not_saved(host: Host) -> None:
    painter = WebUIPainter()
    picture = painter.paint(REQUEST, lambda: False)
    assert picture is host.images[0]
    (p,) = host.objects
    assert p.closed
    assert p.made == {
        "sd_model": host.shared.sd_model,
        "prompt": "a fox",
        "negative_prompt": "blurry",
        "seed": 7,
        "sampler_name": "Euler",
        "scheduler": "Karras",
        "steps": 5,
        "cfg_scale": 6.0,
        "width": 64,
        "height": 96,
        "do_not_save_samples": True,
        "do_not_save_grid": True,
    }
    assert host.state.said == ["Remora", ("end", None)]
    assert not host.lock.locked()
    assert painter.samplers == ["Euler"]


def test_sdnext_gets_its_job_back(host: Host) -> None:
    host.shared.state = host.state = State(job=41)
    WebUIPainter().paint(REQUEST, lambda: False)
    assert host.state.said == ["Remora", ("end", 41)]


def test_only_its_own_picture_is_interrupted(host: Host) -> None:
    painter = WebUIPainter()
    painter.interrupt()  # the user's picture may be running
    assert not host.state.interrupted
    seen: list[float] = []

    def stop() -> None:
        seen.append(painter.fraction)
        painter.interrupt()

    host.on_process = stop
    for images in (host.images, []):  # after a step, and before the first one
        host.images = images
        assert painter.paint(REQUEST, lambda: False) is None
    assert seen == [0.4, 0.4]
    assert painter.fraction == 0


def test_one_that_was_cancelled_while_it_waited_is_not_made(host: Host) -> None:
    assert WebUIPainter().paint(REQUEST, lambda: True) is None
    assert not host.objects
    assert not host.state.said


def test_what_fails_leaves_the_queue_free(host: Host) -> None:
    def broken() -> None:
        raise ValueError("out of luck")

    host.on_process = broken
    with pytest.raises(ValueError, match="out of luck"):
        WebUIPainter().paint(REQUEST, lambda: False)
    assert host.objects[0].closed
    assert host.state.said[-1] == ("end", None)
    assert not host.lock.locked()


@pytest.mark.parametrize(("field", "value"), [("width", 63), ("height", 100_000), ("steps", 0)])
def test_slips_are_said_before_their_turn(host: Host, field: str, value: int) -> None:
    WebUIPainter().check(replace(REQUEST, cfg_scale=-1))  # SD.Next's own
    with pytest.raises(RequestError, match=f"{field} is {value}; it must be"):
        WebUIPainter().check(replace(REQUEST, **{field: value}))


def test_without_a_model_or_a_picture_it_is_said(host: Host) -> None:
    host.images = []
    with pytest.raises(RequestError, match="made no picture"):
        WebUIPainter().paint(REQUEST, lambda: False)
    host.shared.sd_model = None
    with pytest.raises(RequestError, match="no model is loaded"):
        WebUIPainter().paint(REQUEST, lambda: False)
