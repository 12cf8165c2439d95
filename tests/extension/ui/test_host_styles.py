"""The tab in pages whose styles would make it unreadable: none applies to it, and its colours come from the page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.extension.ui.serving import LONG, Served, opened, reload, shared_context
from tests.extension.ui.tab import SHADOW, Tab
from tests.extension.ui.test_accessibility import faults

pytestmark = pytest.mark.browser
SHOTS = os.environ.get("REMORA_SCREENSHOTS", "")
"""A folder to put pictures of the pages into, for people to look at."""
# the first two rules are those of SD.Next's Modern UI
HOSTILE = """
* button[aria-label] { opacity: .5 !important; height: 12px !important; width: 12px !important; }
button > span { height: 1.5em !important; margin: 0 !important; font-size: 5px !important; }
* { color: #111 !important; }
button { all: unset !important; }
:root, body, .gradio-container, .dark {
  --body-text-color: ; --background-fill-primary: ; --background-fill-secondary: ; --input-background-fill: ;
  --border-color-primary: ; --color-accent: ; --primary-500: ;
}
html { font-size: 5px !important; }
input, select, textarea { background: #fff !important; border-radius: 20px !important; }
img { opacity: .3 !important; }
li { list-style: square !important; margin-left: 30px !important; }
dialog { margin-bottom: 0 !important; }
.rt, .rt-card, .rt-row { display: none !important; }
#remora-tab { width: 900px !important; }
"""
PAGES = {"black": ("#000", "dark"), "white": ("#fff", "light"), "grey": ("#777", "light"), "blue": ("#123", "dark")}
PROMPT = "a fox <lora:stripes:0.5:0.2@0,1@1:stop=10> <lora:zorp:1> <lora:nowhere:1> <lora:neon:x>"
LOOKS = """() => [...SHADOW.querySelectorAll('*')].filter(one => one.getClientRects().length).map(one => {
    const style = getComputedStyle(one);
    return [one.tagName, one.className.baseVal ?? one.className, one.offsetWidth, one.offsetHeight, style.opacity,
        style.fontSize, style.margin, style.padding, style.listStyleType, style.borderRadius, style.display].join(' ');
})""".replace("SHADOW", SHADOW)


def background(colour: str) -> str:
    return f"html, body, .gradio-container, .gradio-container * {{ background: {colour} !important; }}"


def apply(page: Any, css: str) -> Any:
    """Add styles to the page, and return the element that has them."""
    return page.add_style_tag(content=css)


def wait_for_colour(page: Any, name: str, wanted: str) -> None:
    """Wait until the tab's element has a colour."""
    shown = f"([name, wanted]) => getComputedStyle({SHADOW}.querySelector('.rt'))[name] === wanted"
    page.wait_for_function(shown, arg=[name, wanted])


def rgb(page: Any, colour: str) -> str:
    """Return a colour as computed styles have it."""
    script = "c => { const o = new Option(); document.body.append(o); o.style.setProperty('color', c, 'important');"
    found: str = page.evaluate(
        f"{script} const found = getComputedStyle(o).color; o.remove(); return found; }}", colour
    )
    return found


@pytest.fixture
def tab(served: Served, browser: Any) -> Iterator[Tab]:
    with opened(served, browser) as page:
        yield Tab(page).ready()


def shot(tab: Tab, name: str) -> None:
    if SHOTS:
        tab.page.screenshot(path=Path(SHOTS) / f"styles-{name}.png")


def open_all(tab: Tab) -> None:
    """Show a stack of every kind of row, one with all its editors."""
    tab.write(PROMPT)
    tab.pane("Stack")
    tab.row("nowhere").get_by_text("is not in the LoRA folders").wait_for(timeout=LONG)
    tab.more("stripes", "Blocks").get_by_role("slider", name="IN04 of stripes").wait_for(timeout=LONG)


def test_styles_of_the_page_change_nothing_but_colours(tab: Tab) -> None:
    for colour in ("#000", "#fff"):
        for show in (lambda: tab.pane("Library"), lambda: open_all(tab)):
            apply(tab.page, "#remora-tab { width: 900px !important; }")
            show()
            tab.page.wait_for_timeout(300)
            before = tab.page.evaluate(LOOKS)
            added = apply(tab.page, HOSTILE + background(colour))
            wait_for_colour(tab.page, "backgroundColor", rgb(tab.page, colour))
            assert len(before) > 50
            assert tab.page.evaluate(LOOKS) == before
            added.evaluate("element => element.remove()")
        reload(tab.page)
        tab.ready()


@pytest.mark.parametrize("name", ["black", "white", "grey", "blue"])
def test_all_text_can_be_read_whatever_the_page_looks_like(tab: Tab, name: str) -> None:
    colour, scheme = PAGES[name]
    apply(tab.page, HOSTILE + background(colour))
    wait_for_colour(tab.page, "backgroundColor", rgb(tab.page, colour))
    wait_for_colour(tab.page, "colorScheme", scheme)
    tab.button("Filters").click()
    shot(tab, f"{name}-library")
    assert faults(tab.page) == [], "library"
    open_all(tab)
    shot(tab, f"{name}-stack")
    assert faults(tab.page) == [], "stack"
    tab.pane("Library")
    tab.button("About zorp").click()
    tab.page.get_by_role("dialog", name="zorp").get_by_text("Trigger words").wait_for(timeout=LONG)
    shot(tab, f"{name}-about")
    assert faults(tab.page) == [], "about"


def test_text_of_the_page_that_can_be_read_is_taken(tab: Tab) -> None:
    apply(tab.page, f"#remora-tab {{ color: #ffeecc !important; }} {background('#102030')}")
    wait_for_colour(tab.page, "color", "rgb(255, 238, 204)")
    apply(tab.page, "#remora-tab { color: #304050 !important; }")
    wait_for_colour(tab.page, "color", "rgb(242, 242, 242)")
    # in another notation, and half transparent over the page's background
    apply(tab.page, "#remora-tab { color: oklab(1 0 0 / .8) !important; }")
    wait_for_colour(tab.page, "color", "rgb(207, 210, 214)")


def test_a_change_of_theme_is_followed_while_the_page_is_open(tab: Tab) -> None:
    page = tab.page
    page.emulate_media(color_scheme="dark")
    apply(page, ":root { color-scheme: light dark; } html, body, html * { background: none !important; }")
    wait_for_colour(page, "backgroundColor", "rgb(18, 18, 18)")
    page.emulate_media(color_scheme="light")
    wait_for_colour(page, "backgroundColor", "rgb(255, 255, 255)")
    # a class of the page, and half transparent panels over each other
    apply(page, "body.night { background: #002 !important; transition: background 1s; }")
    apply(page, "body.night #loras { background: rgb(255 255 255 / .2) !important; }")
    page.evaluate("document.body.classList.add('night')")
    wait_for_colour(page, "backgroundColor", "rgb(51, 51, 78)")
    wait_for_colour(page, "colorScheme", "dark")


def test_the_colour_of_what_is_chosen_is_that_of_the_page(tab: Tab) -> None:
    tab.insert("zorp")
    unset = ":root, body, .gradio-container, .gradio-container * { --color-accent: ; --primary-500: nonsense; }"
    apply(tab.page, f"{unset} :root {{ --sd-main-accent-color: rebeccapurple; }} {background('#fff')}")
    tab.pane("Library")
    edge = f"getComputedStyle({SHADOW}.querySelector('.rt-used .rt-pick')).outlineColor"
    tab.page.wait_for_function(f"{edge} === 'rgb(102, 51, 153)'")


@pytest.mark.quick
def test_no_style_of_the_tab_is_in_the_page(tab: Tab) -> None:
    rules = "[...document.styleSheets].flatMap(sheet => [...sheet.cssRules]).map(rule => rule.cssText)"
    found = tab.page.evaluate(rules)
    assert found
    assert [rule for rule in found if "rt-" in rule.replace("start-", "") or "remora-tab" in rule] == []
    assert tab.page.evaluate(f"[document.adoptedStyleSheets.length, {SHADOW}.adoptedStyleSheets.length]") == [0, 1]


HEARD = """
window.heard = [];
for (const type of ['keydown', 'keypress', 'keyup'])
    for (const target of [document, window]) target.addEventListener(type, event => window.heard.push(event.key));
"""


def test_keys_that_are_pressed_in_the_tab_stay_in_it(tab: Tab) -> None:
    page = tab.page
    page.evaluate(HEARD)
    heard = lambda: page.evaluate("window.heard.splice(0)")  # noqa: E731
    search = tab.root.get_by_role("searchbox", name="Search LoRA")
    search.press_sequentially("zo")
    search.press("Escape")
    search.press("Alt+Enter")
    assert heard() == []
    search.fill("")
    tab.button("Insert neon into the prompt").press("ArrowRight")
    page.wait_for_function(f"{SHADOW}.activeElement.getAttribute('aria-label') === 'Insert night into the prompt'")
    page.keyboard.press("/")
    assert search.evaluate("element => element === element.getRootNode().activeElement")
    for outside in (False, True):
        tab.button("About zorp").click()
        dialog = page.get_by_role("dialog", name="zorp")
        dialog.get_by_text("Trigger words").wait_for(timeout=LONG)
        if outside:  # of every control: the focus is not the page's then
            dialog.get_by_role("heading", name="zorp").click()
        page.keyboard.press("Escape")
        dialog.wait_for(state="hidden")
        assert heard() == []
        assert page.evaluate(f"{SHADOW}.activeElement.getAttribute('aria-label')") == "About zorp"
    page.locator(tab.prompt_selector).press("End")
    assert "End" in heard(), "other keys are the page's"


def test_regions_are_drawn_again_in_the_colours_of_the_new_theme(tab: Tab) -> None:
    tab.write("<lora:zorp:1:mask=left>")
    tab.more("zorp", "Region")
    tab.root.locator(".rt-region canvas").wait_for(timeout=LONG)
    drawn = f"[...{SHADOW}.querySelector('.rt-region canvas').getContext('2d').getImageData(2, 9, 1, 1).data].join()"
    tab.page.wait_for_function(f"{drawn} !== '0,0,0,0'")
    before = tab.page.evaluate(drawn)
    apply(tab.page, "* { --color-accent: rebeccapurple !important; }")
    tab.page.wait_for_function(f"before => {drawn} !== before", arg=before)


def test_the_tab_is_mounted_again_where_the_page_replaces_its_element(tab: Tab) -> None:
    page = tab.page
    apply(page, HOSTILE + background("#000"))
    page.evaluate("document.getElementById('remora-tab').outerHTML = '<div id=remora-tab></div>'")
    tab.button("Insert zorp into the prompt").wait_for(timeout=LONG)
    wait_for_colour(page, "backgroundColor", "rgb(0, 0, 0)")
    tab.insert("zorp")
    tab.prompt_is("<lora:zorp:1> zorp")


def test_a_style_sheet_that_cannot_be_loaded_is_said_in_place_of_the_tab(served: Served, browser: Any) -> None:
    page = shared_context(browser).new_page()
    try:
        page.route("**/remora/app/tab.css", lambda route: route.fulfill(status=503, body="no"))
        page.goto(served.url)
        page.get_by_text("the web UI answered 503 to GET tab.css").wait_for(timeout=LONG)
    finally:
        page.close()
