"""The stack saved as a file or in a model, a difference of models, one file in another form, in the tab."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image, ImageChops

from extension.standalone.demo import Demo
from tests.extension.ui.serving import LONG, Served, generate, opened_small, until
from tests.extension.ui.tab import Tab
from tests.extension.ui.test_accessibility import faults
from tests.fakes.demo import demo_pipeline

pytestmark = pytest.mark.browser
PAIR = "<lora:stripes:0.8> <lora:night:0.5:lbw=OUTALL>"


@pytest.fixture(autouse=True)
def folder(served: Served) -> Iterator[Path]:
    """Return the LoRA folder, which is as before after the test."""
    before = set(served.loras.iterdir())
    yield served.loras
    httpx.delete(f"{served.url}/remora/v1/save", headers={"Content-Type": "application/json"})
    for path in set(served.loras.iterdir()) - before:
        path.unlink()
    httpx.post(f"{served.url}/remora/v1/refresh", headers={"Content-Type": "application/json"})


def asked(tab: Tab, prompt: str = PAIR) -> Any:
    """Write a prompt, open the dialog, and return it when it has a preview."""
    tab.write(prompt)
    tab.pane("Stack")
    tab.button("Save the stack as a file").click()
    dialog = tab.page.get_by_role("dialog", name="Save to a file")
    dialog.get_by_text("The file: ").wait_for(timeout=LONG)
    return dialog


def made(served: Served, page: Any) -> Image.Image:
    """Press the page's button, and return the picture that it makes."""
    before = set(served.pictures.rglob("*.png"))
    generate(page)
    (path,) = set(served.pictures.rglob("*.png")) - before
    with Image.open(path) as picture:
        return picture.convert("RGB")


def error_in(text: str) -> float:
    (number,) = re.findall(r"error (?:below )?([0-9.]+) %", text)
    return float(number)


def difference(one: Image.Image, other: Image.Image) -> int:
    return max(high for _, high in ImageChops.difference(one, other).getextrema())


def test_the_saved_file_makes_the_picture_of_the_stack(served: Served, page: Any, folder: Path) -> None:
    tab = Tab(page).ready()
    tab.write("a fox")
    plain = made(served, page)
    tab.write(f"a fox {PAIR}, at dusk")
    stack = made(served, page)
    dialog = asked(tab, f"a fox {PAIR}, at dusk")
    dialog.get_by_label("Name", exact=True).fill("my stack")
    dialog.get_by_label("Number format").select_option("float32")
    dialog.get_by_role("button", name="Save", exact=True).click()
    dialog.get_by_text("Saved as my stack: ").wait_for(timeout=LONG)
    assert "error below 0.1 %" in dialog.get_by_text("Saved as my stack: ").inner_text()
    assert faults(page) == []
    assert (folder / "my stack.png").is_file()
    dialog.get_by_role("button", name="Compare the pictures").click()
    compared = page.get_by_role("dialog", name="Compare")
    compared.get_by_role("button", name=re.compile("^Use the prompt of .*my stack")).wait_for(timeout=LONG)
    assert faults(page) == [], "no title of a row is empty"
    cells = [httpx.get(f"{served.url}/remora/v1/compare/picture?cell={cell}").content for cell in (0, 1)]
    assert difference(*[Image.open(io.BytesIO(one)).convert("RGB") for one in cells]) <= 1
    page.keyboard.press("Escape")
    dialog = asked(tab, f"a fox {PAIR}, at dusk")
    dialog.get_by_role("button", name="Use it in place of the stack").click()
    tab.prompt_is("a fox <lora:my stack:1>, at dusk")
    saved = made(served, page)
    assert difference(plain, stack) > 20
    assert difference(stack, saved) <= 1
    tab.button("Undo").click()
    tab.prompt_is(f"a fox {PAIR}, at dusk")


def is_combining(route: Any) -> None:
    """Answer as while the LoRA of a picture are combined."""
    response = route.fetch()
    route.fulfill(response=response, json={**response.json(), "combining": {"done": 12, "layers": 700}})


