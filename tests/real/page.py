"""What the tab must do in the page of a web UI, told by a browser."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import TimeoutError as LateError
from playwright.sync_api import sync_playwright

from .checks import FailedError, Trial
from .client import PATIENCE

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
THEMES = ("light", "dark")
"""What the browser says the user prefers; a web UI may have a theme of its own."""
_OPENED = 240_000  # milliseconds; the page of a web UI with many extensions takes long
_SOON = 15_000  # milliseconds
_SMALLEST = 10  # pixels of a letter's height that can be read
_OPENERS = "button[role=tab], .tab-nav button, button"
_MODERN = "button[tabitemid*=tab_remora]"
"""SD.Next's Modern UI shortens the names of tabs that it does not know."""
_GENERATE = ("#txt2img_generate", "#generate", "button[id$=generate]")

_BOXES = """
() => {
    const root = document.getElementById("remora-tab").shadowRoot, found = [];
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const parent = node.parentElement;
        if (!node.data.trim() || !parent || parent.closest("style, [hidden], dialog:not([open]), option")) continue;
        const range = document.createRange();
        range.selectNodeContents(node);
        const box = parent.getBoundingClientRect();
        // words for screen readers alone are in a box of one pixel
        if (!range.getBoundingClientRect().height || box.height <= 1 || box.width <= 1) continue;
        const size = parseFloat(getComputedStyle(parent).fontSize);
        found.push([size, box.height, node.data.trim().slice(0, 40)]);
    }
    return found;
}
"""
"""[size of the letters, height of the box around them, words] of each text that is shown."""
_COUNT_KEYS = (
    "() => { window.remoraKeys = []; document.body.addEventListener('keydown', e => remoraKeys.push(e.key)); }"
)
_WRITTEN = """
tag => [...document.querySelectorAll("textarea, input")].find(box => box.value.includes(tag))?.closest("[id]")?.id
"""
"""Id of the prompt that has a tag, or nothing."""
_SET = """
([start, fields]) => {
    for (const [name, value] of Object.entries(fields)) {
        const input = document.querySelector(`#${start}${name} input[type=number]`);
        if (!input) continue;
        input.value = value;
        for (const kind of ["input", "change"]) input.dispatchEvent(new Event(kind, {bubbles: true}));
    }
}
"""
"""Writes numbers into the controls of a prompt, whose ids begin with `start`."""
_SIZE = ("width", "height", "steps")


@dataclass
class Browser:
    """A browser for the checks.

    Args:
        engine: Chromium, as Playwright drives it.
        url: of the web UI.
        pictures: gets a screenshot of each check; None makes none.
    """

    engine: Any
    url: str
    pictures: Path | None = None
    errors: list[str] = field(default_factory=list)
    """What the console said of files of Remora, and what the tab threw."""

    @contextmanager
    def tab(self, theme: str = "dark") -> Iterator[Any]:
        """Open the page, and Remora's tab in it.

        Raises:
            FailedError: the tab does not come up.
        """
        context = self.engine.new_context(viewport={"width": 1280, "height": 900}, color_scheme=theme)
        try:
            page = context.new_page()
            page.on("pageerror", lambda error: self._heard(f"{error.stack or error}"))
            page.on(
                "console", lambda said: self._heard(f"{said.text} {said.location}") if said.type == "error" else None
            )
            page.goto(self.url, wait_until="domcontentloaded", timeout=_OPENED)
            try:
                page.locator("#remora-tab").wait_for(state="attached", timeout=_OPENED)
                by_name = page.locator(_OPENERS).filter(has_text="Remora")
                opener = by_name.or_(page.locator(_MODERN)).filter(visible=True)
                until = time.monotonic() + _SOON / 1000  # a page may take its time until a click has an effect
                seen = 0  # times in a row; SD.Next's Modern UI shows every tab for a moment while it is built
                while seen < 2 and time.monotonic() < until:
                    seen = seen + 1 if page.locator("#remora-tab").is_visible() else 0
                    if not seen and opener.count():
                        opener.first.click()
                    page.wait_for_timeout(1000)
                page.wait_for_function("() => window.remoraTab?.state.loaded", timeout=_SOON)
            except LateError as error:
                self.picture(page, f"failed-{theme}")
                raise FailedError(f"the tab does not come up: {error!s:.150}") from None
            yield page
        finally:
            context.close()

    def picture(self, page: Any, name: str) -> None:
        """Write a screenshot."""
        if self.pictures is not None:
            page.screenshot(path=self.pictures / f"{name}.png")

    def _heard(self, said: str) -> None:
        if "remora" in said.lower():
            self.errors.append(said)


