"""The tab beside the picture: the page's own button, the picture that it shows, its seed, and its LoRA."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.extension.ui.serving import LONG, Served, opened
from tests.extension.ui.tab import Tab

pytestmark = pytest.mark.browser
HOST = Path(__file__).with_name("host_page.html")


@pytest.fixture
def tab(served: Served, browser: Any) -> Iterator[Tab]:
    """Yield the tab in a page that keeps its prompt, its button and its pictures in another tab."""

    def before(page: Any) -> None:
        page.route(
            f"{served.url}/", lambda route: route.fulfill(body=HOST.read_text("utf-8"), content_type="text/html")
        )

    with opened(served, browser, before) as page:
        yield Tab(page, "#txt2img_prompt textarea").ready()


def test_a_strength_is_tried_without_leaving_the_tab(tab: Tab) -> None:
    strip = tab.root.get_by_role("group", name="Picture", exact=True)
    tab.write("a fox <lora:stripes:0.5>")
    button = strip.get_by_role("button", name="Generate with the prompt of txt2img")
    assert button.inner_text() == "Generate", "SD.Next's Modern UI has the text twice"
    button.click()
    strip.get_by_role("button", name="Stop").wait_for()
    strip.get_by_text("Seed 40 stripes 0.5").wait_for(timeout=LONG)
    tab.row("stripes").get_by_text("✓ applied: 278 of 278 layers").wait_for(timeout=LONG)
    shown = strip.get_by_role("button", name="The latest picture").locator("img").evaluate("i => i.naturalWidth")
    assert shown == 64
    tab.strength("stripes").fill("0.8")
    tab.page.keyboard.press("Control+Enter")
    strip.get_by_text("Seed 41 stripes 0.8").wait_for(timeout=LONG)
    tab.root.evaluate("() => document.activeElement.blur()")
    tab.page.keyboard.press("Control+Enter")  # nothing has the focus
    strip.get_by_text("Seed 42 stripes 0.8").wait_for(timeout=LONG)


def test_compare_begins_with_the_seed_of_the_picture_and_pictures_are_found_by_their_lora(
    tab: Tab, served: Served
) -> None:
    tab.write("a fox <lora:zorp:0.5>")
    tab.button("Generate with the prompt").click()
    tab.root.get_by_text("Seed 40 zorp 0.5").wait_for(timeout=LONG)
    tab.pane("Stack")
    tab.button("Compare").click()
    assert tab.page.get_by_role("dialog", name="Compare").get_by_label("Seed (-1: random)").input_value() == "40"
    tab.page.keyboard.press("Escape")
    tab.root.get_by_role("button", name="Pictures", exact=True).click()
    dialog = tab.page.get_by_role("dialog", name="Pictures of this session")
    dialog.get_by_label("With the LoRA").select_option("zorp")
    first = dialog.get_by_role("list", name="Pictures").get_by_role("listitem").first
    first.get_by_text("zorp 0.5").wait_for()
    tab.page.wait_for_function("i => i.naturalWidth === 64", arg=first.locator("img").element_handle(), timeout=LONG)
    tab.page.keyboard.press("Escape")
    hidden = (
        "picture => { document.getElementById('txt2img_gallery').innerHTML = `<img loading='lazy' src='${picture}'>`; }"
    )
    made = httpx.get(f"{served.url}/remora/v1/pictures").json()["pictures"][0]["id"]
    tab.page.evaluate(hidden, f"/remora/v1/pictures/thumbnail?id={made}")
    httpx.put(f"{served.url}/remora/v1/preset?name=mine", json={"text": "<lora:zorp:1>"}).raise_for_status()
    tab.button("Presets").click()
    tab.button("picture for mine").click()
    tab.page.wait_for_function("window.remoraTab.state.presets[0].thumbnail", timeout=LONG)
    picture = Image.open(io.BytesIO(httpx.get(f"{served.url}/remora/v1/preset/thumbnail?name=mine").content))
    httpx.delete(f"{served.url}/remora/v1/preset?name=mine").raise_for_status()
    assert picture.convert("RGBA").getchannel("A").getextrema() == (255, 255), (
        "the page has not loaded it, as it is out of sight"
    )
    tab.page.keyboard.press("Escape")
    tab.pane("Library")
    tab.button("About zorp").click()
    about = tab.page.get_by_role("dialog", name="zorp")
    about.get_by_text("Pictures of this session").click()
    about.get_by_role("list", name="Pictures").get_by_text("Seed 40").first.wait_for()


def test_in_modern_ui_the_tabs_button_says_what_it_opens(tab: Tab) -> None:
    button = tab.page.locator("button[tabitemid]")
    assert (button.inner_text(), button.get_attribute("title")) == ("LoRA", "Remora")


@contextmanager
def changed(served: Served, browser: Any, former: str, new: str, **context: Any) -> Iterator[Tab]:
    """Yield the tab in a page with a change in it."""
    html = HOST.read_text("utf-8")
    assert former in html

    def before(page: Any) -> None:
        body = html.replace(former, new)
        page.route(f"{served.url}/", lambda route: route.fulfill(body=body, content_type="text/html"))

    with opened(served, browser, before, **context) as page:
        yield Tab(page, "#txt2img_prompt textarea").ready()


def test_on_a_phone_the_lora_of_the_picture_are_in_sight(served: Served, browser: Any) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
    with changed(served, browser, "let seed = 40", "let seed = 2817652815", **phone) as tab:
        tab.write("a fox <lora:stripes:0.5> <lora:night:0.5> <lora:zorp:0.5>")
        tab.button("Generate with the prompt of txt2img").tap()
        text = tab.root.get_by_text("Seed 2817652815 stripes 0.5, night 0.5, zorp 0.5")
        text.wait_for(timeout=LONG)
        assert text.evaluate("one => one.scrollHeight <= one.clientHeight"), "no part of it is cut off"
        assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        tab.page.set_viewport_size({"width": 557, "height": 844})  # as SD.Next's Modern UI makes of a phone
        tab.pane("Library")
        tab.button("About zorp").tap()
        dialog = tab.page.get_by_role("dialog", name="zorp")
        beside, main = (dialog.locator(f".rt-details-{part}").bounding_box() for part in ("side", "main"))
        assert beside["width"] == main["width"] > 500, "one below the other"


def test_pictures_of_sdnexts_control_are_compared_in_the_size_of_the_page(served: Served, browser: Any) -> None:
    number = '<div id="control_before_resize_{}"><input type="number" value="{}"></div>'
    own = (
        f'<div id="control_prompt"><textarea></textarea></div>{number.format("width", 96)}{number.format("height", 64)}'
    )
    former = '<div id="tab_remora">'
    with changed(served, browser, former, own + former) as tab:
        tab.pane("Stack")
        tab.root.get_by_role("button", name="control", exact=True).click()
        tab.page.locator("#control_prompt textarea").fill("a fox <lora:zorp:0.5>")
        tab.root.get_by_role("button", name="Compare", exact=True).click()
        dialog = tab.page.get_by_role("dialog", name="Compare")
        assert [dialog.get_by_label(name, exact=True).input_value() for name in ("Width", "Height")] == ["96", "64"]
