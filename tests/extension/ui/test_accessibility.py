"""The tab has no fault for people who see, hear or move otherwise; axe-core looks for them."""

from __future__ import annotations

import re
from typing import Any

import gradio
import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.extension.ui.serving import LONG, Served, opened
from tests.extension.ui.tab import SHADOW, Tab

pytestmark = pytest.mark.browser

GRADIO = tuple(int(part) for part in gradio.__version__.split(".")[:2])

TOO_SMALL = f"""() => [...{SHADOW}.querySelectorAll("button, select, input:not([type=checkbox]), label, summary")]
    .filter((one) => one.offsetHeight > 0 && one.offsetHeight < 32).map((one) => one.outerHTML.slice(0, 150))"""


def faults(page: Any, context: str = "#remora-tab") -> list[str]:
    """Return what axe finds below the tab, or another part of the page."""
    found = Axe().run(page, context=context).response["violations"]
    return [f"{one['id']}: {node['html'][:150]}: {node['failureSummary']}" for one in found for node in one["nodes"]]


OTHER_NAMES = f"""() => [...{SHADOW}.querySelectorAll("button[aria-label]:not(.rt-pick)")].filter((button) => {{
    return !button.getAttribute("aria-label").toLowerCase().includes(button.innerText.trim().toLowerCase());
}}).map((button) => button.outerHTML)"""
"""Buttons that are called otherwise than they show, so that who speaks to the browser cannot name them."""


@pytest.mark.parametrize(("theme", "width"), [("light", 1400), ("dark", 390)])
def test_axe_finds_no_fault(served: Served, browser: Any, theme: str, width: int) -> None:
    httpx.put(f"{served.url}/remora/v1/stack", json={"always_on": True, "entries": [{"name": "night"}]})
    try:
        phone = width == 390
        look = {"color_scheme": theme, "viewport": {"width": width, "height": 900}}
        with opened(served, browser, **look, has_touch=phone, is_mobile=phone) as page:
            tab = Tab(page).ready()
            asked = "This web UI asks for a user and a password."
            polled, held = re.compile(r"/remora/v1/(state|loras)\b"), list[Any]()
            page.route(polled, lambda route: held.append(route))  # an answer or a failure would end what is shown
            page.wait_for_timeout(300)  # for an answer that is on its way
            for state, shown in (({}, "Loading …"), ({"login": True, "error": asked}, "Log in to see the LoRA files.")):
                page.evaluate("state => window.remoraTab.set(state)", {"query": "of no file", "loaded": False, **state})
                tab.root.get_by_text(shown).wait_for()
                assert faults(page) == [], shown
            while held:
                held.pop().continue_()
            page.unroute(polled)
            page.evaluate("window.remoraTab.set({query: '', loaded: true, login: false, error: ''})")
            tab.write("<lora:stripes:0.5> <lora:nowhere:1> <lora:neon:x>")
            tab.button("Filters").click()
            tab.page.wait_for_timeout(300)
            if GRADIO >= (6, 31):  # the lists of earlier ones have a role that axe refuses
                assert faults(page, "body") == [], "the whole page"
            assert faults(page) == [], "as it begins"
            tab.root.get_by_role("searchbox").fill("of no file")
            assert faults(page) == [], "nothing found"
            tab.button("Show all").click()
            tab.button("List").click()
            assert faults(page) == [], "list"
            tab.root.get_by_role("button", name="Select files").click()
            assert faults(page) == [], "nothing selected"
            tab.root.get_by_role("button", name="Select zorp", exact=True).click()
            bar = tab.root.get_by_role("group", name="Selected files")
            for form in ("Tags …", "Move …", "Rename …"):
                bar.get_by_role("button", name=form).click()
                assert faults(page) == [], form
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), form
            assert not phone or page.evaluate(TOO_SMALL) == [], "a finger needs 32 pixels"
            bar.get_by_role("button", name="Done").click()
            # the route stays: an answer may be on its way
            notes = {"notes": "# Settings\n- a list\n\n## More\n[a link](https://example.org)"}
            page.route("**/remora/v1/lora?*", lambda route: route.fulfill(json={**route.fetch().json(), **notes}))
            tab.button("About zorp").click()
            page.get_by_role("dialog", name="zorp").get_by_text("Trigger words").wait_for(timeout=LONG)
            assert faults(page) == [], "about"
            page.keyboard.press("Escape")
            tab.pane("Stack")
            tab.button("Apart: set stripes").click()
            tab.more("stripes", "Blocks")
            tab.root.get_by_role("group", name="Block weights of stripes").wait_for(timeout=LONG)
            tab.row("nowhere").get_by_text("is not in the LoRA folders").wait_for(timeout=LONG)
            tab.strength("nowhere").fill("much")
            tab.page.evaluate(
                "window.remoraTab.set({error: 'The server does not answer.', stackProblem: 'A disk is full.'})"
            )
            assert faults(page) == [], "stack, an error and a notice"
            assert not phone or page.evaluate(TOO_SMALL) == [], "a finger needs 32 pixels"
            tab.more("stripes", "Region").get_by_role("button", name="Paint a region").click()
            page.get_by_role("dialog", name="A new region").wait_for()
            dialog = page.get_by_role("dialog", name="A new region")
            dialog.get_by_role("button", name="Save", exact=True).click()
            assert faults(page) == [], "painter, and a name that is missing"
            page.keyboard.press("Escape")
            tab.button("Compare").click()
            page.get_by_role("dialog", name="Compare").wait_for()
            assert faults(page) == [], "compare"
            page.keyboard.press("Escape")
            tab.button("Presets").click()
            presets = page.get_by_role("dialog", name="Presets")
            presets.get_by_role("textbox", name="Name of the new preset").fill("kept")
            presets.get_by_role("button", name="Save").click()
            presets.get_by_role("button", name="Delete kept").wait_for(timeout=LONG)
            assert faults(page) == [], "presets"
            assert page.evaluate(OTHER_NAMES) == []
            presets.get_by_role("button", name="Delete kept").click()
            presets.get_by_role("button", name="Undo deleting the preset kept").wait_for(timeout=9000)
            assert faults(page) == [], "a preset that was deleted"
    finally:
        httpx.put(f"{served.url}/remora/v1/stack", json={})