@contextmanager
def browser(url: str, pictures: Path | None) -> Iterator[Browser]:
    """Start a browser: the one that REMORA_CHROMIUM names, or Chromium of the system.

    Raises:
        SystemExit: there is none.
    """
    path = os.environ.get("REMORA_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise SystemExit("no Chromium is found; REMORA_CHROMIUM may name one")
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        engine = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield Browser(engine, url, pictures)
        finally:
            engine.close()


def insert(page: Any, name: str) -> None:
    """Put a LoRA into the prompt by its card."""
    tab = page.locator("#remora-tab")
    tab.get_by_role("searchbox").fill(name)
    tab.get_by_role("button", name=f"Insert {name} into the prompt").click(timeout=_SOON)
    tab.get_by_role("searchbox").fill("")


def can_be_read(trial: Trial, browser: Browser) -> str:
    smallest = 1000.0
    for theme in THEMES:
        with browser.tab(theme) as page:
            insert(page, trial.a)
            page.wait_for_timeout(500)
            browser.picture(page, f"tab-{theme}")
            boxes = page.evaluate(_BOXES)
            small = [words for size, height, words in boxes if size < _SMALLEST or height < size]
            if small or not boxes:
                raise FailedError(f"with the {theme} theme, these cannot be read: {', '.join(small[:5]) or 'all'}")
            smallest = min(smallest, *(size for size, _, _ in boxes))
            rules = {"runOnly": ["color-contrast"]}
            found = Axe().run(page, context="#remora-tab", options=rules).response["violations"]
            pale = [node["html"] for one in found for node in one["nodes"]]
            if pale:
                raise FailedError(f"with the {theme} theme, {len(pale)} lack contrast: {pale[0]:.120}")
    return f"the smallest letters have {smallest:g} pixels"


def writes(trial: Trial, browser: Browser) -> str:
    with browser.tab() as page:
        insert(page, trial.a)
        try:
            box = page.wait_for_function(_WRITTEN, arg=f"<lora:{trial.a}:", timeout=_SOON).json_value()
        except LateError:
            raise FailedError("the tag is not in the prompt of the page") from None
        start = box.removesuffix("prompt")  # SD.Next has a prompt and a button for each way to make one
        its_own = f"#{start}generate"
        # at the size of a page that is just opened, a picture on a CPU takes minutes, and all memory in Forge Neo
        page.evaluate(_SET, [start, {name: trial.fields[name] for name in _SIZE if name in trial.fields}])
        button = next((page.locator(one).first for one in (its_own, *_GENERATE) if page.locator(one).count()), None)
        if button is None:
            raise FailedError("the page has no button Generate")
        trial.picture()  # whose report has no LoRA
        button.evaluate("button => button.click()")
        told: list[Any] = []
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and not told:
            told = [one for one in trial.ui.state()["loras"] if (one["asked"], one["state"]) == (trial.a, "applied")]
            page.wait_for_timeout(300)
        if not told:
            raise FailedError("Generate in the page did not apply the LoRA")
        page.wait_for_timeout(1500)
        browser.picture(page, "generated")
    return ""


def keys_stay(trial: Trial, browser: Browser) -> str:
    with browser.tab() as page:
        page.evaluate(_COUNT_KEYS)
        search = page.locator("#remora-tab").get_by_role("searchbox")
        search.fill(trial.a)
        for key in ("Escape", "ArrowDown", "a"):
            search.press(key)
        heard = page.evaluate("() => window.remoraKeys")
        if heard:
            raise FailedError(f"the page hears keys that are pressed in the tab: {', '.join(heard)}")
    return ""


def is_quiet(trial: Trial, browser: Browser) -> str:
    del trial
    if browser.errors:
        raise FailedError(f"the console has {len(browser.errors)} errors: {browser.errors[0]:.200}")
    return ""


CHECKS: Mapping[str, Callable[[Trial, Browser], str]] = {
    "The tab can be read, light and dark": can_be_read,
    "A card puts its tag into the prompt, and Generate applies it": writes,
    "Keys in the tab stay in the tab": keys_stay,
    "The tab leaves no error in the browser's console": is_quiet,
}
"""What is tried in the page -> its check."""
