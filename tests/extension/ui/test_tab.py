"""The tab in a real browser: find, stack, tune, keep, see what became of it; and what is done wrong."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from extension.infotext import Infotext, parse_infotext
from extension.standalone.demo import Demo
from extension.standalone.pnginfo import read_infotext
from tests.extension.ui.serving import LONG, Served, infotext_with, opened, serving

pytestmark = pytest.mark.browser
PROMPT = "#prompt textarea"


@pytest.fixture(autouse=True)
def empty_stack(served: Served) -> None:
    httpx.put(f"{served.url}/remora/v1/stack", json={}).raise_for_status()


def row(page: Any, name: str) -> Any:
    return page.locator("#remora-tab .rt-rows > li").filter(has_text=name)


def add(page: Any, *names: str) -> None:
    for name in names:
        page.get_by_role("button", name=f"Add {name} to the stack").click()
    saved(page)


def saved(page: Any) -> None:
    """Wait until the server has what the page shows."""
    page.wait_for_timeout(300)  # in which the page waits for further changes
    page.get_by_text("Saved.").wait_for(timeout=LONG)


def kept(served: Served) -> Any:
    return httpx.get(f"{served.url}/remora/v1/stack").json()


@dataclass(frozen=True)
class Made:
    """A picture and its parameters."""

    pixels: bytes
    parameters: Infotext


def make(page: Any, served: Served, prompt: str) -> Made:
    """Make a picture by the page; what is made is seen where it is saved, as a quick one comes and goes unseen."""
    before = set(served.pictures.glob("*.png"))
    page.fill(PROMPT, prompt)
    page.click("#generate")
    infotext_with(page, prompt)
    deadline = time.monotonic() + LONG / 1000
    while not (made := set(served.pictures.glob("*.png")) - before):
        assert time.monotonic() < deadline, "no picture was made"
        page.wait_for_timeout(50)
    page.wait_for_selector("#generate:not([disabled])", timeout=LONG)
    with Image.open(made.pop()) as image:
        return Made(image.tobytes(), parse_infotext(read_infotext(image)))


def test_what_is_found_is_searched_and_refreshed(page: Any, served: Served) -> None:
    search = page.get_by_role("searchbox", name="Search LoRA")
    linear = page.get_by_role("button", name="Add zorp to the stack")
    search.fill("PES stri")
    linear.wait_for(state="detached")
    page.get_by_text("1 LoRA", exact=True).wait_for()
    search.fill("none <b>like</b> it")
    page.get_by_text("No LoRA has “none <b>like</b> it” in its name.").wait_for()
    search.fill("")
    linear.wait_for()
    folder = served.loras / "sub"
    folder.mkdir()
    try:
        (folder / "<img src=x onerror=alert(1)>.safetensors").write_bytes(b"x" * 100)
        (folder / "a new one.safetensors").write_bytes((served.loras / "zorp.safetensors").read_bytes())
        page.get_by_role("button", name="Look for LoRA files again").click()
        page.get_by_role("button", name="Add a new one to the stack").get_by_text("zorp · sub ·").wait_for()
        unusable = page.locator(".rt-unreadable").filter(has_text="<img src=x onerror=alert(1)>")
        unusable.get_by_text("no safetensors").or_(unusable.get_by_text(".safetensors:")).first.wait_for()
        assert page.locator("#remora-tab img").count() == 0
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        httpx.post(f"{served.url}/remora/v1/refresh")


def test_a_stack_that_is_always_on_changes_the_picture_and_its_parameters_say_so(page: Any, served: Served) -> None:
    plain = make(page, served, "a fox")
    add(page, "zorp")
    assert make(page, served, "a fox") == plain  # it waits
    page.get_by_label("Always on").check()
    saved(page)
    always = make(page, served, "a fox")
    assert always.parameters.settings["Remora stack"] == "<lora:zorp:1>"
    assert always.pixels != plain.pixels
    row(page, "zorp").get_by_text("✓ applied: 264 of 264 layers").wait_for()
    page.get_by_label("zorp on").uncheck()
    saved(page)
    assert make(page, served, "a fox") == plain


def test_strengths_are_set_by_slider_and_by_number_tied_or_apart(page: Any, served: Served) -> None:
    add(page, "zorp")
    number = page.get_by_role("spinbutton", name="UNet strength of zorp")
    number.fill("0.65")
    saved(page)
    text = page.get_by_role("spinbutton", name="Text strength of zorp")
    assert text.input_value() == "0.65"
    page.get_by_role("button", name="Same strength for both, zorp").click()
    slider = page.get_by_role("slider", name="Text strength of zorp, slider")
    slider.focus()
    page.keyboard.press("ArrowRight")
    saved(page)
    assert kept(served)["entries"] == [{"name": "zorp", "on": True, "unet": 0.65, "text_encoder": 0.7}]
    number.fill("5.5")  # past the slider
    saved(page)
    assert kept(served)["entries"][0]["unet"] == 5.5


def test_a_strength_that_is_no_number_is_said_in_place_and_nothing_is_lost(page: Any, served: Served) -> None:
    add(page, "zorp")
    number = page.get_by_role("spinbutton", name="UNet strength of zorp")
    number.fill("")
    row(page, "zorp").get_by_text("Type a number, as in 0.8").wait_for()
    assert number.get_attribute("aria-invalid") == "true"
    number.blur()
    assert (number.input_value(), number.get_attribute("aria-invalid")) == ("1", None)
    number.fill("1e300")
    page.get_by_role("alert").get_by_text("the strength for the UNet must be a number, not 1e+300").wait_for()
    assert kept(served)["entries"][0]["unet"] == 1.0
    number.fill("0.5")
    saved(page)
    page.get_by_role("alert").get_by_text("must be a number").wait_for(state="hidden")
    assert kept(served)["entries"][0]["unet"] == 0.5


def test_rows_are_moved_and_removed_by_keyboard(page: Any, served: Served) -> None:
    add(page, "zorp", "stripes")
    page.get_by_role("button", name="Move stripes up").focus()
    page.keyboard.press("Enter")
    saved(page)
    assert [entry["name"] for entry in kept(served)["entries"]] == ["stripes", "zorp"]
    focused = "document.activeElement.getAttribute('aria-label')"
    assert page.evaluate(focused) == "Move stripes down"  # it is at the top now
    page.get_by_role("button", name="Remove stripes").focus()
    page.keyboard.press("Enter")
    saved(page)
    assert [entry["name"] for entry in kept(served)["entries"]] == ["zorp"]
    assert page.evaluate(focused) == "zorp on"


def test_a_lora_is_in_the_stack_once(page: Any, served: Served) -> None:
    add(page, "zorp")
    page.get_by_role("button", name="Add zorp to the stack").click()
    assert row(page, "zorp").count() == 1


def test_the_stack_goes_into_the_prompt_and_nothing_else_there_is_touched(page: Any, served: Served) -> None:
    add(page, "zorp", "stripes")
    page.get_by_role("spinbutton", name="UNet strength of zorp").fill("0.5")
    page.get_by_label("stripes on").uncheck()
    page.fill(PROMPT, "a <lora:zorp:1:2> fox  (red:1.2)")
    page.get_by_role("button", name="Insert the stack into the prompt").click()
    assert page.input_value(PROMPT) == "a <lora:zorp:0.5> fox  (red:1.2)"
    page.get_by_role("button", name="Insert stripes into the prompt").click()
    assert page.input_value(PROMPT) == "a <lora:zorp:0.5> fox  (red:1.2) <lora:stripes:1>"
    made = make(page, served, page.input_value(PROMPT))  # the page knows of it, too
    assert made.parameters.prompt.endswith("<lora:stripes:1>")
    row(page, "stripes").get_by_text("✓ applied: 278 of 278 layers").wait_for()
    page.get_by_role("button", name="Remove stripes").click()
    page.get_by_role("list", name="Other LoRA of the latest picture").get_by_text("✓ applied: 278 of 278").wait_for()


def test_the_stack_is_copied_as_a_prompt(served: Served, browser: Any) -> None:
    with opened(served, browser, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.get_by_role("button", name="Copy the stack as a prompt").click()
        page.get_by_text("No LoRA of the stack is on.").wait_for()
        add(page, "zorp", "stripes")
        page.get_by_role("button", name="Copy the stack as a prompt").click()
        page.get_by_text("Copied: <lora:zorp:1> <lora:stripes:1>").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == "<lora:zorp:1> <lora:stripes:1>"


def test_where_copying_is_not_allowed_the_text_is_shown(page: Any) -> None:
    page.evaluate(
        "() => { document.execCommand = () => false; navigator.clipboard.writeText = () => Promise.reject(1) }"
    )
    add(page, "zorp")
    page.get_by_role("button", name="Copy the stack as a prompt").click()
    assert page.get_by_role("textbox", name="The stack as a prompt").input_value() == "<lora:zorp:1>"


def test_a_file_that_goes_while_the_page_is_open_is_said_where_it_is_used(page: Any, served: Served) -> None:
    path = served.loras / "short-lived.safetensors"
    path.write_bytes((served.loras / "zorp.safetensors").read_bytes())
    page.get_by_role("button", name="Look for LoRA files again").click()
    page.get_by_role("button", name="Add short-lived to the stack").wait_for()
    path.unlink()
    page.get_by_role("button", name="Add short-lived to the stack").click()
    page.get_by_role("alert").get_by_text("LoRA 'short-lived' is not in the LoRA folders").wait_for()
    page.get_by_role("button", name="Remove short-lived").click()
    saved(page)
    assert kept(served)["entries"] == []


def test_what_a_picture_failed_for_is_told_at_its_row(page: Any, served: Served) -> None:
    path = served.loras / "short-lived.safetensors"
    path.write_bytes((served.loras / "zorp.safetensors").read_bytes())
    page.get_by_role("button", name="Look for LoRA files again").click()
    page.get_by_label("Always on").check()
    add(page, "short-lived")
    path.unlink()
    page.fill(PROMPT, "a fox")
    page.click("#generate")
    row(page, "short-lived").get_by_text("✕ missing: of the always-on stack: LoRA 'short-lived' is not").wait_for(
        timeout=LONG
    )


def test_a_lora_for_other_models_is_warned_of_at_its_row(served: Served, browser: Any) -> None:
    sentence = "made for Stable Diffusion XL, the loaded model is Stable Diffusion 1.x: 1 of 2 layers fit"
    lora = {
        "name": "zorp",
        "state": "partly",
        "reason": "1 of 2 layers fit this model",
        "hit": 1,
        "layers": 2,
        "warning": sentence,
        "format": "kohya",
        "family": {"name": "sdxl", "title": "Stable Diffusion XL", "sure": True},
        "base_model": "<b>pony</b>",
        "kinds": {"lora": 2},
        "ranks": [4, 8],
        "unused": {"of another shape": ["a.lora_up.weight"]},
        "details": {"a.lora_up.weight": "want up (4, r), got (8, 2)"},
    }

    def answer(route: Any) -> None:
        state = route.fetch().json() | {"loras": [lora]}
        route.fulfill(content_type="application/json", body=json.dumps(state))

    with opened(served, browser, before=lambda page: page.route("**/remora/v1/state", answer)) as page:
        add(page, "zorp")
        own = row(page, "zorp")
        own.get_by_role("alert").get_by_text(sentence).wait_for(timeout=LONG)
        own.get_by_text("2 lora · rank 4 to 8 · kohya · for Stable Diffusion XL · made from <b>pony</b>").wait_for()
        own.get_by_text("Which keys").click()
        own.get_by_text("of another shape: a.lora_up.weight (want up (4, r), got (8, 2))").wait_for()


def test_a_stack_is_there_when_the_page_is_opened_again(served: Served, browser: Any) -> None:
    with opened(served, browser) as page:
        add(page, "stripes")
    with opened(served, browser) as page:
        row(page, "stripes").wait_for(timeout=LONG)


def test_it_fits_a_phone_in_light_and_dark(served: Served, browser: Any) -> None:
    colours = set()
    for theme in ("light", "dark"):
        context = {"viewport": {"width": 380, "height": 800}, "color_scheme": theme}
        with opened(served, browser, **context) as page:
            page.get_by_role("button", name="Add zorp to the stack").wait_for(timeout=LONG)
            add(page, "zorp")
            box = page.evaluate(
                "[...document.querySelectorAll('#remora-tab *')].map(e => e.getBoundingClientRect())"
                ".filter(r => r.width).reduce((a, r) => [Math.min(a[0], r.left), Math.max(a[1], r.right)], [380, 0])"
            )
            assert box[0] >= 0
            assert box[1] <= 380
            assert page.evaluate("document.documentElement.scrollWidth") <= 380
            colours.add(page.evaluate("getComputedStyle(document.querySelector('#remora-tab')).color"))
        httpx.put(f"{served.url}/remora/v1/stack", json={})
    assert len(colours) == 2


def test_every_control_has_a_name(page: Any) -> None:
    add(page, "zorp")
    nameless = page.evaluate(
        """[...document.querySelectorAll('#remora-tab :is(button, input, textarea)')]
        .filter(e => !e.getAttribute('aria-label') && !e.labels?.length && !e.textContent.trim())
        .map(e => e.outerHTML)"""
    )
    assert nameless == []


def test_a_damaged_stack_is_told_in_the_page(demo: Demo, tmp_path: Path, browser: Any) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "stack.json").write_text("{")
    with (
        serving(tmp_path, demo.loras, [f"--model={demo.model}", f"--lora-dir={demo.loras}"]) as served,
        opened(served, browser) as page,
    ):
        page.get_by_text("it is kept as stack.damaged-1.json").wait_for(timeout=LONG)


def test_a_web_ui_that_asks_for_a_password_gets_it(served: Served, browser: Any) -> None:
    asked: list[str | None] = []

    def answer(route: Any) -> None:
        authorization = route.request.headers.get("authorization")
        asked.append(authorization)
        if authorization == "Basic dMO8OnA=":  # tü:p
            route.continue_()
        else:
            detail = "the user and password of the web UI's API are needed"
            route.fulfill(status=401, content_type="application/json", body=json.dumps({"detail": detail}))

    with opened(served, browser, before=lambda page: page.route("**/remora/v1/**", answer)) as page:
        page.get_by_role("alert").get_by_text("are needed").wait_for(timeout=LONG)
        page.get_by_label("User").fill("tü")
        page.get_by_label("Password").fill("p")
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("button", name="Add zorp to the stack").wait_for(timeout=LONG)
        page.get_by_label("Password").wait_for(state="hidden")
    assert asked[0] is None


def test_a_web_ui_that_is_gone_is_said_and_found_again(page: Any) -> None:
    page.route("**/remora/v1/**", lambda route: route.abort())
    page.get_by_role("alert").get_by_text("The web UI does not answer.").wait_for(timeout=LONG)
    page.unroute("**/remora/v1/**")
    page.get_by_role("alert").get_by_text("The web UI does not answer.").wait_for(state="hidden", timeout=LONG)