def test_a_rule_of_the_stack_is_heard_saved_undone_and_restored(served: Served, page: Any, folder: Path) -> None:
    tab = Tab(page).ready()
    tab.write("a fox <lora:stripes:0.8> <lora:night:0.7>")
    tab.pane("Stack")
    added = made(served, page)
    rule = page.get_by_label("Combined by")
    assert rule.input_value() == ""
    rule.select_option("dare_ties_svd")
    share = page.get_by_label("Numbers that are kept, in %")
    share.fill("400")
    page.evaluate("window.remoraTab.set({query: 'drawn again'})")
    page.get_by_text("Write a number from 1 to 100.").wait_for()
    assert share.input_value() == "400", "the text that is typed outlives a page that is drawn again"
    page.evaluate("window.remoraTab.set({query: ''})")
    share.fill("40")
    page.get_by_label("Seed of the numbers").fill("7")
    fields = "combine=dare_ties_svd:density=0.4:seed=7"
    tab.prompt_is(f"a fox <lora:stripes:0.8:{fields}> <lora:night:0.7:{fields}>")
    assert faults(page) == []
    page.route("**/remora/v1/state", is_combining)
    page.get_by_text("Combining: 12 of 700 layers").wait_for()
    page.unroute("**/remora/v1/state")
    page.get_by_text("Before the picture, Remora makes one file of these LoRA").wait_for()
    rule.select_option("orthogonal")
    written = "a fox <lora:stripes:0.8:combine=orthogonal> <lora:night:0.7:combine=orthogonal>"
    tab.prompt_is(written)
    heard = made(served, page)
    assert difference(added, heard) > 5
    dialog = asked(tab, written)
    assert dialog.get_by_label("Combine by").count() == 0
    dialog.get_by_label("Name", exact=True).fill("by a rule")
    dialog.get_by_label("Number format").select_option("float32")
    dialog.get_by_role("button", name="Save", exact=True).click()
    dialog.get_by_role("button", name="Use it in place of the stack").click(timeout=LONG)
    tab.prompt_is("a fox <lora:by a rule:1>")
    assert difference(heard, made(served, page)) == 0
    tab.button("Undo").click()
    tab.prompt_is(written)
    tab.write("a fox <lora:stripes:0.8:combine=ties> <lora:night:0.7:combine=ties>")
    assert difference(added, made(served, page)) == 0
    page.get_by_text("combine=ties takes one rank, and the files have 4, 8; write combine=ties_svd").first.wait_for()
    rule.select_option("")
    tab.prompt_is("a fox <lora:stripes:0.8> <lora:night:0.7>")


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_the_preview_follows_what_is_typed(served: Served, browser: Any, theme: str, width: int) -> None:
    phone = width == 390
    look = {"color_scheme": theme, "viewport": {"width": width, "height": 900}}
    with opened_small(served, browser, **look, has_touch=phone, is_mobile=phone) as page:
        tab = Tab(page).ready()
        dialog = asked(tab)
        assert "error below 0.1 %" in dialog.get_by_text("The file: ").inner_text()
        dialog.get_by_label("Accuracy").select_option("rank")
        dialog.get_by_label("Largest rank").fill("2")
        dialog.get_by_text("rank 2, ").wait_for(timeout=LONG)
        assert error_in(dialog.get_by_text("The file: ").inner_text()) > 1
        dialog.get_by_text("Error of each layer").click()
        layers = dialog.locator("details[open] li").all_inner_texts()
        assert len(layers) > 5
        assert all(re.match(r"[0-9.]+ % · rank 2 · (unet|text_encoder)\.", one.replace("\u200b", "")) for one in layers)
        begun = "performance.getEntriesByType('resource').filter(one => one.name.endsWith('/save')).length"
        known = page.evaluate(begun)
        dialog.get_by_label("Accuracy").select_option("exact")
        dialog.get_by_text("error below 0.1 %").wait_for()
        page.wait_for_timeout(600)
        assert page.evaluate(begun) == known, "what was previewed is kept"
        dialog.get_by_label("Accuracy").select_option("rank")
        dialog.get_by_label("Largest rank").fill("2.5")
        dialog.get_by_text("Write a whole number from 1 to 1,000,000.").wait_for()
        assert dialog.get_by_role("button", name="Save", exact=True).is_disabled()
        assert faults(page) == []
        dialog.get_by_label("Accuracy").select_option("size")
        dialog.get_by_label("Largest size in MB").fill("0.01")
        dialog.get_by_text("bytes at least; allow a larger size").wait_for(timeout=LONG)
        dialog.get_by_label("Accuracy").select_option("exact")
        dialog.get_by_label("Combine by").select_option("ties_svd")
        dialog.get_by_text("The file has the largest rank of these LoRA").wait_for()
        dialog.get_by_label("Numbers that are kept, in %").fill("30")
        dialog.get_by_text("The file: ").wait_for(timeout=LONG)
        dialog.get_by_label("Combine by").select_option("sum")
        dialog.get_by_label("Kind").select_option("lokr")
        assert dialog.get_by_text("For programs that take one rank only").count() == 0
        with page.expect_request(lambda request: request.method == "POST") as sent:
            dialog.get_by_label("Factor").fill("4")
        assert (sent.value.post_data_json["kind"], sent.value.post_data_json["factor"]) == ("lokr", 4)
        dialog.get_by_text(re.compile("^The file: .*error [0-9.]+ %")).wait_for(timeout=LONG)
        assert faults(page) == []
        dialog.get_by_label("Kind").select_option("lora")
        dialog.get_by_text("For programs that take one rank only").click()
        dialog.get_by_label("Fill lower ranks up to").fill("x")
        dialog.get_by_text("Write a whole number from 1 to 1,000,000.").wait_for()
        with page.expect_request(lambda request: request.method == "POST") as sent:
            dialog.get_by_label("Fill lower ranks up to").fill("32")
        assert sent.value.post_data_json["pad"] == 32
        dialog.get_by_text("The file: ").wait_for(timeout=LONG)
        assert faults(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        body = dialog.locator(".rt-dialog-body")
        assert body.evaluate("body => body.scrollWidth <= body.clientWidth"), "nothing is cut"


def test_a_bad_name_and_one_that_is_taken_are_said(served: Served, browser: Any, folder: Path) -> None:
    before = set(folder.parent.rglob("*"))
    with opened_small(served, browser) as page:
        dialog = asked(Tab(page).ready())
        for name, said in (
            ("../mine", "a file cannot have the name '../mine'"),
            ("con", "'con' is the name of a device on Windows"),
            ("zorp", "there is a file zorp.safetensors already; choose another name, or replace it"),
        ):
            dialog.get_by_label("Name", exact=True).fill(name)
            dialog.get_by_role("button", name="Save", exact=True).click()
            dialog.get_by_text(said).wait_for(timeout=LONG)
        dialog.get_by_label("Name", exact=True).fill(" ")
        assert dialog.get_by_role("button", name="Save", exact=True).is_disabled()
        assert set(folder.parent.rglob("*")) == before


def test_a_step_is_asked_for_where_a_strength_differs(served: Served, browser: Any) -> None:
    with opened_small(served, browser) as page:
        dialog = asked(Tab(page).ready(), "<lora:stripes:0.5@0,1@1> <lora:night:0.5:half=neg>")
        dialog.get_by_label("Step that is saved").fill("0")
        dialog.get_by_text("Write a whole number from 1 to ").wait_for()
        with page.expect_request(lambda request: request.method == "POST") as sent:
            dialog.get_by_label("Strengths of").select_option("neg")
            dialog.get_by_label("Step that is saved").fill("2")
        assert sent.value.post_data_json["step"] == 1
        assert sent.value.post_data_json["negative"] is True


def test_progress_is_shown_and_cancelled(served: Served, browser: Any, folder: Path) -> None:
    with opened_small(served, browser) as page:
        tab = Tab(page).ready()
        dialog = asked(tab)
        job = {"id": "x", "preview": False, "done": 3, "layers": 9, "running": True}
        job |= {"cancelled": False, "problem": "", "result": None}
        answers = [job]
        methods: list[str] = []

        def answer(route: Any) -> None:
            methods.append(route.request.method)
            if route.request.method == "DELETE":
                answers[0] = {**job, "running": False, "cancelled": True}
            told = {"job": answers[0]}
            route.fulfill(status=200, content_type="application/json", body=json.dumps(told))

        page.route("**/remora/v1/save", answer)
        dialog.get_by_role("button", name="Save", exact=True).click()
        dialog.get_by_text("Layer 3 of 9").wait_for(timeout=LONG)
        assert dialog.get_by_role("progressbar", name="Progress of saving").get_attribute("value") == "3"
        assert faults(page) == []
        page.keyboard.press("Escape")
        tab.button("Save the stack as a file").click()
        dialog.get_by_text("Layer 3 of 9").wait_for(timeout=LONG)
        dialog.get_by_role("button", name="Cancel").click()
        dialog.get_by_text("Cancelled. Nothing was written.").wait_for(timeout=LONG)
        assert methods[0] == "POST"
        assert "DELETE" in methods
        answers[0] = {**job, "id": "y"}
        page.keyboard.press("Escape")
        tab.button("Save the stack as a file").click()
        dialog.get_by_text("Another page or program is saving a file.").wait_for(timeout=LONG)
        assert dialog.get_by_role("button", name="Save", exact=True).is_disabled()
        page.unroute("**/remora/v1/save")

        def refuse(route: Any) -> None:
            methods.append(route.request.method)
            route.fulfill(status=503)

        page.route("**/remora/v1/save", refuse)
        dialog.get_by_text("The web UI answered 503").wait_for(timeout=LONG)
        count = len(methods)
        page.wait_for_timeout(1000)
        assert len(methods) == count, "it does not ask again by itself"
        page.unroute("**/remora/v1/save")
        page.route("**/remora/v1/save", answer)
        dialog.get_by_role("button", name="Try again").click()
        dialog.get_by_text("The web UI answered 503").wait_for(state="hidden", timeout=LONG)
        until(page, lambda: len(methods) > count + 1, "it goes on")


@pytest.fixture
def plain(demo: Demo) -> Iterator[Path]:
    """Yield the folder of models, which has the demo's in float32 beside the one that is loaded."""
    folder = demo.model.parent
    before = set(folder.iterdir())
    demo_pipeline().save_pretrained(folder / "plain")
    yield folder
    for path in set(folder.iterdir()) - before:
        shutil.rmtree(path)


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_a_model_with_the_stack_in_it_and_the_difference_of_two(
    served: Served, browser: Any, plain: Path, theme: str, width: int
) -> None:
    phone = width == 390
    look = {"color_scheme": theme, "viewport": {"width": width, "height": 900}}
    with opened_small(served, browser, **look, has_touch=phone, is_mobile=phone) as page:
        tab = Tab(page).ready()
        dialog = asked(tab)
        dialog.get_by_label("What is saved").select_option("model")
        refused = dialog.get_by_text("its weights are quantized")  # of the loaded one
        refused.wait_for(timeout=LONG)
        dialog.get_by_role("button", name="Save", exact=True).click()
        dialog.get_by_role("progressbar").wait_for(state="hidden", timeout=LONG)
        refused.wait_for(timeout=LONG)
        dialog.get_by_label("What is saved").select_option("file")
        dialog.get_by_text("The file: ").wait_for(timeout=LONG)
        assert refused.count() == 0, "it was about another form"
        dialog.get_by_label("What is saved").select_option("model")
        dialog.get_by_label(re.compile("^Model")).select_option("plain")
        dialog.get_by_label("Rounding").select_option("stochastic")
        with page.expect_request(lambda request: request.method == "POST") as sent:
            dialog.get_by_label("Seed of the numbers").fill("7")
        assert sent.value.post_data_json["seed"] == 7
        dialog.get_by_text("The model: ").wait_for(timeout=LONG)
        assert faults(page) == []
        dialog.get_by_label("Name", exact=True).fill("baked")
        dialog.get_by_role("button", name="Save", exact=True).click()
        dialog.get_by_text("Saved as baked: ").wait_for(timeout=LONG)
        assert (plain / "baked" / "model_index.json").is_file()
        assert dialog.get_by_role("button", name="Compare the pictures").count() == 0
        page.keyboard.press("Escape")
        tab.write("a fox")
        tab.button("Save the stack as a file").click()
        assert dialog.get_by_label("What is saved").input_value() == "difference"
        assert dialog.get_by_role("button", name="Save", exact=True).is_disabled()
        dialog.get_by_label("Base model").select_option("plain")
        dialog.get_by_label("Other model").select_option("baked")
        dialog.get_by_text("The file: ").wait_for(timeout=LONG)
        assert "rank" in dialog.get_by_text("The file: ").inner_text()
        assert faults(page) == []
        body = dialog.locator(".rt-dialog-body")
        assert body.evaluate("body => body.scrollWidth <= body.clientWidth"), "nothing is cut"
        dialog.get_by_label("Name", exact=True).fill("taken out")
        dialog.get_by_role("button", name="Save", exact=True).click()
        dialog.get_by_text("Saved as taken out: ").wait_for(timeout=LONG)
        page.keyboard.press("Escape")
        tab.pane("Library")
        tab.button("About taken out").click()
        details = page.get_by_role("dialog", name="taken out", exact=True)
        details.get_by_role("button", name="Save in another form …").click()
        dialog = page.get_by_role("dialog", name="taken out in another form")
        dialog.get_by_label("Accuracy").select_option("rank")
        dialog.get_by_label("Largest rank").fill("2")
        dialog.get_by_label("Strength").fill("0.5")
        dialog.get_by_label(re.compile("^Layers")).select_option("unet")
        dialog.get_by_text(re.compile("^The file: .*rank 2,")).wait_for(timeout=LONG)
        assert dialog.get_by_text("Saved as taken out: ").count() == 0, "another dialog said that"
        assert faults(page) == []
        dialog.get_by_role("button", name="Save", exact=True).click()
        dialog.get_by_text("Saved as taken out 2: ").wait_for(timeout=LONG)
        page.keyboard.press("Escape")
        assert details.is_visible(), "the details are where they were"
