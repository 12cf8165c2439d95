"""One journey through the tab, in the embedded web UI and in pages of every gradio that hosts have."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.extension.ui.old_gradio import VERSIONS, WANTED, page_of
from tests.extension.ui.serving import LONG, Served, fill, generate, opened
from tests.extension.ui.tab import SHADOW, Tab

pytestmark = pytest.mark.browser
EMBEDDED = "embedded"
SHOTS = os.environ.get("REMORA_SCREENSHOTS", "")
"""A folder to put pictures of the pages into, for people to look at."""


class Place:
    """A page with the tab in it."""

    def __init__(self, kind: str, served: Served) -> None:
        self.kind = kind
        self.served = served

    @property
    def embedded(self) -> bool:
        return self.kind == EMBEDDED

    @property
    def prompt(self) -> str:
        return "#prompt textarea" if self.embedded else "#txt2img_prompt textarea"

    def go(self, page: Any, name: str) -> None:
        """Go to a tab of the page, where the page has tabs."""
        if not self.embedded:
            # a button in every gradio, of the role `tab` in some
            page.locator("button", has_text=re.compile(rf"^\s*{name}\s*$")).first.click(timeout=LONG)

    def generate(self, page: Any) -> None:
        self.go(page, "txt2img")
        if self.embedded:
            generate(page)
        else:
            page.click("#txt2img_generate")
            page.wait_for_function("document.querySelector('#txt2img_info textarea').value.length > 0", timeout=LONG)
        self.go(page, "Remora")


@pytest.fixture(scope="module", params=[EMBEDDED, *VERSIONS])
def place(request: pytest.FixtureRequest, served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with ExitStack() as stack:
        kind: str = request.param
        if kind == EMBEDDED:
            yield Place(kind, served)
            return
        if os.environ.get(WANTED, "1" if request.config.getoption("--all") else "0") != "1":
            pytest.skip(f"pages of other gradio versions are tried with --all, or where {WANTED}=1")
        yield Place(kind, stack.enter_context(page_of(kind, served, tmp_path_factory.mktemp("gradio"))))


@pytest.fixture
def tab(place: Place, browser: Any) -> Iterator[Tab]:
    httpx.put(f"{place.served.url}/remora/v1/stack", json={})
    with opened(place.served, browser, theirs=not place.embedded) as page:
        if place.embedded:
            fill(page, "#width input[type=number]", "64")
            fill(page, "#height input[type=number]", "64")
            fill(page, "#steps input[type=number]", "2")
            fill(page, "#seed input", "7")
        place.go(page, "Remora")
        yield Tab(page, place.prompt).ready()
    httpx.put(f"{place.served.url}/remora/v1/stack", json={})
    httpx.delete(f"{place.served.url}/remora/v1/preset", params={"name": "Mine"})


def shot(tab: Tab, place: Place, name: str) -> None:
    if SHOTS:
        tab.page.screenshot(path=Path(SHOTS) / f"{place.kind}-{name}.png")


@pytest.mark.quick
def test_search_insert_tune_reorder_undo(place: Place, tab: Tab) -> None:
    tab.write("a fox")
    tab.root.get_by_role("searchbox", name="Search LoRA").fill("zor")
    tab.root.get_by_text("1 of 6 LoRA", exact=True).wait_for()
    tab.insert("zorp")
    tab.button("Show all").click()
    tab.insert("stripes")
    tab.prompt_is("a fox, <lora:zorp:1> zorp <lora:stripes:1>")
    shot(tab, place, "library")
    tab.strength("zorp").fill("0.5")
    tab.button("Move stripes;").press("ArrowUp")
    tab.prompt_is("a fox, <lora:stripes:1> zorp <lora:zorp:0.5>")
    for _ in range(4):
        tab.button("Undo").click()
    tab.prompt_is("a fox")
    for _ in range(4):
        tab.button("Redo").click()
    tab.prompt_is("a fox, <lora:stripes:1> zorp <lora:zorp:0.5>")


def test_blocks_schedule_and_passes(place: Place, tab: Tab) -> None:
    tab.write("a fox <lora:stripes:0.5>")
    row = tab.more("stripes", "Blocks")
    row.get_by_role("combobox", name="Block preset of stripes").select_option("OUTALL")
    tab.more("stripes", "Schedule").get_by_role("button", name="Add a schedule").click()
    row.get_by_role("textbox", name="Until step of stripes").fill("10")
    tab.more("stripes", "Passes").get_by_role("button", name="detailer", exact=True).click()
    tab.prompt_is("a fox <lora:stripes:0.5:0.5@0,0.5@1:lbw=OUTALL:stop=10:pass=base,hires,refiner>")
    tab.more("stripes", "Blocks").get_by_role("slider", name="IN04 of stripes").press("End")
    tab.page.wait_for_function("window.remoraTab.state.prompt.includes('lbw=1,0,0,0,0,1,')", timeout=LONG)
    shot(tab, place, "strength")
    place.generate(tab.page)
    tab.row("stripes").get_by_text("✓ applied: 278 of 278 layers").wait_for(timeout=LONG)


@pytest.mark.quick
def test_generate_and_see_what_became_of_it(place: Place, tab: Tab) -> None:
    tab.insert("zorp")
    place.generate(tab.page)
    tab.row("zorp").get_by_text("✓ applied: 264 of 264 layers").wait_for(timeout=LONG)
    shot(tab, place, "stack")


def test_the_page_knows_what_the_tab_wrote(place: Place, tab: Tab) -> None:
    """The box is gradio's own: what it hands to the server is what the tab wrote."""
    tab.write("a fox")
    tab.insert("zorp")
    tab.strength("zorp").fill("0.25")
    place.generate(tab.page)
    asked = httpx.get(f"{place.served.url}/remora/v1/state").json()["loras"]
    assert [(lora["name"], lora["state"]) for lora in asked] == [("zorp", "applied")]
    place.go(tab.page, "txt2img")
    shown = "#infotext textarea" if place.embedded else "#txt2img_info textarea"
    tab.page.wait_for_function(f"document.querySelector('{shown}').value.includes('<lora:zorp:0.25>')", timeout=LONG)


