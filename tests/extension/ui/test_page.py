"""The page in a real browser, from the command that starts it to the picture."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from extension.standalone.demo import DEMO_PROMPT, DEMO_SEED
from extension.standalone.pnginfo import encode_png, read_infotext
from extension.text.infotext import parse_infotext
from tests.extension.ui.serving import (
    LONG,
    Served,
    fill,
    infotext_with,
    opened,
    reload,
    serving,
    until,
    without_server,
)
from tests.extension.ui.tab import Tab

pytestmark = pytest.mark.browser


def test_a_picture_with_a_lora(page: Any, served: Served) -> None:
    page.fill("#prompt textarea", "a red fox")
    page.click("#generate")
    before = infotext_with(page, "a red fox")
    page.get_by_role("button", name="Insert zorp into the prompt").click()
    page.wait_for_function("document.querySelector('#prompt textarea').value.includes('<lora:zorp:1>')")
    page.click("#generate")
    after = infotext_with(page, "Lora hashes")
    assert parse_infotext(before).prompt == "a red fox"
    assert parse_infotext(after).prompt == "a red fox, <lora:zorp:1> zorp"
    assert parse_infotext(after).settings["Size"] == "64x64"
    assert "zorp: 264 of 264 layers" in page.inner_text("#outcome")
    first, second = sorted(served.pictures.glob("*.png"))[-2:]
    with Image.open(first) as plain, Image.open(second) as changed:
        assert (read_infotext(plain), read_infotext(changed)) == (before, after)
        assert plain.tobytes() != changed.tobytes()
    page.wait_for_function("document.querySelector('#gallery img')?.naturalWidth === 64")
    again = page.context.new_page()  # a reload would break off requests, which the console tells
    again.goto(served.url)
    assert infotext_with(again, "Lora hashes") == after, "the latest picture is there again"
    again.wait_for_function("document.querySelector('#gallery img')?.naturalWidth === 64")
    again.close()


def test_a_picture_takes_neither_the_focus_nor_the_place_in_the_page(page: Any) -> None:
    page.set_viewport_size({"width": 1400, "height": 420})
    page.fill("#prompt textarea", "a fox")
    page.press("#prompt textarea", "Control+Enter")
    infotext_with(page, "a fox")
    page.locator("#gallery img").first.wait_for(timeout=LONG)
    page.wait_for_function("document.querySelector('#gallery img').naturalWidth")
    assert page.evaluate("document.activeElement.matches('#prompt textarea')")
    fill(page, "#batch-size input", "2")
    page.focus("#prompt textarea")
    page.keyboard.press("End")
    page.keyboard.type(" in snow")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    scrolled = page.evaluate("scrollY")
    assert scrolled > 400, "the gallery is out of sight"
    page.wait_for_selector("#generate:not([disabled])", timeout=LONG)
    page.keyboard.press("Control+Enter")
    infotext_with(page, "a fox in snow")
    page.wait_for_selector("#generate:not([disabled])", timeout=LONG)
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate("[document.activeElement.matches('#prompt textarea'), scrollY]") == [True, scrolled]
    page.click("#gallery .thumbnail-small >> nth=0")
    page.keyboard.press("Escape")
    page.click("#gallery .thumbnail-lg >> nth=0")  # arrow keys go on from a picture that is clicked
    page.locator("#gallery .thumbnail-small:focus >> nth=0").wait_for()
    page.keyboard.press("ArrowRight")
    page.locator("#gallery .thumbnail-small.selected:focus[aria-label='Thumbnail 2 of 2']").wait_for()


def test_a_press_makes_a_picture_as_soon_as_the_button_is_enabled(page: Any, served: Served) -> None:
    before = len(list(served.pictures.glob("*.png")))
    page.evaluate(
        """() => {
        const button = document.querySelector("#generate");
        let was = button.disabled;
        window.enabled = 0;
        new MutationObserver(() => {
            if (was && !button.disabled && ++window.enabled === 1) button.click();
            was = button.disabled;
        }).observe(button, {attributes: true});
    }"""
    )
    page.click("#generate")
    page.wait_for_function("window.enabled === 2", timeout=LONG)
    assert len(list(served.pictures.glob("*.png"))) == before + 2


def test_an_error_is_shown_and_the_page_goes_on(page: Any) -> None:
    for prompt, message in (("<lora:x:1.1.>", "“1.1.” is not a number"), ("<lora:zorpp:1>", "did you mean")):
        page.fill("#prompt textarea", prompt)
        page.click("#generate")
        page.locator("#outcome").get_by_role("alert").get_by_text("in the stack of LoRA").wait_for(timeout=LONG)
        page.get_by_role("button", name="Stack (1, 1 error)").click()
        page.locator("#remora-tab").get_by_role("alert").get_by_text(message).wait_for(timeout=LONG)
        # the line of the former error may have been seen: a job that is still to begin would take no other request
        failed = "text => window.remoraTab.state.server.loras.some(lora => lora.reason.includes(text))"
        page.wait_for_function(failed, arg=message.split("” ")[-1], timeout=LONG)
        page.wait_for_selector("#generate:not([disabled])", timeout=LONG)
    older = page.get_by_text("from an earlier generation")
    page.fill("#prompt textarea", "a house")
    page.click("#generate")
    assert parse_infotext(infotext_with(page, "a house")).settings["Seed"] == "7"
    assert page.locator("#outcome").get_by_role("alert").count() == 0
    page.locator("#gallery img").first.wait_for(timeout=LONG)
    assert older.count() == 0
    page.wait_for_selector("#generate:not([disabled])", timeout=LONG)
    page.fill("#prompt textarea", "<lora:zorpp:1>")
    page.press("#prompt textarea", "Control+Enter")
    older.wait_for(timeout=LONG)
    page.fill("#prompt textarea", "a house again")
    page.set_viewport_size({"width": 390, "height": 844})
    page.click("#generate")
    infotext_with(page, "a house again")
    assert older.count() == 0
    page.wait_for_function("scrollTo(0, 0), document.querySelector('#gallery img').naturalWidth")
    bounds = page.evaluate("['#progress', '#gallery'].map(one => document.querySelector(one).getBoundingClientRect())")
    button = page.locator("#generate").bounding_box()
    assert button["y"] < bounds[0]["top"] < bounds[1]["top"]
    assert bounds[1]["bottom"] <= 844, "Generate, the progress and the picture are in sight together"


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


@pytest.mark.parametrize("width", [820, 1000])
def test_nothing_is_cut_off_on_a_tablet(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 1100})
    tab = Tab(page).ready()
    tab.insert("zorp")
    tab.pane("Stack")
    bounds = """() => [...document.querySelectorAll("#settings .max_value")].map((one) => {
        const text = document.createRange();
        text.selectNodeContents(one);
        return one.closest(".block").getBoundingClientRect().right - text.getBoundingClientRect().right;
    })"""
    page.wait_for_function(f"({bounds})().length === 4")
    assert min(page.evaluate(bounds)) >= 0, "the upper bounds of the sliders can be read"
    buttons = tab.root.locator(".rt-toolbar button")
    assert buttons.count() > 5
    until(
        page, lambda: len({one.bounding_box()["y"] for one in buttons.all()[-6:]}) == 1, "the stack's are in one line"
    )


def test_a_reload_keeps_what_was_asked_for_in_its_own_tab(page: Any) -> None:
    kept = "([key, text]) => JSON.stringify(sessionStorage).includes(text) === key"
    tab = Tab(page).ready()
    tab.write("a fox <lora:zorp:0.5>")
    fill(page, "#steps input[type=number]", "33")
    page.wait_for_function(kept, arg=[True, "33"])
    reload(page)
    page.wait_for_function("document.querySelector('#steps input[type=number]')?.value === '33'", timeout=LONG)
    assert page.input_value("#prompt textarea") == "a fox <lora:zorp:0.5>"
    assert page.input_value("#width input[type=number]") == "64"
    tab.ready().button("Stack (1)").wait_for()
    other = page.context.new_page()
    other.goto(page.url)
    Tab(other).ready().button("Stack").wait_for()
    assert other.input_value("#prompt textarea") == ""
    other.close()
    tab.write("l" * 1_000_000)
    page.wait_for_function(kept, arg=[False, "33"])


def test_the_seed_of_the_picture_is_taken_over(page: Any) -> None:
    page.click("#seed-random")
    page.wait_for_function("document.querySelector('#seed input').value === '-1'")
    page.fill("#prompt textarea", "a drawn seed")
    page.click("#generate")
    drawn = parse_infotext(infotext_with(page, "a drawn seed")).settings["Seed"]
    page.click("#seed-reuse")
    page.wait_for_function("seed => document.querySelector('#seed input').value === seed", arg=drawn)


TEXT = """a tower <lora:zorp:0.5>
Negative prompt: blurry
Steps: 3, Sampler: DDIM, CFG scale: 4.5, Seed: 11, Size: 72x64, Model: other"""
PASTE = """([selector, text]) => {
    const box = document.querySelector(selector);
    box.focus();
    document.execCommand("insertText", false, text);
    box.dispatchEvent(new InputEvent("input", {bubbles: true, inputType: "insertFromPaste"}));
}"""
DROP = """([data, name, type]) => {
    const carried = new DataTransfer();
    carried.items.add(new File([Uint8Array.from(atob(data), one => one.charCodeAt(0))], name, {type}));
    const event = new DragEvent("drop", {bubbles: true, cancelable: true, composed: true, dataTransfer: carried});
    return !document.querySelector("#gallery").dispatchEvent(event);
}"""


def wait_for_parameters(page: Any) -> None:
    wanted = {"#steps": "3", "#cfg": "4.5", "#width": "72", "#height": "64", "#seed": "11"}
    for field, value in wanted.items():
        there = "([field, value]) => document.querySelector(`${field} input[type=number]`).value === value"
        page.wait_for_function(there, arg=[field, value], timeout=LONG)
    assert page.input_value("#prompt textarea") == "a tower <lora:zorp:0.5>"
    assert page.input_value("#negative textarea") == "blurry"
    assert page.input_value("#sampler input") == "DDIM"


def test_a_parameters_text_is_understood_typed_pasted_and_dropped(page: Any) -> None:
    Tab(page).ready()

    def begin_anew() -> None:
        page.fill("#prompt textarea", "")
        page.fill("#negative textarea", "")
        for field, value in (("#steps", "2"), ("#cfg", "7"), ("#width", "64"), ("#seed", "7")):
            fill(page, f"{field} input[type=number]", value)

    page.evaluate(PASTE, ["#prompt textarea", TEXT])
    wait_for_parameters(page)
    begin_anew()
    fill(page, "#prompt textarea", TEXT)  # typed, and left
    wait_for_parameters(page)
    begin_anew()
    picture = encode_png(Image.new("RGB", (8, 8)), TEXT)
    for content, name, kind in ((picture, "a.png", "image/png"), (TEXT.encode(), "a.txt", "text/plain")):
        assert page.evaluate(DROP, [base64.b64encode(content).decode(), name, kind]), "the browser leaves the page"
        wait_for_parameters(page)
        begin_anew()
    bare = encode_png(Image.new("RGB", (8, 8)), "")
    page.evaluate(DROP, [base64.b64encode(bare).decode(), "bare.png", "image/png"])
    page.get_by_role("alert").get_by_text("bare.png cannot be used: it has no parameters text.").wait_for()
    page.focus("#prompt textarea")
    page.fill("#prompt textarea", TEXT)
    page.keyboard.press("Control+Enter")
    made = parse_infotext(infotext_with(page, "a tower"))
    assert (made.prompt, made.settings["Seed"], made.settings["Size"]) == ("a tower <lora:zorp:0.5>", "11", "72x64")


def test_a_server_that_stops_is_told_and_the_page_goes_on_by_itself(page: Any) -> None:
    tab = Tab(page).ready()
    tab.write("a fox <lora:zorp:0.5>")
    told = page.get_by_role("alert").get_by_text("The server does not answer. Start it again")
    with without_server(page, told):
        assert not page.evaluate(
            "document.elementFromPoint(...['x', 'y'].map(a => "
            "document.querySelector('#generate').getBoundingClientRect()[a] + 5))?.closest('#generate')"
        )
        tab.more("zorp", "Region")
        region = tab.root.get_by_role("group", name="Region of zorp", exact=True)
        region.get_by_text("The web UI does not answer.").wait_for()
    region.get_by_role("button", name="Paint a region").wait_for()
    page.click("#generate")
    infotext_with(page, "a fox")
    page.locator("#loras > button").click()
    page.wait_for_function("!document.querySelector('#remora-tab')?.getClientRects().length")  # the panel is closed
    with without_server(page, told):
        pass


@pytest.mark.long
def test_the_demo_makes_its_first_picture_by_itself_and_once(tmp_path: Path, browser: Any) -> None:
    with serving(tmp_path, tmp_path, ["--demo"]) as served:
        for visit in range(2):
            with opened(served, browser) as page:
                page.wait_for_selector("#prompt textarea", timeout=LONG)
                assert page.input_value("#prompt textarea") == DEMO_PROMPT
                if visit == 0:
                    made = infotext_with(page, "Lora hashes")
                    assert parse_infotext(made).prompt == DEMO_PROMPT
                    assert parse_infotext(made).settings["Seed"] == str(DEMO_SEED), "two visits make one picture"
                    assert "stripes: 278 of 278 layers" in page.inner_text("#outcome")
                page.wait_for_timeout(1000)  # in which a second job would begin
        assert httpx.get(f"{served.url}/sdapi/v1/progress", timeout=5).json()["state"]["job_count"] == 0
    assert len(list(tmp_path.glob("*.png"))) == 1
