"""What went wrong is said once, where it belongs, and no longer than it is true."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from extension.generation.options import ENABLED
from tests.extension.ui.serving import LONG, Served, until
from tests.extension.ui.tab import SHADOW, Tab
from tests.fakes.files import pair, save

pytestmark = pytest.mark.browser
ALWAYS = {"always_on": True, "entries": [{"name": "zorp", "more": "lbw=GONE"}]}
EDGE = "field => getComputedStyle(field).borderTopColor"
ERRORS = {
    "<lora:zorp:1:nope=1>": "nope.* is not a setting",
    "<lora:zorp:1:lbw=NO>": "There is no preset “NO”|'NO' is neither a number nor block weights",
    "<lora:zorpp:1>": "did you mean zorp|zorpp.*is not in",
    "<lora:cut:1>": "truncated",
    "<lora::1>": "the name is missing",
    "<lora:foreign:1>": "made for Stable Diffusion XL",
}


@pytest.fixture
def tab(page: Any) -> Tab:
    return Tab(page).ready()


@pytest.fixture
def damaged(served: Served) -> Iterator[Path]:
    """Return a file with a picture in its header that is cut off, beside one whose picture is and one for SDXL."""
    cut, beside = served.loras / "cut.safetensors", served.loras / "beside.safetensors"
    whole = (served.loras / "zorp.safetensors").read_bytes()
    cut.write_bytes(whole[:-1000])
    beside.write_bytes(whole)
    beside.with_suffix(".png").write_bytes(b"\x89PNG\r\n\x1a\n")
    foreign = served.loras / "foreign.safetensors"
    save(foreign, pair("lora_unet_down_blocks_2_attentions_0_transformer_blocks_9_attn2_to_k", (4, 2048), 2))
    httpx.post(f"{served.url}/remora/v1/refresh").raise_for_status()
    yield cut
    for path in (cut, foreign, beside, beside.with_suffix(".png")):
        path.unlink()
    httpx.post(f"{served.url}/remora/v1/refresh").raise_for_status()


def test_the_list_has_room_for_what_is_wrong_with_a_file_and_for_the_frame_around_it(tab: Tab, damaged: Path) -> None:
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.write(f"<lora:{damaged.stem}:1>")
    tab.pane("Library")
    tab.button("List").click()
    card = tab.root.locator(".rt-card-list.rt-used.rt-against")
    card.get_by_text("truncated").wait_for(timeout=LONG)
    text, whole = card.locator(".rt-card-text").bounding_box(), card.bounding_box()
    assert whole["y"] <= text["y"], "the name is not cut off"
    assert text["y"] + text["height"] <= whole["y"] + whole["height"]
    shown = Image.open(io.BytesIO(card.screenshot(animations="disabled"))).convert("RGB")
    middle = shown.height // 2
    assert shown.getpixel((2, middle)) == shown.getpixel((shown.width - 3, middle)), "the frame is one all around"


@pytest.mark.full
def test_while_remora_is_off_the_tab_says_what_applies_the_tags(tab: Tab, served: Served) -> None:
    notices = tab.root.locator(".rt-notices")
    promise = tab.root.get_by_text("Remora applies these LoRA to every picture", exact=False)
    entry = "{name: 'zorp', on: true, unet: 1, text_encoder: 1, more: ''}"
    tab.page.evaluate(f"window.remoraTab.set({{pane: 'stack', always: {{on: true, entries: [{entry}]}}}})")
    promise.wait_for()
    try:
        httpx.post(f"{served.url}/sdapi/v1/options", json={ENABLED: False}).raise_for_status()
        notices.get_by_text("No LoRA is applied").wait_for(timeout=LONG)
        assert not promise.is_visible(), "it applies none"
        assert "applies the tags" not in notices.inner_text()
        tab.page.evaluate("window.remoraTab.set({server: {...window.remoraTab.state.server, own_lora: true}})")
        notices.get_by_text("The web UI applies the tags itself").wait_for()
    finally:
        httpx.post(f"{served.url}/sdapi/v1/options", json={ENABLED: True}).raise_for_status()
    notices.get_by_text("switched off").wait_for(state="detached", timeout=LONG)


def generate(tab: Tab, prompt: str) -> None:
    """Make a picture, or fail to, and wait until the tab knows."""
    known = tab.page.evaluate("JSON.stringify(window.remoraTab.state.server)")
    tab.write(prompt)
    tab.page.click("#generate")
    tab.page.wait_for_function(
        "known => JSON.stringify(window.remoraTab.state.server) !== known", arg=known, timeout=LONG
    )
    tab.page.wait_for_selector("#generate:not([disabled])", timeout=LONG)


def told(tab: Tab, pattern: str) -> list[str]:
    """Return the paragraphs of the whole page that say something."""
    texts = (
        f"[...{SHADOW}.querySelectorAll('p, .rt-state > span'), ...document.querySelectorAll('#outcome .remora-line')]"
    )
    seen = f"{texts}.filter(e => e.getClientRects().length && !e.closest('.rt-library')).map(e => e.innerText)"
    return [text for text in tab.page.evaluate(seen) if re.search(pattern, text)]


def test_an_error_of_a_tag_is_said_once_and_goes_with_it(tab: Tab, damaged: Path) -> None:
    tab.pane("Stack")
    row = tab.root.get_by_role("list", name="Stack", exact=True).locator("> li").nth(1)
    for tag, reason in ERRORS.items():
        generate(tab, f"<lora:stripes:1> {tag}")
        name = tag.split(":")[1]
        where = f"{name} in the stack" if name else "the stack"
        tab.page.locator("#outcome").get_by_text(f"No picture was made: see {where} of LoRA.").wait_for()
        tab.button("Stack (2, 1 error)").wait_for()
        row.get_by_text(re.compile(reason)).wait_for()
        tab.page.wait_for_timeout(200)
        assert len(told(tab, reason)) == 1, told(tab, ".")
        tab.write("<lora:stripes:1>")
        tab.button("Stack (1)").wait_for()
        until(tab.page, lambda gone=reason: not told(tab, gone))
        assert told(tab, "No picture was made") != []
    later = tab.page.context.new_page()
    later.goto(tab.page.url)
    button = Tab(later).ready().button("Stack")
    button.wait_for()
    assert button.inner_text() == "Stack", "a page that never had the tag says nothing of it"
    later.close()
    generate(tab, "a fox")
    until(tab.page, lambda: not told(tab, "|".join([*ERRORS.values(), "No picture was made"])))


def test_an_error_of_what_is_always_on_is_said_once_at_its_row(tab: Tab, served: Served) -> None:
    base = f"{served.url}/remora/v1"
    httpx.put(f"{base}/blocks/presets", json={"name": "GONE", "values": "1,0"}).raise_for_status()
    httpx.put(f"{base}/stack", json=ALWAYS).raise_for_status()
    httpx.delete(f"{base}/blocks/presets", params={"name": "GONE"}).raise_for_status()
    try:
        tab.row("zorp", "Always on").wait_for(timeout=LONG)
        generate(tab, "<lora:zorp:0.5>")
        tab.row("zorp", "Always on").get_by_text("There is no preset “GONE”").wait_for()
        assert len(told(tab, "GONE")) == 1, told(tab, ".")
        tab.row("zorp", "Always on").get_by_role("button", name="Remove zorp").click()
        tab.saved()
        until(tab.page, lambda: not told(tab, "GONE"))
    finally:
        httpx.put(f"{base}/stack", json={}).raise_for_status()


def test_pictures_that_are_not_there_are_not_asked_for(tab: Tab, request: pytest.FixtureRequest) -> None:
    answers: list[tuple[int, str]] = []
    console: list[str] = []
    tab.page.on("response", lambda answer: answers.append((answer.status, answer.url)))
    tab.page.on("console", lambda message: console.append(message.text) if message.type == "error" else None)
    request.getfixturevalue("damaged")
    tab.button("Insert beside into the prompt").wait_for(timeout=LONG)
    tab.button("About cut").click()
    tab.page.get_by_role("dialog", name="cut").get_by_text("Trigger words").wait_for(timeout=LONG)
    beside = httpx.get(f"{tab.page.url.rstrip('/')}/remora/v1/lora", params={"name": "beside"}).json()["id"]
    until(tab.page, lambda: [url for _, url in answers if "thumbnail" in url and f"id={beside}" in url])
    tab.page.wait_for_timeout(500)  # in which others would be asked for
    assert [(status, url) for status, url in answers if status >= 400] == []
    assert console == []
    tab.page.keyboard.press("Escape")
    assert tab.root.locator(".rt-card").filter(has_text="beside").locator(".rt-initial").count() == 1


def test_a_preset_without_a_name_says_that_it_needs_one(tab: Tab) -> None:
    tab.insert("zorp")
    tab.pane("Stack")
    tab.button("Presets").click()
    dialog = tab.page.get_by_role("dialog", name="Presets")
    field = dialog.get_by_role("textbox", name="Name of the new preset")
    plain = field.evaluate(EDGE)
    for name in ("", "   "):
        field.fill(name)
        dialog.get_by_role("button", name="Save", exact=True).click()
        dialog.get_by_role("alert").get_by_text("Give the preset a name.").wait_for()
        assert field.get_attribute("aria-invalid") == "true"
        assert field.evaluate(EDGE) != plain
        assert field.evaluate("field => field === field.getRootNode().activeElement")
        field.fill("x")
        dialog.get_by_text("Give the preset a name.").wait_for(state="hidden")
    field.fill("Mine")
    field.press("Enter")
    dialog.get_by_role("button", name="Rename Mine").click()
    other = dialog.get_by_role("textbox", name="New name")
    other.fill(" ")
    other.press("Enter")
    dialog.get_by_role("alert").get_by_text("Give the preset a name.").wait_for()
    tab.page.route("**/remora/v1/preset?**", lambda route: route.abort())
    other.fill("Ours")
    other.press("Enter")
    dialog.get_by_role("alert").get_by_text("The web UI does not answer.").wait_for()
    assert other.input_value() == "Ours", "what was typed is not lost"
    tab.page.unroute("**/remora/v1/preset?**")
    other.press("Enter")
    dialog.get_by_role("button", name="Delete Ours").click()
    dialog.get_by_text("There is no preset yet.").wait_for()
