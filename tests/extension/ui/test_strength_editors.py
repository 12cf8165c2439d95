"""Blocks, schedule and passes of an entry, as a user sets them: the text of its tag changes, and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.extension.ui.serving import LONG, Served, opened, opened_small, until
from tests.extension.ui.tab import SHADOW, Tab
from tests.extension.ui.test_accessibility import faults

pytestmark = pytest.mark.browser
SHOTS = os.environ.get("REMORA_SCREENSHOTS", "")
FULL = ["BASE", *(f"IN{i:02}" for i in range(12)), "M00", *(f"OUT{i:02}" for i in range(12))]
WITH_ATTENTION = [
    *("BASE", "IN01", "IN02", "IN04", "IN05", "IN07", "IN08", "M00"),
    *(f"OUT{i:02}" for i in range(3, 12)),
]
OUTALL = "1,0,0,0,0,0,0,0,1,1,1,1,1,1,1,1,1"


class Blocks:
    """What the server says of blocks."""

    def __init__(self) -> None:
        self.own = {"mine": ",".join(["0.5"] * 26)}

    def answer(self, route: Any) -> None:
        request = route.request
        if request.method == "PUT":
            preset = json.loads(request.post_data)
            if preset["name"] == "OUTALL":
                detail = "OUTALL is a preset that comes with Remora"
                route.fulfill(status=422, content_type="application/json", body=json.dumps({"detail": detail}))
                return
            self.own[preset["name"]] = preset["values"]
        elif request.method == "DELETE":
            del self.own[parse_qs(urlsplit(request.url).query)["name"][0]]
        route.fulfill(content_type="application/json", body=json.dumps(self.told))

    @property
    def told(self) -> dict[str, Any]:
        return {
            "blocks": [{"id": one, "title": "Text encoders" if one == "BASE" else f"Part {one}"} for one in FULL],
            "layouts": [{"length": len(ids), "ids": ids} for ids in (FULL, WITH_ATTENTION)],
            "rules": ["ATTNDEEPOFF", "PROJDEEPOFF"],
            "about_rules": {"ATTNDEEPOFF": "Layers with “attn” in their names, in IN05-OUT05: weight 0."},
            "presets": [
                {"name": "OUTALL", "values": OUTALL, "own": False},
                *({"name": name, "values": values, "own": True} for name, values in self.own.items()),
            ],
        }


def mocked(page: Any) -> None:
    page.route("**/remora/v1/blocks**", Blocks().answer)


@pytest.fixture
def tab(served: Served, browser: Any) -> Iterator[Tab]:
    with opened_small(served, browser, mocked) as page:
        tab = Tab(page).ready()
        tab.pane("Stack")
        yield tab
    httpx.put(f"{served.url}/remora/v1/stack", json={})


def block(row: Any, block_id: str, name: str = "zorp") -> Any:
    return row.get_by_role("slider", name=f"{block_id} of {name}", exact=True)


def listed(**weights: str) -> str:
    return ",".join(weights.get(one, "1") for one in FULL)


# --- blocks ---


def test_a_block_is_changed_by_keys_and_taken_back(tab: Tab) -> None:
    tab.write("a <lora:zorp:0.5> fox (red:1.2)")
    row = tab.more("zorp", "Blocks")
    block(row, "IN04").focus()
    for key in ("ArrowDown", "ArrowDown", "PageDown"):
        tab.page.keyboard.press(key)
    tab.prompt_is(f"a <lora:zorp:0.5:lbw={listed(IN04='0.65')}> fox (red:1.2)")
    assert block(row, "IN04").get_attribute("aria-valuenow") == "0.65"
    row.get_by_text("26 block weights").wait_for()
    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("Home")
    tab.prompt_is(f"a <lora:zorp:0.5:lbw={listed(IN04='0.65', IN05='0')}> fox (red:1.2)")
    tab.page.keyboard.press("Control+z")  # what was done in a row is taken back together
    tab.prompt_is("a <lora:zorp:0.5> fox (red:1.2)")
    tab.button("Redo").click()
    tab.prompt_is(f"a <lora:zorp:0.5:lbw={listed(IN04='0.65', IN05='0')}> fox (red:1.2)")
    row.get_by_role("button", name="All 1").click()
    tab.prompt_is("a <lora:zorp:0.5> fox (red:1.2)")
    row.get_by_role("button", name="All 0").click()
    tab.prompt_is(f"a <lora:zorp:0.5:lbw={','.join(['0'] * 26)}> fox (red:1.2)")


def test_blocks_are_painted_with_a_pointer(tab: Tab) -> None:
    tab.write("<lora:zorp:1>")
    row = tab.more("zorp", "Blocks")
    block(row, "OUT00").scroll_into_view_if_needed()
    first, last = (block(row, one).bounding_box() for one in ("OUT00", "OUT03"))
    middle, top = first["y"] + first["height"] / 2, first["y"]
    tab.page.mouse.move(first["x"] + first["width"] / 2, middle)
    tab.page.mouse.down()
    tab.page.mouse.move(last["x"] + last["width"] / 2, middle)  # over those between without a stop
    tab.page.mouse.up()
    painted = {f"OUT0{i}": "0.5" for i in range(4)}
    tab.prompt_is(f"<lora:zorp:1:lbw={listed(**painted)}>")
    tab.page.mouse.click(first["x"] + first["width"] / 2, top + 0.5)
    tab.prompt_is(f"<lora:zorp:1:lbw={listed(**painted | {'OUT00': '1'})}>")


def test_a_weight_is_typed(tab: Tab) -> None:
    tab.write("<lora:zorp:1>")
    row = tab.more("zorp", "Blocks")
    block(row, "M00").focus()
    field = row.get_by_role("textbox", name="Weight of M00 of zorp")
    field.fill("much")
    row.get_by_role("alert").get_by_text("“much” is not a number").wait_for()
    assert tab.prompt == "<lora:zorp:1>"
    field.fill("1.33")
    tab.prompt_is(f"<lora:zorp:1:lbw={listed(M00='1.33')}>")


def test_presets_are_chosen_kept_and_deleted(tab: Tab) -> None:
    tab.write("<lora:zorp:1:OUTAL>")
    tab.row("zorp").get_by_role("button", name="Write OUTALL in place of OUTAL").click()
    tab.prompt_is("<lora:zorp:1:OUTALL>")
    tab.write("<lora:zorp:1:IN02>")
    row = tab.more("zorp", "Blocks")
    row.get_by_text("There is no preset “IN02”.").wait_for()
    assert row.get_by_text("blocks IN02").count() == 0, "no chip tells of it as if it acted"
    choice = row.get_by_role("combobox", name="Block preset of zorp")
    choice.select_option("OUTALL")
    tab.prompt_is("<lora:zorp:1:OUTALL>")
    row.get_by_text("blocks OUTALL").wait_for()
    assert block(row, "IN08").get_attribute("aria-valuenow") == "0"
    assert block(row, "OUT00").get_attribute("aria-valuenow") == "0"  # a list of 17 has no weight for it
    assert block(row, "OUT11").get_attribute("aria-valuenow") == "1"
    block(row, "IN08").press("End")
    values = ",".join("1" if one in ("BASE", "IN08") or one in WITH_ATTENTION[8:] else "0" for one in FULL)
    tab.prompt_is(f"<lora:zorp:1:{values}>")
    row.get_by_role("button", name="Save as preset").click()
    field = row.get_by_role("textbox", name="Name of the new block preset")
    for name, problem in (("a:b", "A name must not contain"), ("OUTALL", "comes with Remora")):
        field.fill(name)
        field.press("Enter")
        row.get_by_role("alert").get_by_text(problem).wait_for()
    field.fill("late")
    field.press("Enter")
    field.wait_for(state="hidden")
    choice.select_option("late")
    tab.prompt_is("<lora:zorp:1:late>")
    row.get_by_role("button", name="Delete preset late").click()
    tab.prompt_is(f"<lora:zorp:1:{values}>")
    row.get_by_role("button", name="Undo deleting the preset late").click()
    tab.prompt_is("<lora:zorp:1:late>")
    row.get_by_role("button", name="Delete preset late").click()
    tab.prompt_is(f"<lora:zorp:1:{values}>")
    assert choice.locator("option").all_inner_texts() == ["All blocks in full", "Own weights", "OUTALL", "mine"]


def test_rules_for_layers_are_chosen(tab: Tab) -> None:
    tab.write("<lora:zorp:1:lbw=OUTALL:lbwe=THEIRS> x")
    rules = tab.more("zorp", "Blocks").get_by_label("Block rules of zorp")
    assert rules.input_value() == "THEIRS"  # one that is not known here stays as it is
    tab.row("zorp").get_by_role("alert").get_by_text("There are no rules “THEIRS”.").wait_for()
    rules.select_option("ATTNDEEPOFF")
    tab.prompt_is("<lora:zorp:1:lbw=OUTALL:lbwe=ATTNDEEPOFF> x")
    tab.row("zorp").get_by_text("Layers with “attn” in their names, in IN05-OUT05: weight 0.").wait_for()
    tab.row("zorp").get_by_text("block rules ATTNDEEPOFF").wait_for()
    rules.select_option("None")
    tab.prompt_is("<lora:zorp:1:lbw=OUTALL> x")
    tab.button("Undo").click()
    tab.prompt_is("<lora:zorp:1:lbw=OUTALL:lbwe=ATTNDEEPOFF> x")


def test_a_list_that_does_not_fit_is_said_and_kept(tab: Tab) -> None:
    tag = f"<lora:zorp:1:lbw=0,{','.join(['1'] * 18)}>"
    tab.write(tag)
    tab.more("zorp", "Blocks").get_by_text("19 values; the loaded model takes 26, 17.").wait_for()
    assert tab.prompt == tag


def test_letters_are_kept_until_they_are_changed(tab: Tab) -> None:
    tab.write(f"<lora:zorp:1:lbw={listed(IN01='R', IN02='X+0.2', IN03='U')}:x=0.5>")
    row = tab.more("zorp", "Blocks")
    assert (block(row, "IN01").inner_text(), block(row, "IN02").inner_text()) == ("R", "X")
    block(row, "OUT05").press("Home")
    tab.prompt_is(f"<lora:zorp:1:lbw={listed(IN01='R', IN02='X+0.2', IN03='U', OUT05='0')}:x=0.5>")
    block(row, "IN01").press("End")
    tab.prompt_is(f"<lora:zorp:1:lbw={listed(IN02='X+0.2', IN03='U', OUT05='0')}:x=0.5>")


def test_blocks_that_cannot_be_asked_for_are_said(served: Served, browser: Any) -> None:
    def refuse(route: Any) -> None:
        route.fulfill(status=503, content_type="application/json", body='{"detail": "the model is being loaded"}')

    with opened_small(served, browser, lambda page: page.route("**/remora/v1/blocks", refuse)) as page:
        tab = Tab(page).ready()
        tab.write("<lora:zorp:1>")
        tab.more("zorp", "Blocks").get_by_role("alert").get_by_text("the model is being loaded").wait_for(timeout=LONG)


# --- sections ---


def test_one_section_of_one_row_is_open_and_the_set_ones_are_marked(tab: Tab) -> None:
    tab.write("<lora:zorp:1:mask=left:lbw=OUTALL> <lora:stripes:1>")
    row = tab.row("zorp")
    row.get_by_role("button", name="More: schedule, region, passes, blocks of zorp").click()
    row.get_by_role("group", name="Region of zorp", exact=True).wait_for()  # the first that is set
    marks = row.get_by_role("group", name="Settings of zorp").get_by_role("button").all_inner_texts()
    assert marks == ["Schedule", "Region •", "Passes", "Blocks •"]
    for section in ("Schedule", "Passes", "Blocks"):
        tab.more("zorp", section).get_by_role("group", name=f"{section} of zorp", exact=True).wait_for()
        assert tab.root.locator(".rt-part[role=group]").count() == 1
    tab.more("stripes", "Passes").get_by_role("group", name="Passes of stripes").wait_for()
    assert tab.root.locator(".rt-more").count() == 1


# --- schedule ---


def test_a_schedule_is_begun_shaped_and_ended(tab: Tab) -> None:
    tab.write("a <lora:zorp:0.8:high> fox")
    row = tab.more("zorp", "Schedule")
    schedule = row.get_by_role("group", name="Schedule of zorp").bounding_box()
    assert schedule["y"] + schedule["height"] <= tab.page.viewport_size["height"], "it is scrolled to"
    for name, points in (("Fade in", "0@0,0.8@1"), ("Fade out", "0.8@0,0@1"), ("Add a schedule", "0.8@0,0.8@1")):
        tab.write("a <lora:zorp:0.8:high> fox")
        row.get_by_role("button", name=name).click()
        tab.prompt_is(f"a <lora:zorp:0.8:{points}:high> fox")
    row.get_by_text("Drag a point to change it").wait_for()
    first = row.get_by_role("slider", name="Point 1 of 2 of zorp")
    first.press("Home")
    row.get_by_role("button", name="Add a point").click()
    tab.prompt_is("a <lora:zorp:0.8:0@0,0.4@0.5,0.8@1:high> fox")
    point = row.get_by_role("slider", name="Point 2 of 3 of zorp")
    assert point.evaluate("element => element === element.getRootNode().activeElement")
    for key in ("ArrowLeft", "ArrowLeft", "ArrowUp"):
        tab.page.keyboard.press(key)
    tab.prompt_is("a <lora:zorp:0.8:0@0,0.45@0.4,0.8@1:high> fox")
    assert point.get_attribute("aria-valuetext") == "0.45 at 40 %"
    row.get_by_role("combobox", name="Shape of the schedule").select_option("cosine")
    tab.prompt_is("a <lora:zorp:0.8:0@0,0.45@0.4,0.8@1:high:curve=cosine> fox")
    row.get_by_text("schedule (cosine)").wait_for()
    point.press("Delete")
    tab.prompt_is("a <lora:zorp:0.8:0@0,0.8@1:high:curve=cosine> fox")
    row.get_by_role("button", name="No schedule").click()
    tab.prompt_is("a <lora:zorp:0.8:high> fox")
    for text in ("0@0,0.8@1:high:curve=cosine", "0@0,0.45@0.4,0.8@1:high:curve=cosine", "0@0,0.45@0.4,0.8@1:high"):
        tab.button("Undo").click()
        tab.prompt_is(f"a <lora:zorp:0.8:{text}> fox")


def test_points_are_drawn_with_a_pointer(tab: Tab) -> None:
    tab.write("<lora:zorp:1:1@0,1@1>")
    row = tab.more("zorp", "Schedule")
    one, other = (row.get_by_role("slider", name=f"Point {i} of 2").locator("circle").last for i in (1, 2))
    one.scroll_into_view_if_needed()
    left, right = one.bounding_box(), other.bounding_box()
    x, y = (left["x"] + right["x"] + right["width"]) / 2, left["y"] + left["height"] / 2
    tab.page.mouse.move(x, y)
    tab.page.mouse.down()  # on the line: a point more
    tab.page.mouse.move(x, y + 500, steps=3)
    tab.page.mouse.up()
    tab.prompt_is("<lora:zorp:1:1@0,0@0.5,1@1>")


def test_points_are_typed_as_parts_or_steps(tab: Tab) -> None:
    tab.write("<lora:zorp:1:0@0,1@1>")
    row = tab.more("zorp", "Schedule")
    field = row.get_by_role("textbox", name="Points of the schedule of zorp")
    field.fill("0@0, 1@")
    row.get_by_role("alert").get_by_text("Write strength@position").wait_for()
    assert tab.prompt == "<lora:zorp:1:0@0,1@1>"
    field.fill("0@0, 1@10, 0@20")
    tab.prompt_is("<lora:zorp:1:0@0,1@10,0@20>")
    point = row.get_by_role("slider", name="Point 2 of 3 of zorp")
    assert point.get_attribute("aria-valuetext") == "1 at step 10"
    point.press("ArrowRight")
    tab.prompt_is("<lora:zorp:1:0@0,1@11,0@20>")
    field.fill("0@0,1@2")
    for _ in range(3):  # never to where all would be parts of the pass
        row.get_by_role("slider", name="Point 2 of 2 of zorp").press("ArrowLeft")
    tab.prompt_is("<lora:zorp:1:0@0,1@2>")


def test_no_slider_overwrites_a_schedule(tab: Tab) -> None:
    tab.write("<lora:zorp:0.8:0@0,1@1>")
    row = tab.row("zorp")
    assert row.get_by_role("button", name="Apart: set zorp").is_disabled()
    tab.strength("zorp", "Text").fill("0.5")
    tab.prompt_is("<lora:zorp:0.5:0@0,1@1>")
    row.get_by_role("button", name="UNet strength of zorp follows a schedule: 0 at 0 %, 1 at 100 %").click()
    row.get_by_role("slider", name="Point 1 of 2 of zorp").wait_for()
    tab.write("<lora:zorp:0@0,1@1>")
    row.get_by_text("The text encoders have the same schedule.").wait_for()
    row.get_by_role("slider", name="Point 1 of 2 of zorp").press("ArrowUp")
    tab.prompt_is("<lora:zorp:0.05@0,1@1>")
    tab.row("zorp").get_by_label("zorp on").uncheck()
    tab.prompt_is("")
    tab.row("zorp").get_by_label("zorp on").check()
    tab.page.wait_for_function("document.querySelector('#prompt textarea').value.includes('<lora:zorp:0.05@0,1@1>')")


def test_the_steps_in_which_it_acts(tab: Tab) -> None:
    tab.page.fill("#steps input", "20")
    tab.write("<lora:zorp:1> <lora:stripes:1:step=2-8>")
    row = tab.more("zorp", "Schedule")
    row.get_by_role("textbox", name="After step of zorp").fill("x")
    row.get_by_role("alert").get_by_text("“x” is not a step").wait_for()
    row.get_by_role("textbox", name="After step of zorp").fill("50%")
    row.get_by_role("button", name="Write 0.5 in place of 50%").click()
    row.get_by_text("after 50 %").wait_for()
    row.get_by_role("textbox", name="After step of zorp").fill("99")
    row.get_by_text("It acts in no step: it begins after step 99, and the page is set to 20 steps.").wait_for()
    row.get_by_role("textbox", name="After step of zorp").fill("0.25")
    row.get_by_text("after 25 %").wait_for()
    row.get_by_role("textbox", name="After step of zorp").fill("1")
    row.get_by_role("textbox", name="Until step of zorp").fill("10")
    row.get_by_text("steps 1-10").wait_for()
    row = tab.more("stripes", "Schedule")
    assert row.get_by_role("textbox", name="After step").input_value() == "2"
    row.get_by_role("textbox", name="Until step").fill("9")
    tab.prompt_is("<lora:zorp:1:start=1:stop=10> <lora:stripes:1:step=2-9>")
    row.get_by_role("textbox", name="After step").fill("")
    tab.prompt_is("<lora:zorp:1:start=1:stop=10> <lora:stripes:1:stop=9>")


# --- passes ---


def test_passes_are_switched_and_one_stays(tab: Tab) -> None:
    tab.write("<lora:zorp:1>")
    row = tab.more("zorp", "Passes")
    chips = {
        name: row.get_by_role("button", name=name, exact=True) for name in ("base", "hires", "refiner", "detailer")
    }
    assert {chip.get_attribute("aria-pressed") for chip in chips.values()} == {"true"}
    chips["base"].click()
    tab.prompt_is("<lora:zorp:1:pass=hires,refiner,detailer>")
    chips["refiner"].click()
    chips["detailer"].click()
    row.get_by_text("hires only").wait_for()
    chips["hires"].click()
    row.get_by_role("alert").get_by_text("One pass must stay on").wait_for()
    assert tab.prompt == "<lora:zorp:1:pass=hires>"
    for name in ("base", "refiner", "detailer"):
        chips[name].click()
    tab.prompt_is("<lora:zorp:1>")


# --- always on ---


def test_what_is_always_on_has_them_too_and_takes_them_along(tab: Tab) -> None:
    sent: list[Any] = []

    def keep(route: Any) -> None:
        if route.request.method == "PUT":
            sent.append(json.loads(route.request.post_data))
        if sent:  # the page also asks from time to time, as other pages may have changed the stack
            route.fulfill(content_type="application/json", body=json.dumps({**sent[-1], "version": 1, "problem": ""}))
        else:
            route.continue_()

    tab.page.route("**/remora/v1/stack", keep)
    tab.write("a fox <lora:zorp:0.8:0@0,1@1:lbw=OUTALL:high>")
    tab.button("apply zorp to every picture").click()
    tab.saved()
    fields = {"name": "zorp", "on": True, "unet": 1, "text_encoder": 0.8}
    assert sent[-1]["entries"] == [{**fields, "more": "unet=0@0,1@1:lbw=OUTALL:high"}]
    row = tab.more("zorp", "Schedule", "Always on")
    row.get_by_role("slider", name="Point 1 of 2 of zorp").press("ArrowUp")
    tab.more("zorp", "Passes", "Always on").get_by_role("button", name="detailer", exact=True).click()
    block(tab.more("zorp", "Blocks", "Always on"), "M00").press("Home")
    tab.saved()
    assert sent[-1]["entries"][0]["more"].startswith("unet=0.05@0,1@1:lbw=1,0,0")
    assert sent[-1]["entries"][0]["more"].endswith(":high:pass=base,hires,refiner")
    row.get_by_role("combobox", name="Block preset").select_option("")
    tab.button("Into the prompt: move zorp").click()
    tab.page.wait_for_function("document.querySelector('#prompt textarea').value !== 'a fox'")
    assert tab.prompt.startswith("a fox, <lora:zorp:0.8:0.05@0,1@1:high:pass=base,hires,refiner>")


def test_the_server_knows_what_is_written(served: Served, browser: Any) -> None:
    """Without a stand-in: blocks of the model, a preset of the user's own, and an entry that is always on with both."""
    with opened_small(served, browser) as page:
        tab = Tab(page).ready()
        tab.write("<lora:zorp:1>")
        row = tab.more("zorp", "Blocks")
        block(row, "M00").press("Home")
        row.get_by_role("button", name="Save as preset").click()
        row.get_by_role("textbox", name="Name of the new block preset").fill("no middle")
        row.get_by_role("textbox", name="Name of the new block preset").press("Enter")
        row.get_by_role("combobox", name="Block preset of zorp").select_option("no middle")
        tab.more("zorp", "Schedule").get_by_role("button", name="Add a schedule").click()
        row.get_by_role("combobox", name="Shape of the schedule").select_option("step")
        row.get_by_role("textbox", name="Until step of zorp").fill("10")
        tab.more("zorp", "Passes").get_by_role("button", name="detailer", exact=True).click()
        fields = "lbw=no middle:curve=step:stop=10:pass=base,hires,refiner"
        tab.prompt_is(f"<lora:zorp:1:1@0,1@1:{fields}>")
        tab.button("apply zorp to every picture").click()
        tab.saved()
        (entry,) = httpx.get(f"{served.url}/remora/v1/stack").json()["entries"]
        assert entry["more"] == f"unet=1@0,1@1:{fields}"
        tab.more("zorp", "Blocks", "Always on").get_by_role("button", name="Delete preset no middle").click()
        until(page, lambda: ":lbw=1,1,1," in httpx.get(f"{served.url}/remora/v1/stack").text)
    httpx.put(f"{served.url}/remora/v1/stack", json={})