def test_presets(place: Place, tab: Tab) -> None:
    tab.write("a fox <lora:stripes:0.5>")
    tab.pane("Stack")
    tab.button("Presets").click()
    dialog = tab.page.get_by_role("dialog", name="Presets")
    dialog.get_by_role("textbox", name="Name of the new preset").fill("Mine")
    dialog.get_by_role("button", name="Save", exact=True).click()
    dialog.get_by_text("<lora:stripes:0.5>").wait_for()
    shot(tab, place, "presets")
    tab.page.keyboard.press("Escape")
    tab.write("a fox")
    tab.button("Presets").click()
    dialog.get_by_role("button", name="Use Mine").click()
    tab.prompt_is("a fox <lora:stripes:0.5>")


def test_compare(place: Place, tab: Tab) -> None:
    tab.write("a fox <lora:stripes:0.5>")
    tab.pane("Stack")
    tab.button("Compare").click()
    dialog = tab.page.get_by_role("dialog", name="Compare")
    assert dialog.get_by_label("Steps").input_value() == "2"
    dialog.get_by_label("Width").fill("64")
    dialog.get_by_label("Height").fill("64")
    dialog.get_by_label("Strengths", exact=False).last.fill("0, 1")
    dialog.get_by_role("button", name="Make the pictures").click()
    dialog.get_by_text("2 of 2 pictures").wait_for(timeout=LONG)
    tab.page.wait_for_function(
        f"[...{SHADOW}.querySelectorAll('.rt-cell img')].filter(i => i.naturalWidth).length === 2"
    )
    shot(tab, place, "compare")


def test_about_a_file(place: Place, tab: Tab) -> None:
    tab.button("About zorp").click()
    dialog = tab.page.get_by_role("dialog", name="zorp")
    dialog.get_by_text("loha, rank 2, 264 layers, kohya").wait_for()
    shot(tab, place, "about")
    dialog.get_by_role("button", name="Cancel").click()
    dialog.wait_for(state="hidden")


def test_a_phone_in_the_dark(place: Place, browser: Any) -> None:
    look = {"viewport": {"width": 380, "height": 800}, "color_scheme": "dark"}
    with opened(place.served, browser, theirs=not place.embedded, **look) as page:
        place.go(page, "Remora")
        tab = Tab(page, place.prompt).ready()
        if not place.embedded:  # gradio's dark theme is chosen by the address
            page.evaluate("document.body.classList.add('dark')")
        tab.insert("zorp")
        tab.row("zorp").wait_for()
        box = tab.root.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 380
        shot(tab, place, "phone")
