"""Remora on the LoRA cards of web UIs, in a real browser, on a page that stands in for theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.extension.ui.serving import LONG, Served, opened, until
from tests.extension.ui.test_accessibility import faults
from tests.extension.ui.test_completion import MANY, Clock, many

pytestmark = pytest.mark.browser

PAGE = Path(__file__).with_name("cards_page.html")
NAMES = ("neon", "night", "outline", "stars", "stripes", "zorp")
NAMED = "({file}) => [file, `/loras/${file}.safetensors`]"
FRAME = 16.0
"""Milliseconds of script that a change may take."""
SHOWN = "document.querySelectorAll('.card > span[style*=unset]')"
"""The badges that the page has."""


def told(route: Any) -> None:
    """Answer with a file of a preferred strength, one that does not fit, and one that cannot be used."""
    answer = route.fetch().json()
    changes: dict[str, dict[str, Any]] = {
        "neon": {"strength": 0.65},
        "night": {"family": "else"},
        "stars": {"readable": False, "reason": "it is cut off"},
    }
    for lora in answer["loras"]:
        lora.update(changes.get(lora["name"], {}))
    answer["families"]["else"] = {"name": "else", "title": "Else", "fits": False, "reason": "made for Else"}
    route.fulfill(json=answer)


class Cards:
    """A page with cards of one web UI."""

    def __init__(self, page: Any, served: Served, host: str) -> None:
        self.page, self.served, self.host = page, served, host

    def show(self, *names: str) -> Cards:
        """Make the list anew."""
        files = [[name, str(self.served.loras / f"{name}.safetensors")] for name in names or NAMES]
        self.page.evaluate("([host, files]) => show(host, files)", [self.host, files])
        return self

    def badge(self, name: str) -> Any:
        return self.page.locator(f".card[data-name='{name}']").get_by_role("button")

    def labels(self, count: int = len(NAMES)) -> list[str]:
        """Return what the badges say, once there are as many and the loaded model is known."""
        shown = f"count => {SHOWN}.length === count && (count === 0 || window.remoraTab.state.server)"
        self.page.wait_for_function(shown, arg=count, timeout=LONG)
        return self._labels()

    def names(self) -> list[str]:
        """Return the names of the cards that have a badge now, in their order."""
        return [label.partition(":")[0] for label in self._labels()]

    def _labels(self) -> list[str]:
        said = "shown => [...shown].map((one) => one.shadowRoot.querySelector('button').getAttribute('aria-label'))"
        labels: list[str] = self.page.evaluate(f"() => ({said})({SHOWN})")
        return labels

    def replace_first(self, name: str) -> None:
        """Replace one card, as A1111 does after a change of its user metadata."""
        fragment = "document.createRange().createContextualFragment(MARKUP[host](name, path))"
        page = f"([host, name, path]) => at('txt2img_lora_cards').children[0].replaceWith({fragment})"
        self.page.evaluate(page, [self.host, name, str(self.served.loras / f"{name}.safetensors")])

    @property
    def menu(self) -> Any:
        return self.page.get_by_role("menu")

    @property
    def prompt(self) -> str:
        return str(self.page.input_value("#txt2img_prompt textarea"))


@contextmanager
def cards_of(served: Served, browser: Any, host: str, **context: Any) -> Iterator[Cards]:
    def before(page: Any) -> None:
        html = PAGE.read_text("utf-8")
        its_own = re.compile(rf"{re.escape(served.url)}/(\?without)?$")
        page.route(its_own, lambda route: route.fulfill(body=html, content_type="text/html"))
        page.route("**/remora/v1/loras?*", told)

    with opened(served, browser, before, **context) as page:
        page.wait_for_function("window.remoraTab", timeout=LONG)
        yield Cards(page, served, host)
        page.unroute_all(behavior="wait")  # an answer may be on its way


@pytest.mark.parametrize("host", ["a1111", "sdnext", "list"])
def test_a_badge_says_fit_and_strength_and_its_menu_works_by_keyboard(served: Served, browser: Any, host: str) -> None:
    with cards_of(served, browser, host) as cards:
        page = cards.show().page
        # as A1111, whose fonts are those of a part of its page
        page.locator("#txt2img_lora_cards").evaluate("list => { list.style.fontFamily = 'Marker' }")
        assert cards.labels() == [
            "neon: fits the loaded model, Preferred strength 0.65",
            "night: does not fit, made for Else",
            "outline: fits the loaded model",
            "stars: problem, it is cut off",
            "stripes: fits the loaded model",
            "zorp: fits the loaded model",
        ]
        assert [cards.badge(name).inner_text().split() for name in ("neon", "night")] == [
            ["fits", "0.65", "⋯"],
            ["does", "not", "fit", "⋯"],
        ]
        assert cards.badge("night").get_attribute("title") == "made for Else"
        cards.badge("neon").focus()
        page.keyboard.press("Enter")
        assert cards.menu.get_attribute("aria-label") == "neon"
        assert cards.menu.evaluate("menu => getComputedStyle(menu).fontFamily") == "Marker"
        lines = ["Insert into the prompt", "Always on", "Pictures in the output folders", "About this LoRA"]
        assert (
            cards.menu.get_by_role("menuitem").or_(cards.menu.get_by_role("menuitemcheckbox")).all_inner_texts()
            == lines
        )
        page.keyboard.press("Enter")
        assert cards.prompt == "<lora:neon:0.65>"
        assert cards.menu.count() == 0
        page.get_by_text("neon inserted.").wait_for()
        page.keyboard.press("Enter")
        assert cards.menu.get_by_role("menuitem").first.inner_text() == "Remove from the prompt"
        page.keyboard.press("Escape")
        assert cards.menu.count() == 0
        page.keyboard.press("Enter")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        stack = f"{served.url}/remora/v1/stack"
        try:
            until(page, lambda: httpx.get(stack).json()["entries"])
            page.keyboard.press("Enter")
            assert cards.menu.get_by_role("menuitemcheckbox").get_attribute("aria-checked") == "true"
            page.keyboard.press("ArrowDown")
            page.keyboard.press("Enter")
            until(page, lambda: not httpx.get(stack).json()["entries"])
        finally:
            httpx.put(stack, json={})
        cards.badge("stars").click()
        assert cards.menu.get_by_role("menuitem").first.is_disabled()
        page.locator("#txt2img_prompt").click()
        assert cards.menu.count() == 0, "a click beside it"
        assert page.evaluate("clicked") == [], "a click on a badge is no click on the card"
        for keys, begins in ((["End"], False), (["End", "ArrowUp"], True)):
            page.get_by_role("button", name="txt2img", exact=True).click()
            cards.badge("zorp").focus()
            for key in ("Enter", *keys, "Enter"):
                page.keyboard.press(key)
            page.get_by_role("dialog", name="zorp").get_by_text("Trigger words").wait_for(timeout=LONG)
            section = page.get_by_role("dialog").locator("details", has_text="Pictures in the output folders")
            assert section.evaluate("section => section.open") is begins
            page.keyboard.press("Escape")
            page.get_by_role("dialog").wait_for(state="detached")
            page.wait_for_function("document.activeElement.id === 'remora-tab'")  # the badge is out of sight


def test_a_menu_stays_until_its_badge_moves(served: Served, browser: Any) -> None:
    scrolled = """async opens => {
        const list = at("txt2img_lora_cards");
        const told = new Promise(done => list.addEventListener("scroll", done, {once: true}));
        list.scrollTop += 20;
        if (opens) list.querySelector("[data-name=night] > span:last-child").shadowRoot.querySelector("button").click();
        await told;
    }"""
    with cards_of(served, browser, "a1111", viewport={"width": 390, "height": 800}) as cards:
        page = cards.show().page
        cards.badge("night").wait_for()
        page.evaluate(scrolled, True)
        assert cards.menu.count() == 1, "the page scrolled before the click, and said so after it"
        page.evaluate(scrolled, False)
        cards.menu.wait_for(state="detached")


def test_a_menu_is_on_the_screen_where_the_page_is_wider(served: Served, browser: Any) -> None:
    phone = {"viewport": {"width": 390, "height": 800}, "has_touch": True, "is_mobile": True}
    with cards_of(served, browser, "a1111", **phone) as cards:
        page = cards.show().page
        page.evaluate("document.querySelector('meta[name=viewport]').content = 'width=device-width, initial-scale=1'")
        page.evaluate("document.body.style.width = '600px'")
        page.wait_for_function("innerWidth > visualViewport.width")
        cards.badge("outline").evaluate("badge => badge.click()")  # the screen does not follow, as with a mouse
        box = cards.menu.bounding_box()
        right = page.evaluate("visualViewport.offsetLeft + visualViewport.width")
        assert box["x"] + box["width"] <= right


def test_cards_that_the_page_makes_anew_have_their_badges(served: Served, browser: Any) -> None:
    with cards_of(served, browser, "a1111") as cards:
        page = cards.show().page
        cards.labels()
        assert cards.names() == list(NAMES)
        page.evaluate("sort()")
        until(page, lambda: cards.names() == list(reversed(NAMES)))
        cards.show("zorp", "neon")
        until(page, lambda: cards.names() == ["zorp", "neon"], "refreshed")
        cards.replace_first("night")
        cards.badge("night").wait_for()
        assert cards.labels(2)[0] == "night: does not fit, made for Else", "one card alone"
        page.evaluate("at('txt2img_lora_cards').children[0].classList.add('hidden')")
        assert cards.labels(1) == ["neon: fits the loaded model, Preferred strength 0.65"], "a search"
        page.evaluate("at('txt2img_lora_cards').children[0].classList.remove('hidden')")
        assert len(cards.labels(2)) == 2, "and its end"
        cards.show("zorp", "unknown")
        cards.badge("zorp").wait_for()
        assert len(cards.labels(1)) == 1, "no file of this library"
        state = {**httpx.get(f"{served.url}/remora/v1/state").json(), "model": None}
        page.route("**/remora/v1/state", lambda route: route.fulfill(json=state))
        page.get_by_role("button", name="About zorp").wait_for()  # without a model it is not said that it fits


def test_it_can_be_switched_off(served: Served, browser: Any) -> None:
    with cards_of(served, browser, "sdnext") as cards:
        page = cards.show().page
        cards.labels()
        setting = page.get_by_role("checkbox", name="Show fit, strength and a menu")
        page.get_by_role("button", name="Remora", exact=True).click()
        setting.uncheck()
        page.get_by_role("button", name="txt2img", exact=True).click()
        page.wait_for_timeout(500)
        assert cards.labels(0) == []
        page.reload()
        page.wait_for_function("window.remoraTab", timeout=LONG)
        cards.show()
        page.wait_for_timeout(500)
        assert cards.labels(0) == [], "the browser remembers it"
        page.get_by_role("button", name="Remora", exact=True).click()
        setting.check()
        page.get_by_role("button", name="txt2img", exact=True).click()
        assert len(cards.labels()) == len(NAMES)


def test_a_page_without_the_hook_stays_as_it_is(served: Served, browser: Any) -> None:
    with cards_of(served, browser, "a1111") as cards:
        page = cards.page
        page.goto(f"{served.url}/?without")
        page.wait_for_function("window.remoraTab", timeout=LONG)
        cards.show()
        page.wait_for_timeout(500)
        assert cards.labels(0) == []
        page.get_by_role("button", name="Remora", exact=True).click()
        page.get_by_role("checkbox", name="Suggest LoRA and trigger words").wait_for()
        assert page.get_by_role("checkbox", name="Show fit").count() == 0


@pytest.mark.long  # other programs make a page slow, too
def test_only_cards_on_the_screen_are_touched_among_ten_thousand(served: Served, browser: Any) -> None:
    with cards_of(served, browser, "a1111") as cards:
        page = cards.page
        page.route("**/remora/v1/loras?*", many(served))
        page.evaluate("window.remoraTab.server.start()")
        page.wait_for_function(f"window.remoraTab.library.catalog.all.length === {MANY}", timeout=LONG)
        page.evaluate("at('txt2img_lora_pane').classList.add('off')")
        page.evaluate(f"show('a1111', window.remoraTab.library.catalog.all.map({NAMED}))")
        page.wait_for_timeout(1000)
        clock = Clock(page)

        def spent(change: str) -> float:
            """Return the milliseconds of script after a change, once there are badges on the screen alone."""
            before = clock.milliseconds("Script")
            page.evaluate(change)
            page.wait_for_function(f"{SHOWN}.length > 0", timeout=LONG)  # the page takes its time for so many cards
            page.wait_for_timeout(1000)
            assert page.evaluate(f"{SHOWN}.length") < 50
            return clock.milliseconds("Script") - before

        assert spent("at('txt2img_lora_pane').classList.remove('off')") < 3 * FRAME, "all cards are watched, once"
        later = [f"at('txt2img_lora_cards').scrollTop = {at} * 20_000" for at in range(1, 4)]
        times = {change: spent(change) for change in ("document.body.append('')", *later, "sort()")}
        assert max(times.values()) < FRAME, times


@pytest.mark.parametrize(("theme", "width"), [("light", 1400), ("dark", 390)])
def test_axe_finds_no_fault(served: Served, browser: Any, theme: str, width: int) -> None:
    look = {"color_scheme": theme, "viewport": {"width": width, "height": 800}}
    with cards_of(served, browser, "sdnext", **look, has_touch=width == 390, is_mobile=width == 390) as cards:
        page = cards.show().page
        cards.badge("night").wait_for()
        assert faults(page, "#txt2img_lora_cards") == []
        assert width > 390 or cards.badge("night").bounding_box()["height"] >= 32, "a finger needs 32 pixels"
        cards.badge("night").click()
        cards.menu.wait_for()
        page.evaluate("document.querySelector('body > div:last-child').id = 'menu'")
        assert faults(page, "#menu") == []
        box = cards.menu.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
