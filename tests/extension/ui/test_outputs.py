"""The pictures of a LoRA in its details: those in the output folder, of all sessions."""

from __future__ import annotations

import base64
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
from tests.extension.ui.serving import LONG, Served, infotext_with, opened_small, until
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
        settings = f"Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: {900 + number}, Size: 96x64, Model: shapes"
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
        tab.pane("Library")
        search = tab.root.get_by_role("searchbox", name="Search LoRA")
        search.fill("number rain")
        tab.root.get_by_text("No LoRA matches").wait_for()
        tab.button("Search prompts of pictures").click()
        tab.button("About stripes").wait_for(timeout=LONG)
        uses = 70 + httpx.get(f"{served.url}/remora/v1/lora", params={"name": "stripes"}).json()["uses"]
        assert f"used: {uses} times, last" in tab.button("Insert stripes into the prompt").get_attribute("title")
        tab.button("Show all").click()
        dialog = section(tab, "stripes")
        facts = " ".join(dialog.locator(".rt-facts").first.inner_text().split())
        assert "Strengths in pictures 0.5 to 0.8" in facts
        assert "last 0.5:stop=10" in facts
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
        chosen.get_by_text("stripes 0.5:stop=10").wait_for(timeout=LONG)
        assert " ".join(chosen.locator(".rt-facts").inner_text().split()).startswith(
            "Model shapes Prompt a fox in the rain, number 0 <lora:stripes:0.5:stop=10> <lora:night:1> "
            "Negative prompt grey Settings "
        )
        used = chosen.get_by_role("list", name="LoRA")
        assert used.get_by_role("button").all_inner_texts() == ["night 1"], "the details show the other one"
        chosen.scroll_into_view_if_needed()
        assert faults(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        body = dialog.locator(".rt-dialog-body")
        assert body.evaluate("body => body.scrollWidth <= body.clientWidth"), "nothing is cut"
        dialog.get_by_role("searchbox", name="Search their prompts").fill("RAIN number 13")
        dialog.get_by_text("1 picture used this LoRA.").wait_for(timeout=LONG)
        dialog.get_by_role("searchbox", name="Search their prompts").fill("")
        dialog.get_by_text("70 pictures used this LoRA.").wait_for(timeout=LONG)
        chosen.get_by_role("button", name="Use these LoRA").click()
        chosen.get_by_text("The prompt has the LoRA of the picture.").wait_for(timeout=LONG)
        assert re.findall("<[^>]*>", tab.prompt) == ["<lora:stripes:0.5:stop=10>", "<lora:night:1>"]
        assert "a cat" in tab.prompt
        dialog.get_by_role("button", name="Show more").click()
        page.wait_for_function(LOADED.replace(">= names", "=== 70"), arg=1, timeout=LONG)
        assert shown.count() == 70
        assert not dialog.get_by_role("button", name="Show more").count()
        chosen.get_by_role("button", name="Save as preset").click()
        chosen.get_by_text("The preset 00 is saved.").wait_for(timeout=LONG)
        kept = httpx.get(f"{served.url}/remora/v1/preset/file", params={"name": "00"}).json()
        assert ("Negative prompt: grey" in kept["parameters"], bool(kept["thumbnail"])) == (True, True)
        httpx.delete(f"{served.url}/remora/v1/preset", params={"name": "00"}).raise_for_status()
        used.get_by_role("button", name="night 1").click()
        page.get_by_role("dialog", name="night").wait_for(timeout=LONG)
        page.keyboard.press("Escape")
        section(tab, "stripes")
        grid.locator("button[aria-pressed]").first.click(timeout=LONG)
        chosen.get_by_role("button", name="Put the prompt, the LoRA and the settings into the page").click()
        chosen.get_by_text("This page has no button that reads parameters.").wait_for(timeout=LONG)


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

    until(page, found)
    (told,) = httpx.get(f"{served.url}/remora/v1/outputs", params=asked).json()["pictures"]
    assert (told["file"] in before, told["seed"], told["width"]) == (True, 7, 64)
    assert [(one["name"], one["strength"]) for one in told["loras"]] == [("outline", "0.75")]
    small = httpx.get(f"{served.url}/remora/v1/outputs/thumbnail", params={"id": told["id"]})
    assert Image.open(io.BytesIO(small.content)).size == (64, 64)
    dialog.get_by_role("button", name=told["file"]).click()
    dialog.get_by_role("button", name="Put the prompt, the LoRA and the settings into the page").click()
    tab.prompt_is("a cat <lora:outline:0.75>")
    page.wait_for_function("!document.getElementById('remora-tab').shadowRoot.querySelector('dialog')", timeout=LONG)
    (served.pictures / told["file"]).unlink()
    until(page, lambda: not found())


def drop(page: Any, name: str, kind: str, content: bytes) -> None:
    """Drop a file on the tab."""
    page.evaluate(
        """([name, type, content]) => {
            const bytes = Uint8Array.from(atob(content), (one) => one.charCodeAt(0));
            const dataTransfer = new DataTransfer();
            dataTransfer.items.add(new File([bytes], name, {type}));
            const root = document.getElementById("remora-tab").shadowRoot.querySelector(".rt");
            for (const kind of ["dragover", "drop"])
                root.dispatchEvent(new DragEvent(kind, {bubbles: true, cancelable: true, dataTransfer}));
        }""",
        [name, kind, base64.b64encode(content).decode()],
    )


def test_a_dropped_picture_is_taken_apart_kept_as_a_preset_and_shared(page: Any, served: Served, browser: Any) -> None:
    tab = Tab(page).ready()
    tab.write("a cat <lora:neon:1>")
    settings = "Steps: 3, Sampler: Euler a, CFG scale: 7, Seed: 1234, Size: 64x64, Model: shapes"
    text = f"a fox <lora:stripes:0.5> <lora:gone:1>\nNegative prompt: grey\n{settings}"
    picture = encode_png(Image.new("RGB", (96, 64), COLOURS[0]), text)
    drop(page, "fox.png", "image/png", picture)
    dialog = page.get_by_role("dialog", name="fox.png")
    loras = dialog.get_by_role("list", name="LoRA").locator("> li")
    loras.first.wait_for(timeout=LONG)
    assert [" ".join(one.inner_text().split()) for one in loras.all()] == ["stripes 0.5 here", "gone 1 ✕ missing"]
    assert tab.prompt == "a cat <lora:neon:1>", "it is shown only"
    assert faults(page) == []
    dialog.get_by_role("button", name="Use these LoRA").click()
    dialog.get_by_text("The prompt has the LoRA of the picture.").wait_for(timeout=LONG)
    assert re.findall("<[^>]*>", tab.prompt) == ["<lora:stripes:0.5>", "<lora:gone:1>"]
    dialog.get_by_role("button", name="Save as preset").click()
    dialog.get_by_text("The preset fox is saved.").wait_for(timeout=LONG)
    dialog.get_by_role("button", name="Put the prompt, the LoRA and the settings into the page").click()
    page.wait_for_function("document.querySelector('#seed input').value === '1234'", timeout=LONG)
    assert tab.prompt == "a fox <lora:stripes:0.5> <lora:gone:1>"
    assert page.input_value("#steps input[type=number]") == "3"
    assert dialog.count() == 0, "web UIs show the prompt in place of the tab: a dialog would hold all clicks"
    file = httpx.get(f"{served.url}/remora/v1/preset/file", params={"name": "fox"})
    assert (file.json()["parameters"], bool(file.json()["thumbnail"])) == (text, True)
    with opened_small(served, browser) as other:
        other.goto(f"{served.url}/#remora-preset=fox")
        other.reload()
        shown = other.get_by_role("dialog", name="fox")
        shown.get_by_text("gone 1").wait_for(timeout=LONG)
        shown.get_by_role("button", name="Copy a link that shows this preset").wait_for()
        other.keyboard.press("Escape")
        httpx.delete(f"{served.url}/remora/v1/preset", params={"name": "fox"}).raise_for_status()
        drop(other, "fox.remora.json", "application/json", file.content)
        opened_file = other.get_by_role("dialog", name="fox.remora.json")
        assert opened_file.get_by_role("textbox", name="Name of the new preset").input_value() == "fox"
        drop(other, "none.png", "image/png", b"nothing")
        other.get_by_role("alert").get_by_text("the picture cannot be used: it is no PNG, JPEG or WebP").wait_for(
            timeout=LONG
        )


def test_the_last_epochs_of_a_training_are_compared_and_later_ones_come(page: Any, served: Served) -> None:
    content = (served.loras / "stripes.safetensors").read_bytes()
    folder = served.loras / "trainings" / "fur"
    files = [folder / f"fur-{number:06}.safetensors" for number in range(1, 6)]
    try:
        folder.mkdir(parents=True)
        for path in files[:4]:
            path.write_bytes(content)
        tab = Tab(page).ready()
        tab.write("a fox")
        tab.button("Refresh: look for LoRA files again").click()
        tab.button("Folders as a tree").click(timeout=LONG)
        tab.button("Folders in trainings").click()
        tab.root.get_by_role("navigation", name="Folders").get_by_role("button", name="fur", exact=True).click()
        tab.root.get_by_text("4 of ").wait_for()
        tab.button("About fur-000002").click()
        page.get_by_role("button", name="Compare the latest epochs of this training: ").click()
        dialog = page.get_by_role("dialog", name="Compare")
        assert dialog.get_by_label("Strengths", exact=False).last.input_value() == "0.6, 0.8, 1"
        dialog.get_by_label("Strengths", exact=False).last.fill("0.5, 1")
        dialog.get_by_role("button", name="Make the pictures").click()
        dialog.get_by_text("8 of 8 pictures, seed 7").wait_for(timeout=LONG)
        assert tab.prompt == "a fox", "the prompt stays as it is"
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
        tab.write("a fox <lora:fur-000004:0.5>")  # what is compared stays as it was
        files[4].write_bytes(content)
        made = f"{served.url}/remora/v1/compare"
        until(page, lambda: httpx.get(made).json()["comparison"]["done"] == [True] * 10)
        tab.pane("Stack")
        tab.button("Compare").click()
        dialog.get_by_text("10 of 10 pictures, seed 7").wait_for(timeout=LONG)
        assert dialog.get_by_label("Add later epochs of this training").is_checked()
        heads = dialog.get_by_role("rowheader")
        assert [one.inner_text() for one in heads.all()] == [path.stem for path in files]
        dialog.get_by_role("button", name="Use the prompt of fur-000005 1").click()
        assert tab.prompt == "a fox <lora:fur-000005:1>"
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)