# --- whoever uses it ---


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1400])
def test_they_fit_and_have_no_fault(served: Served, browser: Any, theme: str, width: int) -> None:
    context = {"viewport": {"width": width, "height": 1100}, "color_scheme": theme, "has_touch": width < 400}
    with opened(served, browser, mocked, **context) as page:
        tab = Tab(page).ready()
        weights = listed(IN01="R", IN04="0.4", IN05="-0.5", M00="1.6", OUT03="0.2")
        tab.write(
            f"a fox <lora:zorp:0.8:0@0,1@0.4,0.3@1:lbw={weights}:start=1:stop=10:pass=base,hires> <lora:stripes:1>"
        )
        wide = f"[...{SHADOW}.querySelectorAll('.rt-more *')].map(e => e.getBoundingClientRect().right)"
        row = tab.more("zorp", "Schedule")
        row.get_by_role("slider", name="Point 2 of 3 of zorp").focus()
        for section in ("Schedule", "Region", "Passes", "Blocks"):
            tab.more("zorp", section).get_by_role("group", name=f"{section} of zorp", exact=True).wait_for()
            if section == "Blocks":
                block(row, "IN04").wait_for()
            if SHOTS:
                row.screenshot(path=Path(SHOTS) / f"strength-{theme}-{width}-{section}.png")
            assert faults(page) == []
            assert max(page.evaluate(wide)) <= width
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        if width < 400:
            block(row, "OUT11").scroll_into_view_if_needed()
            box = block(row, "OUT11").bounding_box()
            page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)  # half of -1 to 2
            page.wait_for_function("window.remoraTab.stack.tags()[0].values.lbw.endsWith(',0.5')")
