"""Record docs/tab.webp, a moving picture of the tab in the demo, and docs/tab_still.webp, one that stands still.

usage: python docs/record.py [--port PORT] [--frames FOLDER]

It needs what `python install.py test` installs, and Chromium (REMORA_CHROMIUM may name one). With --frames each frame
is kept as a file, to be looked at.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import sync_playwright

DOCS = Path(__file__).resolve().parent
VIEW = {"width": 1280, "height": 960}
SIZE = (960, 720)  # of a frame, with a line of text below it
LINE = 40
START, LONG = 300, 120_000  # seconds, milliseconds
MOST_BYTES = 3 << 20
PLAIN = "two red circles on a blue ground"
LOADED = "() => window.remoraTab?.state.loaded && window.remoraTab.state.server"
WIDE = ".remora-side:has(.remora-made) { display: none !important }"
"""Leaves the whole width to the tab, as in other web UIs."""


class Film:
    """Frames of a page, each with a line about what is done."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.line = ""
        self.frames: list[Image.Image] = []
        self.milliseconds: list[int] = []

    def say(self, line: str, milliseconds: int = 1200) -> None:
        """Show another line, and the page for a while."""
        self.line = line
        self.frame(milliseconds)

    def frame(self, milliseconds: int) -> None:
        """Add the page as it is now."""
        shot = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB").resize(SIZE, Image.Resampling.LANCZOS)
        whole = Image.new("RGB", (SIZE[0], SIZE[1] + LINE), "#0f766e")
        whole.paste(shot)
        ImageDraw.Draw(whole).text((16, SIZE[1] + 8), self.line, "white", ImageFont.load_default(20))
        self.frames.append(whole)
        self.milliseconds.append(milliseconds)

    def generate(self) -> None:
        """Make a picture; a frame for every few steps of it."""
        self.page.click("#generate")
        shown = 0
        self.page.wait_for_selector("#generate:disabled", timeout=LONG)
        while self.page.locator("#generate").is_disabled():
            found = re.search(r"Step (\d+) of", self.page.inner_text("#progress"))
            if found and int(found[1]) >= shown + 10 and self.page.locator("#preview img").count():
                shown = int(found[1])
                self.frame(180)
        self.page.wait_for_timeout(600)  # in which the tab asks for the report
        self.frame(1800)

    def save(self, path: Path) -> None:
        """Write an animated WebP."""
        first, *others = self.frames
        first.save(path, save_all=True, append_images=others, duration=self.milliseconds, loop=0, quality=14, method=6)


@contextmanager
def served(port: int, folder: Path) -> Iterator[str]:
    """Serve the demo from a process of its own, with its data in `folder`."""
    loras = shutil.copytree(DOCS.parent / "demo" / "loras", folder / "loras")
    command = [sys.executable, "-m", "extension.standalone", "--no-browser", "--device=cpu", f"--port={port}"]
    command += [f"--model={DOCS.parent / 'demo' / 'remora-shapes'}", f"--lora-dir={loras}"]
    command += [f"--output-dir={folder / 'pictures'}", f"--data-dir={folder / 'data'}"]
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, cwd=DOCS.parent, env={**os.environ, "OMP_NUM_THREADS": "1"}) as program:
        try:
            for _ in range(START):
                if program.poll() is not None:
                    raise SystemExit("the demo did not start; its message is above")
                try:
                    urllib.request.urlopen(f"{address}/remora/v1/state").close()
                    break
                except urllib.error.URLError:
                    time.sleep(1)
            yield address
        finally:
            program.terminate()


def tour(film: Film) -> None:
    """Do what the tutorial tells."""
    page, tab = film.page, film.page.locator("#remora-tab")

    def pane(name: str) -> None:
        tab.get_by_role("group", name="What is shown").get_by_role("button", name=name).click()
        page.wait_for_timeout(200)

    def write(prompt: str) -> None:
        page.fill("#prompt textarea", prompt)
        page.wait_for_function("text => window.remoraTab.state.prompt === text", arg=prompt, timeout=LONG)
        page.wait_for_timeout(200)

    page.fill("#seed input", "5")
    write(PLAIN)
    film.say("A prompt, and a library of LoRA")
    film.generate()
    tab.get_by_role("button", name="Insert night into the prompt").click()
    page.wait_for_timeout(300)
    film.say("A click on a LoRA writes its tag into the prompt")
    film.generate()
    pane("Stack")
    film.say("The stack: what became of it in the picture, layer by layer")
    strength = tab.get_by_role("spinbutton", name="Strength of night", exact=True)
    for value in ("0.9", "0.8", "0.7", "0.6"):
        strength.fill(value)
        page.wait_for_timeout(100)
        film.say("Another strength costs nothing", 250)
    film.generate()
    write(f"{PLAIN} <lora:stars:1> <lora:stripes:0@0,1.4@0.3>")
    film.say("A strength may follow the steps")
    tab.get_by_role("button", name=re.compile("^More.* of stripes$")).click()
    page.wait_for_timeout(400)
    film.say("More: the schedule as a curve, a region, passes, weights of blocks", 2200)
    tab.get_by_role("button", name=re.compile("^More.* of stripes$")).click()
    film.generate()
    write(PLAIN)
    film.say("Taken off, the picture has every bit of the first one")
    film.generate()


def still(page: Any, path: Path) -> None:
    """Write a picture of the tab in the whole width of the page, with the library and a stack."""
    page.fill("#prompt textarea", f"{PLAIN} <lora:stripes:0.8> <lora:night:0@0,1@0.5> <lora:outline:1:mask=left>")
    page.click("#generate")
    page.wait_for_selector("#generate:disabled", timeout=LONG)
    page.wait_for_selector("#generate:enabled", timeout=LONG)
    page.add_style_tag(content=WIDE)
    page.wait_for_timeout(1000)
    with Image.open(io.BytesIO(page.locator("#remora-tab").screenshot())) as shown:
        few = shown.convert("RGB").quantize(32, Image.Quantize.MAXCOVERAGE)  # fewer bytes, and nobody sees it
    few.convert("RGB").save(path, lossless=True, quality=100, method=6)


def main() -> int:
    """Record both pictures."""
    parser = argparse.ArgumentParser(description="Record docs/tab.webp and docs/tab_still.webp from the demo.")
    parser.add_argument("--port", type=int, default=7860)
    parser.add_argument("--frames", type=Path, help="folder for a copy of each frame")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        served(arguments.port, Path(folder)) as address,
        sync_playwright() as at,
    ):
        chromium = os.environ.get("REMORA_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
        browser = at.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=VIEW, color_scheme="dark")
        page.goto(address)
        page.wait_for_function(LOADED, timeout=LONG)
        film = Film(page)
        tour(film)
        film.save(DOCS / "tab.webp")
        if arguments.frames is not None:
            arguments.frames.mkdir(parents=True, exist_ok=True)
            for number, frame in enumerate(film.frames):
                frame.save(arguments.frames / f"{number:03}.png")
        still(page, DOCS / "tab_still.webp")
        browser.close()
    size = (DOCS / "tab.webp").stat().st_size
    sys.stdout.write(f"{len(film.frames)} frames, {size / 1e6:.2f} MB\n")
    return 0 if size <= MOST_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
