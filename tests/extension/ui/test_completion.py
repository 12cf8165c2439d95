"""Suggestions while the user types in a prompt box, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.extension.ui.serving import LONG, Served, opened, opened_small
from tests.extension.ui.tab import Tab
from tests.extension.ui.test_accessibility import faults

pytestmark = pytest.mark.browser

BOX = "#prompt textarea"
HOST = Path(__file__).with_name("host_page.html")
MANY = 10_000
FRAME = 16.0
"""Milliseconds that a key may take."""


class Typing:
    """A page whose prompt box the user types in."""

    def __init__(self, page: Any, box: str = BOX) -> None:
        self.page = page
        self.box = page.locator(box)
        self.options = page.locator("#remora-completion [role=option]")

    def begin(self, text: str = "") -> Typing:
        """Go to the box, and wait until all that is suggested is there."""
        self.box.fill(text)
        self.box.press("End")
        state = "const {loaded, blocks, regions} = window.remoraTab?.state ?? {}"
        there = f"() => {{ {state}; return loaded && blocks && regions; }}"
        self.page.wait_for_function(there, timeout=LONG)
        return self

    def type(self, text: str, delay: float = 0) -> None:
        self.page.keyboard.type(text, delay=delay)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    @property
    def text(self) -> str:
        return str(self.box.input_value())

    @property
    def labels(self) -> list[str]:
        """What is suggested, each up to its first comma."""
        return [str(one.get_attribute("aria-label")).partition(", ")[0] for one in self.options.all()]

    @property
    def chosen(self) -> str | None:
        """The suggestion that a screen reader is told of."""
        id = self.box.get_attribute("aria-activedescendant")  # noqa: A001  # of the element
        return None if id is None else str(self.page.locator(f"#{id}").get_attribute("aria-label"))


def test_a_tag_is_typed_with_the_keyboard_alone(served: Served, browser: Any) -> None:
    with opened_small(served, browser) as page:
        typing = Typing(page).begin("a fox ")
        typing.type("<lora:st")
        assert typing.labels == ["stars", "stripes"]
        assert typing.chosen is not None
        assert typing.chosen.startswith("stars")
        assert typing.box.get_attribute("aria-autocomplete") == "list"
        assert page.locator(f"#{typing.box.get_attribute('aria-controls')}").get_attribute("role") == "listbox"
        page.get_by_text("2 suggestions").wait_for()
        typing.press("ArrowDown")
        assert typing.chosen.startswith("stripes")
        typing.press("ArrowDown", "ArrowUp", "Enter")
        assert typing.text == "a fox <lora:stripes:1>"
        assert typing.options.count() == 0
        assert typing.box.get_attribute("aria-controls") is None
        page.wait_for_function("window.remoraTab.state.prompt.includes('stripes')")
        typing.press("Control+z")
        assert typing.text == "a fox <lora:st", "the browser's own undo"


def test_fields_and_values(served: Served, browser: Any) -> None:
    with opened_small(served, browser) as page:
        typing = Typing(page).begin()
        typing.type("<lora:zorp:1:ma")
        assert typing.labels == ["mask="]
        typing.press("Tab")
        assert typing.text == "<lora:zorp:1:mask="
        assert typing.labels[:2] == ["left", "right"]
        typing.press("ArrowDown", "Enter")
        typing.type("+!")
        typing.type("left t")
        assert typing.labels == ["left third"]
        typing.press("Enter")
        typing.type(":lbw=out")
        assert typing.labels[0] == "OUTD"
        typing.type("a")
        typing.press("Enter")
        typing.type(">")
        assert typing.text == "<lora:zorp:1:mask=right+!left third:lbw=OUTALL>"
        assert page.evaluate("window.remoraTab.stack.tags()[0].problem") == ""


def test_trigger_words_leave_enter_and_tab_to_the_page_until_one_is_chosen(served: Served, browser: Any) -> None:
    with opened_small(served, browser) as page:
        typing = Typing(page).begin("<lora:zorp:1> a ")
        typing.type("zo")
        assert typing.labels == ["zorp"]
        assert typing.chosen is None
        typing.press("Enter")
        assert typing.text == "<lora:zorp:1> a zo\n"
        typing.type("zo")
        typing.press("ArrowDown", "Enter")
        assert typing.text == "<lora:zorp:1> a zo\nzorp"
        typing.type(", zo")
        assert typing.labels == [], "the prompt has the word"
        typing.press("Tab")
        assert page.evaluate("document.activeElement.tagName") != "BODY"
        assert not page.evaluate(f"document.activeElement.matches('{BOX}')")


def test_keys_of_the_page_are_its_own(served: Served, browser: Any) -> None:
    with opened_small(served, browser) as page:
        page.evaluate("""() => {
            window.heard = [];
            document.addEventListener("keydown", (event) => window.heard.push(event.key));
        }""")
        typing = Typing(page).begin()
        page.evaluate("window.heard.length = 0")
        typing.type("<")
        typing.press("Escape")
        assert page.evaluate("window.heard") == ["<", "Escape"]
        typing.type("lora:z")
        assert typing.labels[0] == "zorp"
        page.evaluate("window.heard.length = 0")
        typing.press("Control+Enter")
        assert page.evaluate("window.heard") == ["Control", "Enter"]
        typing.type("o")
        page.evaluate("window.heard.length = 0")
        typing.press("Escape")
        assert page.evaluate("window.heard") == [], "else it may interrupt a picture"
        assert typing.options.count() == 0
        typing.type("r")
        typing.press("ArrowLeft")
        page.wait_for_function("!document.querySelector('#remora-completion [role=option]')")
        assert typing.text == "<lora:zor"


def test_a_click_takes_a_suggestion_and_the_box_keeps_the_focus(served: Served, browser: Any) -> None:
    with opened_small(served, browser) as page:
        typing = Typing(page).begin()
        typing.type("<lora:neo")
        typing.options.first.click()
        assert typing.text == "<lora:neon:1>"
        typing.type(" x")
        assert typing.text == "<lora:neon:1> x"
        typing.type(" <lora:n")
        page.locator("#negative textarea").focus()
        assert typing.options.count() == 0
        negative = Typing(page, "#negative textarea")
        negative.type("<lora:zo")
        negative.press("Enter")
        assert negative.text == "<lora:zorp:1>"


def test_no_key_sends_a_request_and_pictures_come_after_a_pause(served: Served, browser: Any) -> None:
    with opened_small(served, browser) as page:
        typing = Typing(page).begin()
        page.route("**/remora/v1/state", lambda route: route.abort())  # polled
        page.wait_for_timeout(500)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url.partition("/remora/v1/")[2]))
        typing.type("<lora:stri")
        typing.press("Enter")
        typing.type("a stri <lora:zorp:1:lbw=OUT:mask=lef:")
        page.wait_for_timeout(100)
        assert [one for one in asked if one != "state"] == []
        typing.press("Escape")
        typing.type(" <lora:nig")
        picture = page.locator("#remora-completion img")
        assert picture.count() == 0
        picture.wait_for()
        assert {one.partition("?")[0] for one in asked if one != "state"} <= {"thumbnail"}


def test_it_can_be_switched_off_and_steps_aside(served: Served, browser: Any) -> None:
    with opened_small(served, browser) as page:
        typing = Typing(page).begin()
        tab = Tab(page).ready()
        choice = tab.root.get_by_role("checkbox", name="Suggest LoRA and trigger words in the prompt box")
        choice.uncheck()
        typing.box.focus()
        typing.type("<lora:z")
        assert typing.options.count() == 0
        page.reload()
        tab.ready()
        assert not choice.is_checked(), "the browser remembers it"
        choice.check()
        typing.begin("<lora:")
        typing.type("z")
        assert typing.options.count() == 1
        typing.press("Backspace")
        # as tagcomplete marks a box that it completes
        page.evaluate(f"""() => {{
            const box = document.querySelector("{BOX}");
            const results = Object.assign(document.createElement("div"), {{className: "autocompleteResults"}});
            box.classList.add("autocomplete");
            box.after(results);
        }}""")
        typing.type("z")
        assert typing.options.count() == 0
        page.evaluate("window.remoraTab.set({version: 99})")
        tab.root.get_by_text("Off: something else in this page completes prompts.").wait_for()
        assert choice.is_disabled()


def test_the_prompt_of_a_host_is_completed_while_the_tab_is_hidden(served: Served, browser: Any) -> None:
    html = HOST.read_text("utf-8").replace('class="off"', "").replace('id="tab_remora"', 'id="tab_remora" class="off"')

    def host(page: Any) -> None:
        page.route(f"{served.url}/", lambda route: route.fulfill(body=html, content_type="text/html"))

    with opened(served, browser, host) as page:
        page.wait_for_function("window.remoraTab")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.wait_for_timeout(300)
        assert asked == [], "nothing before the user goes to a prompt"
        typing = Typing(page, "#txt2img_prompt textarea").begin()
        typing.type("<lora:zo")
        typing.press("Enter")
        assert typing.text == "<lora:zorp:1>"
        # as A1111, whose fonts are those of a part of its page
        page.locator("#txt2img_prompt").evaluate("part => { part.style.fontFamily = 'Marker' }")
        typing.type(" <lora:ni")
        label = "list => getComputedStyle(list.firstChild.shadowRoot.querySelector('.rt-choice-label')).fontFamily"
        assert page.locator("#remora-completion").evaluate(label) == "Marker"
        typing.press("Escape")
        negative = Typing(page, "#txt2img_neg_prompt textarea").begin()
        negative.type("<lora:ni")
        assert negative.labels[0] == "night"
        # as SD.Next, whose list is always there
        page.evaluate("""() => {
            window.opts = {autocomplete_active: false};
            document.body.append(Object.assign(document.createElement("div"), {className: "autocompleteResults"}));
        }""")
        negative.type("g")
        assert negative.labels[0] == "night"
        page.evaluate("window.opts.autocomplete_active = true")
        negative.type("h")
        assert negative.options.count() == 0


def test_the_words_and_the_strength_of_a_file_and_a_file_that_does_not_fit(served: Served, browser: Any) -> None:
    def other(route: Any) -> None:
        told = route.fetch().json()
        for lora in told["loras"]:
            if lora["name"] == "night":
                lora["family"] = "else"
            if lora["name"] == "neon":
                lora.update(strength=0.65, words="neon lights", uses=3)
        told["families"]["else"] = {"name": "else", "title": "Else", "fits": False, "reason": "made for Else"}
        route.fulfill(json=told)

    with opened_small(served, browser, lambda page: page.route("**/remora/v1/loras?*", other)) as page:
        typing = Typing(page).begin()
        # as SD.Next's dark page, whose body is white
        page.locator("#prompt textarea").evaluate(
            "box => { box.style.background = '#090928'; box.style.color = 'white' }"
        )
        typing.type("<lora:n")
        frame = "box => getComputedStyle(box.parentElement.shadowRoot.querySelector('.rt-completion')).backgroundColor"
        assert page.locator("#remora-completion").evaluate(frame) == "rgb(9, 9, 40)"
        spoken = [str(one.get_attribute("aria-label")) for one in typing.options.all()]
        assert spoken[0] == "neon, strength 0.65, neon lights"
        assert spoken[-1] == "night, made for Else"
        typing.press("Enter")
        assert typing.text == "<lora:neon:0.65>"


@pytest.mark.parametrize(("theme", "width"), [("light", 1400), ("dark", 390)])
def test_axe_finds_no_fault(served: Served, browser: Any, theme: str, width: int) -> None:
    phone = width == 390
    look = {"color_scheme": theme, "viewport": {"width": width, "height": 800}}
    with opened_small(served, browser, **look, has_touch=phone, is_mobile=phone) as page:
        typing = Typing(page).begin()
        for text in ("<lora:", "zorp:", "mask=", "left>zo"):
            typing.type(text)
            typing.options.first.wait_for()
            assert faults(page, "#remora-completion") == [], text
            assert faults(page, "#prompt") == [], text
            width_of = "document.documentElement.scrollWidth"
            assert page.evaluate(width_of) <= width, "the list makes the page no wider"
            boxes = [one.bounding_box() for one in typing.options.all()[:5]]
            assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
            assert not phone or min(box["height"] for box in boxes) >= 32, "a finger needs 32 pixels"


def many(served: Served) -> Callable[[Any], None]:
    """Return what answers with ten thousand files."""
    told = httpx.get(f"{served.url}/remora/v1/loras").json()
    parts = ["style", "ink", "of", "night", "portrait", "v2", "anime", "detail", "slider", "xl"]
    first = told["loras"][0]
    files = []
    for at in range(MANY):
        name = "_".join(parts[one % 10] for one in (at, at * 7, at * 13)) + str(at)
        files.append({**first, "id": f"i{at}", "name": name, "alias": name, "file": name, "picture": ""})
        files[-1].update(words=f"word{at}, {parts[at % 7]} light", uses=at % 5)
    body = json.dumps({**told, "loras": files, "whole": True, "gone": []})
    return lambda route: route.fulfill(body=body, content_type="application/json")


class Clock:
    """The time that the page's thread computes for: what else runs on the machine does not count."""

    def __init__(self, page: Any) -> None:
        self.session = page.context.new_cdp_session(page)
        self.session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def milliseconds(self, *parts: str) -> float:
        told = {one["name"]: one["value"] for one in self.session.send("Performance.getMetrics")["metrics"]}
        return 1000 * float(sum(told[f"{part}Duration"] for part in parts or ("Script", "Layout", "RecalcStyle")))


@pytest.mark.long  # other programs make a key slow, too
def test_a_key_takes_no_frame_among_ten_thousand_files(served: Served, browser: Any) -> None:
    answer = many(served)
    with opened_small(served, browser, lambda page: page.route("**/remora/v1/loras?*", answer)) as page:
        typing = Typing(page).begin()
        page.wait_for_function(f"window.remoraTab.library.catalog.all.length === {MANY}", timeout=LONG)
        # as in web UIs that have it in another tab; else what it draws itself comes on top
        page.evaluate("document.getElementById('remora-tab').style.display = 'none'")
        page.wait_for_timeout(500)
        clock = Clock(page)
        times = []
        for letter in "<lora:night_po:0.8:mask=le> word <lora:xlx nghtprt":
            before = clock.milliseconds()
            typing.type(letter)
            times.append(clock.milliseconds() - before)
        assert max(times) < FRAME, times
