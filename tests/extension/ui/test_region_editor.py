"""The region of an entry, as a user chooses and paints it; and the browser's arithmetic, held to the server's."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from extension.kept.region_files import read_picture
from extension.text.regions import NAMED, read_mask
from lib_lora import Region
from tests.extension.ui.serving import LONG, Served, opened_small
from tests.extension.ui.tab import Tab
from tests.extension.ui.test_accessibility import faults

pytestmark = pytest.mark.browser
SHOTS = os.environ.get("REMORA_SCREENSHOTS", "")


@pytest.fixture
def tab(served: Served, browser: Any) -> Iterator[Tab]:
    with opened_small(served, browser) as page:
        tab = Tab(page).ready()
        tab.pane("Stack")
        yield tab
    for one in kept(served):
        httpx.delete(f"{served.url}/remora/v1/regions", params={"name": one})


def kept(served: Served) -> list[str]:
    regions = httpx.get(f"{served.url}/remora/v1/regions").json()["regions"]
    return [one["name"] for one in regions if one["own"]]


def picture_of(served: Served, name: str) -> Region:
    regions = httpx.get(f"{served.url}/remora/v1/regions").json()["regions"]
    return read_picture(base64.b64decode(next(one["picture"] for one in regions if one["name"] == name)))


def choice(row: Any, region: str) -> Any:
    regions = row.get_by_role("group", name="Region of zorp, by name")
    return regions.get_by_role("button", name=region, exact=True)


def chosen(row: Any) -> list[str]:
    regions = row.get_by_role("group", name="Region of zorp, by name")
    pressed: list[str] = regions.locator(".rt-chip[aria-pressed=true]").all_inner_texts()
    return pressed


def text(row: Any, name: str = "zorp") -> Any:
    return row.get_by_role("textbox", name=f"Region of {name}, as text")


def test_a_region_is_chosen_softened_and_taken_off(tab: Tab) -> None:
    tab.write("a <lora:zorp:0.5> fox")
    row = tab.more("zorp", "Region")
    choice(row, "left").click()
    tab.prompt_is("a <lora:zorp:0.5:mask=left> fox")
    row.get_by_role("img", name="left, 50 % of the picture").wait_for()
    row.get_by_text("region left").wait_for()
    row.get_by_role("slider", name="Soft edge of the region of zorp").fill("0.1")
    tab.prompt_is("a <lora:zorp:0.5:mask=left:feather=0.1> fox")
    choice(row, "top").click()
    tab.prompt_is("a <lora:zorp:0.5:mask=top:feather=0.1> fox")
    choice(row, "The whole picture").click()
    tab.prompt_is("a <lora:zorp:0.5> fox")
    tab.button("Undo").click()
    tab.prompt_is("a <lora:zorp:0.5:mask=top:feather=0.1> fox")
    choice(row, "left").click()
    row.get_by_role("button", name="Set 1.5").click()
    tab.prompt_is("a <lora:zorp:1.5:mask=left:feather=0.1> fox")
    row.get_by_role("button", name="Set 1.5").wait_for(state="hidden")


def test_what_stays_outside_is_chosen_and_its_cost_said(tab: Tab) -> None:
    tab.write("a <lora:zorp:0.5:mask=left> fox")
    row = tab.more("zorp", "Region")
    outside = row.get_by_role("slider", name="Effect of zorp outside of its region")
    cost = row.get_by_text("The model is called once more for each such region, at every step.")
    assert outside.input_value() == "1"
    assert not cost.is_visible()
    outside.fill("0.2")
    tab.prompt_is("a <lora:zorp:0.5:mask=left:outside=0.2> fox")
    cost.wait_for()
    row.get_by_text("outside 0.2", exact=True).wait_for()
    outside.fill("0")
    tab.prompt_is("a <lora:zorp:0.5:mask=left:outside=0> fox")
    outside.fill("1")
    tab.prompt_is("a <lora:zorp:0.5:mask=left> fox")
    outside.fill("0.5")
    choice(row, "The whole picture").click()
    tab.prompt_is("a <lora:zorp:0.5> fox")


def test_a_region_is_written(tab: Tab) -> None:
    tab.write("<lora:zorp:1:mask=left>")
    row = tab.more("zorp", "Region")
    assert text(row).input_value() == "left"
    for wrong, problem in (
        ("lft", "there is no region “lft”"),
        ("0,0,2,1", "“0,0,2,1” is not a rectangle"),
        ("0.5,0,0.5,1", "is not a rectangle"),
        ("left+", "the region is missing"),
    ):
        text(row).fill(wrong)
        row.get_by_role("alert").get_by_text(problem).wait_for()
        assert tab.prompt == "<lora:zorp:1:mask=left>"
    text(row).fill("top+rigth")
    row.get_by_role("button", name="Write right in place of top+rigth").click()
    tab.prompt_is("<lora:zorp:1:mask=top+right>")
    assert row.get_by_role("button", name="All but this").is_disabled(), "no text says it"
    text(row).fill("left")
    row.get_by_role("button", name="All but this").click()
    tab.prompt_is("<lora:zorp:1:mask=!left>")
    assert chosen(row) == ["left"]
    choice(row, "top").click()
    tab.prompt_is("<lora:zorp:1:mask=!top>")
    row.get_by_role("button", name="All but this", pressed=True).click()
    tab.prompt_is("<lora:zorp:1:mask=top>")
    tab.write("<lora:zorp:1:mask=Left>")
    row.get_by_role("button", name="Write left in place of Left").click()
    tab.prompt_is("<lora:zorp:1:mask=left>")
    text(row).fill("!0.25,0,1,1 + 0.75,0,1,1")
    tab.prompt_is("<lora:zorp:1:mask=!0.25,0,1,1 + 0.75,0,1,1>")
    row.get_by_role("img", name="50 % of the picture").wait_for()
    assert chosen(row) == []
    text(row).fill("")
    tab.prompt_is("<lora:zorp:1>")


def test_a_region_is_painted_by_pointer_kept_changed_and_deleted(tab: Tab, served: Served) -> None:
    tab.write("<lora:zorp:1>")
    row = tab.more("zorp", "Region")
    row.get_by_role("button", name="Paint a region").click()
    dialog = tab.page.get_by_role("dialog", name="A new region")
    sheet = dialog.get_by_role("application")
    dialog.get_by_role("slider", name="Size of the brush").fill("16")
    box = sheet.bounding_box()
    tab.page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + box["height"] * 0.25)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + box["height"] * 0.75)  # without a stop between
    tab.page.mouse.up()
    name = dialog.get_by_role("textbox", name="Name of the region")
    for wrong, problem in (("", "Give the region a name."), ("a+b", "A name has letters"), ("left", "own regions")):
        name.fill(wrong)
        name.press("Enter")
        dialog.get_by_role("alert").get_by_text(problem).wait_for()
    if SHOTS:
        tab.page.screenshot(path=str(Path(SHOTS) / "region-painter.png"))
    name.fill("stroke")
    name.press("Enter")
    dialog.wait_for(state="hidden")
    tab.prompt_is("<lora:zorp:1:mask=stroke>")
    assert kept(served) == ["stroke"]
    weights = picture_of(served, "stroke").weights(64, 64)
    assert weights[16:48, 16].min() > 0.9, "all along the stroke"
    assert weights[32, 16 - 6 : 16 + 6].min() > 0.9, "as wide as the brush"
    assert weights[:, 32:].max() == 0, "and nothing beside it"

    row.get_by_role("button", name="Change stroke").click()
    dialog = tab.page.get_by_role("dialog", name="Region stroke")
    shares = dialog.get_by_role("status").get_by_text("% of the picture")
    before = shares.inner_text()
    dialog.get_by_role("button", name="Invert").click()
    inverted = shares.inner_text()
    assert inverted != before
    for press, wanted in (
        (lambda: dialog.get_by_role("button", name="Undo stroke").click(), before),
        (lambda: dialog.get_by_role("button", name="Redo stroke").click(), inverted),
        (lambda: tab.page.keyboard.press("Control+z"), before),
        (lambda: tab.page.keyboard.press("Control+Shift+z"), inverted),
        (lambda: tab.page.keyboard.press("Control+z"), before),
        (lambda: tab.page.keyboard.press("Control+y"), inverted),
    ):
        press()
        dialog.get_by_text(wanted).wait_for()
    assert dialog.get_by_role("button", name="Redo stroke").is_disabled()
    dialog.get_by_role("button", name="Save").click()
    dialog.wait_for(state="hidden")
    changed = picture_of(served, "stroke").weights(64, 64)
    assert (changed - (1 - weights)).abs().max() <= 2 / 255
    row.get_by_role("button", name="Undo replacing the region stroke").click()
    row.get_by_text("The region stroke is replaced.").wait_for(state="hidden")
    changed = picture_of(served, "stroke").weights(64, 64)
    assert (changed - weights).abs().max() <= 2 / 255
    row.get_by_role("button", name="Delete stroke").click()
    tab.prompt_is("<lora:zorp:1>")
    assert kept(served) == []
    row.get_by_role("button", name="Undo deleting the region stroke").click()
    tab.prompt_is("<lora:zorp:1:mask=stroke>")
    assert (picture_of(served, "stroke").weights(64, 64) - changed).abs().max() <= 1 / 255
    row.get_by_role("button", name="Delete stroke").click()
    tab.prompt_is("<lora:zorp:1>")
    assert kept(served) == []


def test_a_region_is_painted_by_keys(tab: Tab, served: Served) -> None:
    tab.write("<lora:zorp:1>")
    tab.more("zorp", "Region").get_by_role("button", name="Paint a region").click()
    dialog = tab.page.get_by_role("dialog", name="A new region")
    dialog.get_by_role("button", name="Save").click()
    dialog.get_by_role("alert").get_by_text("Give the region a name.").wait_for()
    dialog.get_by_role("textbox", name="Name of the region").fill("dot")
    dialog.get_by_role("button", name="Save").click()
    dialog.get_by_role("alert").get_by_text("The region is empty").wait_for()
    dialog.get_by_role("application").focus()
    for key in ("Shift+ArrowLeft", "ArrowUp", "Space"):
        tab.page.keyboard.press(key)
    dialog.get_by_role("button", name="Save").click()
    dialog.wait_for(state="hidden")
    weights = picture_of(served, "dot").weights(64, 64)
    assert weights[30, 24] == 1.0
    assert weights[30, 40] == 0.0
    assert not faults(tab.page)


def test_a_picture_becomes_a_region(tab: Tab, served: Served) -> None:
    made = io.BytesIO()
    half = Image.new("L", (200, 100))
    half.paste(255, (100, 0, 200, 100))
    half.save(made, "PNG")
    tab.write("<lora:zorp:1>")
    tab.more("zorp", "Region").get_by_role("button", name="Paint a region").click()
    dialog = tab.page.get_by_role("dialog", name="A new region")
    field = dialog.get_by_label("A picture, white where the LoRA acts")
    field.set_input_files({"name": "x.png", "mimeType": "image/png", "buffer": b"no picture"})
    dialog.get_by_role("alert").get_by_text("x.png is not a picture").wait_for()
    field.set_input_files({"name": "half.png", "mimeType": "image/png", "buffer": made.getvalue()})
    dialog.get_by_text("50 % of the picture").wait_for()
    dialog.get_by_role("textbox", name="Name of the region").fill("half")
    dialog.get_by_role("button", name="Save").click()
    dialog.wait_for(state="hidden")
    want = NAMED["right"].weights(64, 64)
    assert (picture_of(served, "half").weights(64, 64) - want).abs().mean() < 0.01


def test_what_the_server_refuses_is_said(served: Served, browser: Any) -> None:
    def refuse(route: Any) -> None:
        route.fulfill(status=500, content_type="application/json", body='{"detail": "the disk is full"}')

    with opened_small(served, browser, lambda page: page.route("**/remora/v1/regions", refuse)) as page:
        tab = Tab(page).ready()
        tab.write("<lora:zorp:1:mask=left>")
        row = tab.more("zorp", "Region")
        row.get_by_role("alert").get_by_text("the disk is full").wait_for(timeout=LONG)
        assert tab.prompt == "<lora:zorp:1:mask=left>"
        row.get_by_role("button", name="Try again").click()
        row.get_by_role("alert").get_by_text("the disk is full").wait_for()
        page.unroute("**/remora/v1/regions")
        row.get_by_role("button", name="Try again").click()
        choice(row, "left").wait_for()
        row.get_by_role("button", name="Try again").wait_for(state="hidden")


def test_a_section_that_could_not_be_loaded_is_loaded_when_the_server_is_back(tab: Tab) -> None:
    tab.page.route("**/remora/v1/**", lambda route: route.abort())
    tab.write("<lora:zorp:1:mask=left>")
    row = tab.more("zorp", "Region")
    row.get_by_role("alert").get_by_text("The web UI does not answer.").wait_for()
    tab.page.wait_for_function("window.remoraTab.state.lost", timeout=LONG)
    tab.page.unroute("**/remora/v1/**")
    choice(row, "left").wait_for(timeout=LONG)
    row.get_by_text("The web UI does not answer.").wait_for(state="hidden")


# text, feather
MASKS = [
    ("left", 0.0),
    ("0.1,0.2,0.55,0.9", 0.0),
    ("!0.1,0.2,0.55,0.9", 0.1),
    ("left third+right third", 0.25),
    ("! center + 0,0,.3,.3", 0.01),
    ("top", 1.0),
]


def test_the_browser_shows_the_weights_that_the_server_uses(tab: Tab) -> None:
    module = "const m = await import('/remora/app/regions.js');"
    each = "masks.map(([text, feather]) => m.weightsOf(text, feather, known))"
    known = {name: region.weights(64, 64).flatten().tolist() for name, region in NAMED.items()}
    got = tab.page.evaluate(f"async ([masks, known]) => {{ {module} return {each} }}", [MASKS, known])
    for (written, feather), weights in zip(MASKS, got, strict=True):
        region = read_mask(written, feather, {}).region
        assert region is not None
        want = region.weights(64, 64).flatten().tolist()
        assert max(abs(one - other) for one, other in zip(weights, want, strict=True)) <= 2 / 255, written
