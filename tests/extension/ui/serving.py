"""The web UI as a user starts it, in a process of its own, and its page in a real browser."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import httpx
import pytest

playwright = pytest.importorskip("playwright.sync_api")
ROOT = Path(__file__).resolve().parents[3]
LONG = 60_000  # milliseconds
START = 120  # seconds
STARTED = """import sys
from extension.standalone.__main__ import main  # first: it sets what other libraries read as they are imported
from extension.library import copies
copies._LOWEST = 0
sys.exit(main())
"""
"""As `python -m extension.standalone`, but for the priority of the search for copies, which waited for the tests."""
SMALL = Path(__file__).with_name("small_page.html")
LOOK = {"viewport": {"width": 1400, "height": 1000}}
_SHARED: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""Browser -> its context."""


@dataclass(frozen=True)
class Served:
    """A running web UI."""

    url: str
    pictures: Path
    loras: Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(pictures: Path, loras: Path, arguments: list[str]) -> Iterator[Served]:
    port = free_port()
    served = Served(f"http://127.0.0.1:{port}", pictures, loras)
    log = pictures / "log.txt"
    command = [sys.executable, "-c", STARTED, "--no-browser", f"--port={port}", "--device=cpu"]
    command += [f"--output-dir={pictures}", f"--data-dir={pictures / 'data'}", *arguments]
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


def shared_context(browser: Any) -> Any:
    """Return a context whose pages share the browser's cache, so that all but the first open quickly."""
    found = _SHARED.get(browser)
    if found is None:
        found = _SHARED[browser] = browser.new_context(**LOOK)
        # each page begins without memory
        found.add_init_script("if (!sessionStorage.begun) { localStorage.clear(); sessionStorage.begun = 1; }")
    return found


@contextmanager
def opened(
    served: Served,
    browser: Any,
    before: Callable[[Any], object] = lambda page: None,
    *,
    theirs: bool = False,
    **context: Any,
) -> Iterator[Any]:
    """Open the page; whatever it asks of another address fails the test, and so does an error on its console.

    Of `theirs`, a page of a gradio that asks for fonts and scripts of other addresses, only errors of ours do.
    """
    page = browser.new_page(**{**LOOK, **context}) if context else shared_context(browser).new_page()
    asked: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    def note(error: str) -> None:
        if not (page in _LEAVING and error.startswith(CUT_OFF)):
            errors.append(error)

    page.on("pageerror", lambda error: note(f"{error}\n{error.stack}"))
    page.on("console", lambda message: note(message.text) if is_error(message) else None)
    before(page)
    if theirs:
        page.route(lambda address: not address.startswith(served.url), lambda route: route.abort())
    try:
        page.goto(served.url)
        yield page
    finally:
        page.close()
    if not theirs:
        foreign = [address for address in asked if not address.startswith((served.url, "data:", "blob:"))]
        assert not foreign, foreign
    ours = [error for error in errors if not theirs or "remora" in error.lower()]
    assert not ours, ours


@contextmanager
def opened_small(
    served: Served, browser: Any, before: Callable[[Any], object] = lambda page: None, **context: Any
) -> Iterator[Any]:
    """Open a page with the tab and no gradio, whose page takes most of the time of a test to open."""

    def answer(route: Any) -> None:
        route.fulfill(body=SMALL.read_text("utf-8"), content_type="text/html")

    def first(page: Any) -> None:
        page.route(f"{served.url}/", answer)
        before(page)

    with opened(served, browser, first, **context) as page:
        yield page


_LEAVING: set[Any] = set()
CUT_OFF = (
    "AbortError: signal is aborted",
    "Unexpected error Connection errored out",
    "Failed to load resource: net::ERR_FAILED",
)


def reload(page: Any) -> None:
    """Reload a page. Gradio tells of its own requests that this cuts off on the console of the page that goes."""
    _LEAVING.add(page)
    try:
        page.reload()
    finally:
        _LEAVING.discard(page)


@contextmanager
def without_server(page: Any, told: Any) -> Iterator[None]:
    """Let no request of a page arrive until the block ends, then wait until `told` is gone; gradio's own fail, too."""
    _LEAVING.add(page)
    page.route("**/*", lambda route: route.abort())
    try:
        told.wait_for(timeout=LONG)
        yield
        page.unroute("**/*")
        told.wait_for(state="hidden", timeout=LONG)
    finally:
        _LEAVING.discard(page)


def is_error(message: Any) -> bool:
    """Whether the console shows an error; an answer of ours that refuses something is shown there by the browser."""
    ours = "/remora/v1/" in message.location.get("url", "") and message.text.startswith("Failed to load resource")
    return message.type == "error" and not ours


def fill(page: Any, selector: str, value: str) -> None:
    page.fill(selector, value)
    page.press(selector, "Tab")


def until(page: Any, holds: Callable[[], object], what: str = "") -> None:
    """Wait until something holds that no selector says."""
    deadline = time.monotonic() + LONG / 1000
    while not holds():
        assert time.monotonic() < deadline, what
        page.wait_for_timeout(50)


def generate(page: Any) -> None:
    """Press the page's button, and wait until the web UI is done and takes the next press."""
    button = page.locator("#generate")
    # it may be off for less than a look at it takes
    button.evaluate(
        "button => { button.wasOff = false;"
        " new MutationObserver(() => { button.wasOff ||= button.disabled; }).observe(button, {attributes: true}); }"
    )
    button.click()
    page.wait_for_function(
        "() => { const {wasOff, disabled} = document.querySelector('#generate'); return wasOff && !disabled; }",
        timeout=LONG,
    )


def infotext_with(page: Any, text: str) -> str:
    script = "text => document.querySelector('#infotext textarea')?.value.includes(text)"
    page.wait_for_function(script, arg=text, timeout=LONG)
    return str(page.input_value("#infotext textarea"))
