"""The pictures of a LoRA in its details: those in the output folder, of all sessions."""

from __future__ import annotations

import io
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from extension.standalone.pnginfo import encode_png
from tests.extension.outputs.pictures import aged, saved
from tests.extension.ui.serving import LONG, Served, infotext_with, opened_small
from tests.extension.ui.tab import Tab
from tests.extension.ui.test_accessibility import faults

pytestmark = pytest.mark.browser

COLOURS = ("#b5482a", "#2a6fb5", "#3f8f4f", "#8a5fb0", "#c9a227")
LOADED = """names => {
    const images = [...document.getElementById("remora-tab").shadowRoot.querySelectorAll(".rt-outputs img")];
    return images.length >= names && images.slice(0, names).every((one) => one.complete && one.naturalWidth > 0);
}"""


@pytest.fixture
def pictures(served: Served) -> Iterator[Path]:
    """Yield the folder of 70 pictures of another session; the latest used two LoRA."""
    folder = served.pictures / "earlier"
    for number in range(70):
        tags = "<lora:stripes:0.8>" if number else "<lora:stripes:0.5:stop=10> <lora:night:1>"
        settings = f"Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: {900 + number}, Size: 96x64"
        image = Image.new("RGB", (96, 64), COLOURS[number % len(COLOURS)])
        text = f"a fox in the rain, number {number} {tags}\nNegative prompt: grey\n{settings}"
        saved(folder / f"{number:02}.png", encode_png(image, text), age=100 + number)
    wait_until_read(served)
    yield folder
    shutil.rmtree(folder)
    aged(served.pictures, 30.0)


def wait_until_read(served: Served) -> None:
    """Wait until the server has looked through the folder again; what it had from another test is forgotten."""
    until = time.monotonic() + LONG / 1000
    while time.monotonic() < until:
        time.sleep(5.5)  # it looks every five seconds at most
        httpx.get(f"{served.url}/remora/v1/outputs")
        time.sleep(1)
        if not httpx.get(f"{served.url}/remora/v1/outputs").json()["scan"]["running"]:
            return
    raise AssertionError("the pictures were not read")


def section(tab: Tab, name: str) -> Any:
    """Open the section of a file, as a keyboard does, and return the dialog."""
    tab.pane("Library")
    tab.button(f"About {name}").click()
    dialog = tab.page.get_by_role("dialog", name=name)
    dialog.locator("summary", has_text="Pictures in the output folders").press("Enter")
    return dialog


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 1280), ("dark", 390)])
def test_the_pictures_of_a_lora_are_seen_and_used_again(
    served: Served, browser: Any, pictures: Path, theme: str, width: int
) -> None:
    phone = width == 390
    look = {"color_scheme": theme, "viewport": {"width": width, "height": 900}}
    with opened_small(served, browser, **look, has_touch=phone, is_mobile=phone) as page:
        tab = Tab(page).ready()
        tab.write("a cat <lora:neon:1>")
        dialog = section(tab, "stripes")
        dialog.get_by_text("70 pictures used this LoRA.").wait_for(timeout=LONG)
        grid = dialog.get_by_role("list", name="Pictures in the output folders")
        shown = grid.locator("button[aria-pressed]")
        assert shown.count() == 60
        shown.first.scroll_into_view_if_needed()  # pictures out of sight are not loaded
        page.wait_for_function(LOADED, arg=4, timeout=LONG)
        first = shown.first
        assert first.get_attribute("aria-label") == "earlier/00.png: stripes 0.5:stop=10, night 1"
        assert "a fox in the rain, number 0" in first.get_attribute("title")
        assert first.inner_text().strip() == "0.5:stop=10", "the strength of this LoRA"
        first.focus()
        chosen = dialog.get_by_role("group", name="earlier/00.png")
        chosen.get_by_text("a fox in the rain, number 0").wait_for()
        assert first.get_attribute("aria-pressed") == "true"
        assert "Seed 900" in chosen.inner_text()
        assert faults(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        body = dialog.locator(".rt-dialog-body")
        assert body.evaluate("body => body.scrollWidth <= body.clientWidth"), "nothing is cut"
        chosen.get_by_role("button", name="Use these LoRA").click()
        chosen.get_by_text("The prompt has the LoRA of the picture.").wait_for(timeout=LONG)
        assert re.findall("<[^>]*>", tab.prompt) == ["<lora:stripes:0.5:stop=10>", "<lora:night:1>"]
        assert "a cat" in tab.prompt
        dialog.get_by_role("button", name="Show more").click()
        page.wait_for_function(LOADED.replace(">= names", "=== 70"), arg=1, timeout=LONG)
        assert shown.count() == 70
        assert not dialog.get_by_role("button", name="Show more").count()


def test_a_picture_that_is_made_comes_by_itself_and_a_deleted_one_goes(page: Any, served: Served) -> None:
    tab = Tab(page).ready()
    tab.write("a cat <lora:outline:0.75>")
    page.click("#generate")
    infotext_with(page, "outline")
    before = {path.name for path in served.pictures.glob("*.png")}
    dialog = section(tab, "outline")
    said = dialog.get_by_role("status").filter(has_text="used this LoRA.")
    said.wait_for(timeout=LONG)
    asked = {"name": "outline"}

    def found() -> int:
        return int(httpx.get(f"{served.url}/remora/v1/outputs", params=asked).json()["found"])

    for _ in range(100):
        if found():
            break
        page.wait_for_timeout(200)
    (told,) = httpx.get(f"{served.url}/remora/v1/outputs", params=asked).json()["pictures"]
    assert (told["file"] in before, told["seed"], told["width"]) == (True, 7, 64)
    assert [(one["name"], one["strength"]) for one in told["loras"]] == [("outline", "0.75")]
    small = httpx.get(f"{served.url}/remora/v1/outputs/thumbnail", params={"id": told["id"]})
    assert Image.open(io.BytesIO(small.content)).size == (64, 64)
    (served.pictures / told["file"]).unlink()
    for _ in range(100):
        if not found():
            break
        page.wait_for_timeout(200)
    assert found() == 0
