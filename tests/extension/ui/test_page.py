"""The page in a real browser, from the command that starts it to the picture."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from extension.infotext import parse_infotext
from extension.standalone.demo_model import DEMO_PROMPT, Demo
from extension.standalone.pnginfo import read_infotext

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.browser
ROOT = Path(__file__).resolve().parents[3]
LONG = 60_000  # milliseconds
START = 120  # seconds


@dataclass(frozen=True)
class Served:
    """A running web UI."""

    url: str
    pictures: Path
    loras: Path


@pytest.fixture(scope="module")
def served(demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The web UI as a user starts it, in a process of its own."""
    arguments = [f"--model={demo.model}", f"--lora-dir={demo.loras}"]
    with serving(tmp_path_factory.mktemp("pictures"), demo.loras, arguments) as served:
        yield served


@contextmanager
def serving(pictures: Path, loras: Path, arguments: list[str]) -> Iterator[Served]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    served = Served(f"http://127.0.0.1:{port}", pictures, loras)
    log = pictures / "log.txt"
    command = [sys.executable, "-m", "extension.standalone", "--no-browser", f"--port={port}", "--device=cpu"]
    command += [f"--output-dir={pictures}", *arguments]
    with log.open("wb") as output:
        # one thread: several, on cores that others use, wait for each other many times longer than they compute
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        wait_until_up(served.url, process, log)
        yield served
    finally:
        process.terminate()
        process.wait(30)
    assert "Traceback" not in log.read_text()


def wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            httpx.get(url, timeout=5)
        except httpx.TransportError:
            time.sleep(0.2)
        else:
            return
    raise AssertionError(f"the web UI did not answer\n{log.read_text()}")


@contextmanager
def opened(served: Served, chromium: str) -> Iterator[Any]:
    """Open the page; whatever it asks of another address fails the test."""
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(served.url)
        yield page
        browser.close()
    assert [address for address in asked if not address.startswith((served.url, "data:", "blob:"))] == []


@pytest.fixture
def page(served: Served, chromium: str) -> Iterator[Any]:
    """The page with small and quick settings."""
    with opened(served, chromium) as page:
        fill(page, "#width input[type=number]", "64")
        fill(page, "#height input[type=number]", "64")
        fill(page, "#steps input[type=number]", "2")
        fill(page, "#seed input", "7")
        yield page


def fill(page: Any, selector: str, value: str) -> None:
    page.fill(selector, value)
    page.press(selector, "Tab")


def infotext_with(page: Any, text: str) -> str:
    script = "text => document.querySelector('#infotext textarea').value.includes(text)"
    page.wait_for_function(script, arg=text, timeout=LONG)
    return str(page.input_value("#infotext textarea"))


def test_a_picture_with_a_lora(page: Any, served: Served) -> None:
    page.fill("#prompt textarea", "a red fox")
    page.click("#generate")
    before = infotext_with(page, "Seed: 7")
    page.get_by_text("demo-linear", exact=True).click()
    page.wait_for_function("document.querySelector('#prompt textarea').value.includes('<lora:demo-linear:1>')")
    page.click("#generate")
    after = infotext_with(page, "Lora hashes")
    assert parse_infotext(before).prompt == "a red fox"
    assert parse_infotext(after).prompt == "a red fox <lora:demo-linear:1>"
    assert parse_infotext(after).settings["Size"] == "64x64"
    assert "demo-linear: 172 of 172 layers" in page.inner_text("#outcome")
    first, second = sorted(served.pictures.glob("*.png"))[-2:]
    with Image.open(first) as plain, Image.open(second) as changed:
        assert (read_infotext(plain), read_infotext(changed)) == (before, after)
        assert plain.tobytes() != changed.tobytes()
    assert page.locator("#gallery img").first.evaluate("image => image.complete && image.naturalWidth") == 64


def test_an_error_is_shown_and_the_page_goes_on(page: Any) -> None:
    for prompt, message in (("<lora:x:1.1.>", "'1.1.' is not a number"), ("<lora:demo-liner:1>", "did you mean")):
        page.fill("#prompt textarea", prompt)
        page.click("#generate")
        page.get_by_role("alert").get_by_text(message).wait_for(timeout=LONG)
    page.fill("#prompt textarea", "a house")
    page.click("#generate")
    assert parse_infotext(infotext_with(page, "a house")).settings["Seed"] == "7"
    assert page.get_by_role("alert").count() == 0


def test_a_job_shows_its_progress_and_can_be_cancelled(page: Any) -> None:
    page.fill("#prompt textarea", "a fox")
    fill(page, "#steps input[type=number]", "150")
    fill(page, "#batch-size input", "8")
    page.click("#generate")
    page.get_by_text("of 150").wait_for(timeout=LONG)
    page.locator("#preview img").wait_for(timeout=LONG)
    page.click("#cancel")
    page.get_by_text("Cancelled").wait_for(timeout=LONG)
    page.get_by_text("Ready").wait_for(timeout=LONG)


def test_the_list_of_loras_is_searched_and_refreshed(page: Any, served: Served) -> None:
    page.fill("#lora-search textarea, #lora-search input", "locon")
    page.get_by_text("demo-linear", exact=True).wait_for(state="detached", timeout=LONG)
    page.fill("#lora-search textarea, #lora-search input", "none like it")
    page.get_by_text("No LoRA has").wait_for(timeout=LONG)
    page.fill("#lora-search textarea, #lora-search input", "")
    path = served.loras / "a new one.safetensors"
    path.write_bytes((path.parent / "demo-linear.safetensors").read_bytes())
    try:
        page.click("#lora-refresh")
        page.get_by_text("a new one", exact=True).wait_for(timeout=LONG)
    finally:
        path.unlink()


def test_the_seed_of_the_picture_is_taken_over(page: Any) -> None:
    page.click("#seed-random")
    page.wait_for_function("document.querySelector('#seed input').value === '-1'")
    page.fill("#prompt textarea", "a drawn seed")
    page.click("#generate")
    drawn = parse_infotext(infotext_with(page, "a drawn seed")).settings["Seed"]
    page.click("#seed-reuse")
    page.wait_for_function("seed => document.querySelector('#seed input').value === seed", arg=drawn)


def test_the_demo_makes_its_first_picture_by_itself_and_once(tmp_path: Path, chromium: str) -> None:
    with serving(tmp_path, tmp_path, ["--demo"]) as served:
        for visit in range(2):
            with opened(served, chromium) as page:
                page.wait_for_selector("#prompt textarea", timeout=LONG)
                assert page.input_value("#prompt textarea") == DEMO_PROMPT
                if visit == 0:
                    made = infotext_with(page, "Lora hashes")
                    assert parse_infotext(made).prompt == DEMO_PROMPT
                    assert "demo-linear: 172 of 172 layers" in page.inner_text("#outcome")
                page.wait_for_timeout(1000)  # in which a second job would begin
        assert httpx.get(f"{served.url}/sdapi/v1/progress", timeout=5).json()["state"]["job_count"] == 0
    assert len(list(tmp_path.glob("*.png"))) == 1