UNSEEN = f"""() => {{
    const dialog = {SHADOW}.querySelector("dialog[open]"), body = dialog.querySelector(".rt-dialog-body");
    const buttons = [...dialog.querySelectorAll(".rt-dialog-head button, .rt-dialog-foot button")], unseen = [];
    for (const to of [0, body.scrollHeight]) {{
        body.scrollTop = to;
        for (const button of buttons) {{
            const box = button.getBoundingClientRect();
            const there = {SHADOW}.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
            if (!button.contains(there)) unseen.push(`${{button.outerHTML}} at ${{to}}`);
        }}
    }}
    return [buttons.length, unseen];
}}"""


def test_the_buttons_of_a_dialog_are_in_sight_in_a_low_window(served: Served, browser: Any) -> None:
    with opened(served, browser, viewport={"width": 390, "height": 500}, has_touch=True, is_mobile=True) as page:
        tab = Tab(page).ready()
        tab.write("<lora:stripes:0.5> <lora:zorp:0.5>")
        tab.button("About zorp").click()
        page.get_by_role("dialog", name="zorp").get_by_text("Trigger words").wait_for(timeout=LONG)
        assert page.evaluate(UNSEEN) == [3, []], "Close, Cancel, Save"
        page.keyboard.press("Escape")
        tab.pane("Stack")
        tab.button("Compare").click()
        page.get_by_role("dialog", name="Compare").wait_for()
        assert page.evaluate(UNSEEN) == [2, []], "Close, Make the pictures"
        page.keyboard.press("Escape")
        tab.button("Presets").click()
        tab.root.get_by_role("button", name="Import presets from text").click()
        page.get_by_role("textbox", name="Text to import").wait_for()
        assert page.evaluate(UNSEEN) == [6, []], "Close, Close, Import, Save, Import, Open a file"
        page.keyboard.press("Escape")
        tab.more("stripes", "Region").get_by_role("button", name="Paint a region").click()
        page.get_by_role("dialog", name="A new region").wait_for()
        assert page.evaluate(UNSEEN) == [3, []], "Close, Save, Cancel"
        canvas = f"{SHADOW}.querySelector('dialog canvas')"
        wide, high = page.evaluate(f"[{canvas}.clientWidth, {canvas}.clientHeight]")
        assert wide == high, "a low window makes the picture smaller, and does not squeeze it"


HEIGHTS = f"() => [...{SHADOW}.querySelectorAll('.rt-rows > li')].map((row) => row.offsetHeight)"


def test_rows_out_of_sight_are_as_high_as_in_sight(served: Served, browser: Any) -> None:
    with opened(served, browser, viewport={"width": 390, "height": 700}, has_touch=True, is_mobile=True) as page:
        tab = Tab(page).ready()
        tab.write("<lora:stripes:0.5> <lora:zorp:0.5:mask=left>")
        tab.pane("Stack")
        tab.row("zorp").scroll_into_view_if_needed()
        before = page.evaluate(HEIGHTS)
        style = "document.getElementById('remora-tab').style"
        frames = "await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        page.evaluate(f"async () => {{ {style}.width = '70px'; {frames}; }}")  # as before a page's styles are there
        assert page.evaluate(HEIGHTS)[0] > before[0]
        page.evaluate(f"async () => {{ {style}.marginTop = '9000px'; scrollTo(0, 0); {frames}; }}")
        page.evaluate(f"async () => {{ {style}.width = ''; {frames}; }}")
        assert page.evaluate(HEIGHTS) == before


def test_forced_colours_show_what_is_pressed_and_the_weights_of_blocks(served: Served, browser: Any) -> None:
    with opened(served, browser, forced_colors="active") as page:
        tab = Tab(page).ready()
        tab.write("<lora:stripes:0.5> <lora:zorp:0.5>")
        tab.pane("Stack")
        tab.more("stripes", "Blocks")
        tab.root.get_by_role("group", name="Block weights of stripes").wait_for(timeout=LONG)
        style = f"(of) => getComputedStyle({SHADOW}.querySelector(of))"
        colours = f"() => ['.rt-bar', '.rt-block'].map((of) => ({style})(of).backgroundColor)"
        bar, ground = page.evaluate(colours)
        assert bar != ground
        for state in ("pressed", "expanded"):
            drawn = [
                page.evaluate(f"({style})('button[aria-{state}=\"{on}\"]').borderWidth") for on in ("true", "false")
            ]
            assert drawn == ["2px", "1px"], state
