"""The doctor in the details of a file."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.extension.ui.serving import LONG, Served, opened_small, until
from tests.extension.ui.tab import Tab
from tests.extension.ui.test_accessibility import faults
from tests.fakes import spoiled

ROOT = Path(__file__).parents[3]
WEIGHED = ",".join(["1"] + ["0"] * 6 + ["0.5"] * 5)


def test_the_tab_has_a_sentence_for_each_verdict() -> None:
    source = (ROOT / "lib_lora/inspection/verdicts.py").read_text("utf-8")
    given = set(re.findall(r'Verdict\(\s*"(\w+)"', source))
    script = (ROOT / "javascript/remora/check.js").read_text("utf-8")
    known = set(re.findall(r"^    (\w+): \(.*=>", script, re.MULTILINE))
    assert given
    assert given == known


@contextmanager
def added(served: Served, name: str, tensors: dict[str, Tensor], header: dict[str, str] | None = None) -> Iterator[str]:
    """Put a file into the library for a while."""
    path = served.loras / f"{name}.safetensors"
    save_file({key: one.contiguous() for key, one in tensors.items()}, path, header)
    httpx.post(f"{served.url}/remora/v1/refresh")
    try:
        yield name
    finally:
        path.unlink()
        httpx.post(f"{served.url}/remora/v1/refresh")


@pytest.fixture
def spoiled_file(served: Served) -> Iterator[str]:
    """Yield the name of a file with dead layers and a rank that is not the header's."""
    tensors = load_file(served.loras / "stripes.safetensors")
    dead = spoiled.zeroed(tensors, spoiled.layers(tensors)[3:8])
    with added(served, "worn", dead, {"ss_network_dim": "16"}) as name:
        yield name


def checked(tab: Tab, name: str) -> Any:
    """Open the section of a file, as a keyboard does, and return the dialog."""
    tab.pane("Library")
    tab.button(f"About {name}").click()
    dialog = tab.page.get_by_role("dialog", name=name)
    dialog.locator("summary", has_text="Check").press("Enter")
    return dialog


@pytest.mark.browser
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_the_verdicts_come_first_then_bars_with_their_numbers(
    served: Served, browser: Any, spoiled_file: str, theme: str, width: int
) -> None:
    phone = width == 390
    look = {"color_scheme": theme, "viewport": {"width": width, "height": 900}}
    with opened_small(served, browser, **look, has_touch=phone, is_mobile=phone) as page:
        tab = Tab(page).ready()
        dialog = checked(tab, spoiled_file)
        dialog.get_by_text("5 of 278 layers change nothing.").wait_for(timeout=LONG)
        told = dialog.locator("details", has_text="Check").locator("[role=status] p").all_inner_texts()
        assert told[0] == "5 of 278 layers change nothing. They were not trained."
        hint = next(
            at for at, text in enumerate(told) if text.startswith("Hint: The rank is 4, and 16 by the header. ")
        )
        assert told[hint + 1] == "Published for the rank: 4 to 128. Source: sd-scripts"
        assert "sd-scripts" in dialog.get_by_role("link", name="sd-scripts").get_attribute("href")
        blocks = dialog.get_by_role("list", name="Energy by block").locator("li").all_inner_texts()
        assert [text.split()[0] for text in blocks][:2] == ["IN01", "IN02"]
        shares = [float(text.split()[1]) for text in blocks]
        assert sum(shares) == pytest.approx(100, abs=3)
        kept = dialog.get_by_role("list", name="Energy that a lower rank keeps").locator("li").all_inner_texts()
        assert [text.split()[:2] for text in kept] == [["Rank", "1"], ["Rank", "2"], ["Rank", "4"]]
        spectrum = dialog.get_by_role("img", name="Of 4 directions, the strongest has")
        heights = [float(bar.get_attribute("height")) for bar in spectrum.locator("rect").all()]
        assert heights == sorted(heights, reverse=True)
        assert heights[0] == 100
        assert faults(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        body = dialog.locator(".rt-dialog-body")
        assert body.evaluate("body => body.scrollWidth <= body.clientWidth"), "nothing is cut"


@pytest.mark.browser
def test_a_verdict_says_where_the_file_stands_among_the_files_for_the_model(served: Served, browser: Any) -> None:
    tensors = load_file(served.loras / "stripes.safetensors")
    with safe_open(served.loras / "stripes.safetensors", "pt") as file:
        header = file.metadata()
    name = spoiled.layers(tensors)[3]
    with added(served, "heavy", spoiled.scaled(tensors, 300.0, [name]), header), opened_small(served, browser) as page:
        deadline = time.monotonic() + 10 * LONG / 1000
        while httpx.get(f"{served.url}/remora/v1/copies").json()["running"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        dialog = checked(Tab(page).ready(), "heavy")
        verdict = dialog.get_by_text(re.compile("Hint: One layer has .* With the weight 0[.]33 for IN01, it has 30"))
        verdict.wait_for(timeout=LONG)
        place = verdict.locator("xpath=following-sibling::p").first.inner_text()
        assert re.fullmatch(r"This is higher than in (\d) of \1 other files for this model here\.", place)
        assert faults(page) == []


@pytest.mark.browser
def test_bars_show_what_the_stack_makes_of_them(served: Served, browser: Any) -> None:
    with opened_small(served, browser) as page:
        tab = Tab(page).ready()
        tab.write(f"<lora:stripes:0.5:lbw={WEIGHED}>")
        dialog = checked(tab, "stripes")
        bars = dialog.get_by_role("list", name="Energy by block").locator("li")
        dialog.get_by_text("behind it: with the strength").wait_for(timeout=LONG)
        text = next(text for text in bars.all_inner_texts() if text.startswith("OUT04"))
        before, after = (float(number) for number in re.findall(r"([\d.]+) %", text))
        assert after == pytest.approx(before * 0.25 * 0.25, abs=0.06)
        first = next(text for text in bars.all_inner_texts() if text.startswith("IN01"))
        assert first.endswith("→ 0.0 %")
        assert faults(page) == []
        page.keyboard.press("Escape")
        tab.write("<lora:stripes:0.5>")
        dialog = checked(tab, "stripes")
        dialog.get_by_text("behind it: with the strength").wait_for(timeout=LONG)
        text = next(text for text in bars.all_inner_texts() if text.startswith("OUT04"))
        before, after = (float(number) for number in re.findall(r"([\d.]+) %", text))
        assert after == pytest.approx(before * 0.5 * 0.5, abs=0.06)


@pytest.mark.browser
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_what_a_change_of_block_weights_removes_is_seen_at_once(
    served: Served, browser: Any, theme: str, width: int
) -> None:
    phone = width == 390
    look = {"color_scheme": theme, "viewport": {"width": width, "height": 900}}
    with opened_small(served, browser, **look, has_touch=phone, is_mobile=phone) as page:
        tab = Tab(page).ready()
        tab.write("<lora:stripes:0.5>")
        row = tab.more("stripes", "Blocks")
        row.locator("summary", has_text="What these weights remove").press("Enter")
        row.get_by_text("The block weights remove 0.0 % of").wait_for(timeout=LONG)
        strip = row.get_by_role("group", name="Block weights of stripes")
        strip.get_by_role("slider", name=re.compile("^OUT04")).press("Home")
        row.get_by_text(re.compile("remove [1-9]")).wait_for()
        bars = row.get_by_role("list", name="Energy by block").locator("li").all_inner_texts()
        shares = {text.split()[0]: [float(one) for one in re.findall(r"([\d.]+) %", text)] for text in bars}
        removed = float(re.findall(r"remove ([\d.]+) %", row.inner_text())[0])
        assert removed == pytest.approx(shares["OUT04"][0], abs=0.6)
        assert shares["OUT04"][1] == 0
        assert shares["OUT05"][1] == pytest.approx(shares["OUT05"][0] / 4, abs=0.06)
        assert faults(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.browser
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_what_a_file_does_is_shown_in_a_sheet(served: Served, browser: Any, theme: str, width: int) -> None:
    phone = width == 390
    look = {"color_scheme": theme, "viewport": {"width": width, "height": 900}}
    with opened_small(served, browser, **look, has_touch=phone, is_mobile=phone) as page:
        tab = Tab(page).ready()
        tab.pane("Library")
        tab.button("About zorp").click()
        dialog = page.get_by_role("dialog", name="zorp")
        dialog.locator("summary", has_text="What it does").press("Enter")
        prompts = dialog.get_by_label("Prompts, one in each line")
        page.wait_for_function("box => box.value.split('\\n').length === 4", arg=prompts.element_handle(), timeout=LONG)
        assert all(line.startswith("zorp, ") for line in prompts.input_value().split("\n"))
        assert int(dialog.get_by_label("Steps", exact=True).input_value()) <= 12
        prompts.fill("a green zorp on a white ground\n\na red circle")
        for field in ("Width", "Height"):
            dialog.get_by_label(field, exact=True).fill("64")
        dialog.get_by_label("Steps", exact=True).fill("2x")
        dialog.get_by_role("button", name="Make the pictures").click()
        dialog.get_by_role("alert").get_by_text("“2x”").wait_for()
        dialog.get_by_label("Steps", exact=True).fill("2")
        dialog.get_by_role("button", name="Make the pictures").click()
        dialog.get_by_text("6 of 6 pictures, seed 1").wait_for(timeout=LONG)
        assert dialog.locator("th[scope=col]").all_inner_texts() == ["Without", "With", "Difference"]
        drawn = (
            "[...window.remoraTab && document.getElementById('remora-tab').shadowRoot.querySelectorAll('.rt-cell img')]"
        )
        page.wait_for_function(f"{drawn}.filter(image => image.naturalWidth === 64).length === 6")
        assert faults(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        sheet = Image.open(io.BytesIO(httpx.get(f"{served.url}/remora/v1/compare/picture").content))
        assert sheet.info["parameters"].startswith("a green zorp on a white ground <lora:zorp:1>\n")
        assert json.loads(sheet.info["Remora comparison"])["values"] == [
            "a green zorp on a white ground",
            "a red circle",
        ]
        dialog.get_by_label("Steps", exact=True).fill("150")
        dialog.get_by_role("button", name="Make the pictures").click()
        dialog.get_by_role("button", name="Cancel the pictures").click()
        dialog.get_by_text("Cancelled after").wait_for(timeout=LONG)
        page.keyboard.press("Escape")
        tab.button("About night").click()
        other = page.get_by_role("dialog", name="night")
        other.locator("summary", has_text="What it does").press("Enter")
        other.get_by_role("button", name="Make the pictures").wait_for()
        assert other.get_by_role("table").count() == 0, "that sheet is of another file"


@pytest.mark.browser
def test_a_file_that_only_a_model_can_measure_is_not_said_to_be_good(served: Served, browser: Any) -> None:
    stars = load_file(served.loras / "stars.safetensors")
    others = {key.replace("_layers_", "_layers_9"): one for key, one in stars.items()}  # of another model
    with added(served, "others", others) as name, opened_small(served, browser) as page:
        dialog = checked(Tab(page).ready(), name)
        dialog.get_by_text("layers cannot be measured without the model").wait_for(timeout=LONG)
        told = dialog.locator("details", has_text="Check").inner_text()
        assert "Nothing is wrong" not in told
        assert "norm" not in told
        assert "doctor FILE --model MODEL" in told
        page.keyboard.press("Escape")
        dialog = checked(Tab(page), "stars")
        dialog.get_by_text(re.compile(r"is [\d.]+\. That is [\d.]+ % of the norm of the model")).wait_for(timeout=LONG)
        told = dialog.locator("details", has_text="Check").inner_text()
        assert "doctor FILE" not in told
        assert "cannot be measured" not in told


@pytest.mark.browser
def test_it_asks_until_it_is_done_or_closed_and_says_what_went_wrong(served: Served, browser: Any) -> None:
    with opened_small(served, browser) as page:
        tab = Tab(page).ready()
        asked: list[float] = []
        answers: list[tuple[int, object]] = [(200, {"done": 3, "layers": 9, "result": None})]

        def answer(route: Any) -> None:
            asked.append(time.monotonic())
            status, data = answers[0]
            route.fulfill(status=status, content_type="application/json", body=json.dumps(data))

        page.route("**/remora/v1/check?*", answer)
        dialog = checked(tab, "stripes")
        dialog.get_by_text("Layer 3 of 9").wait_for(timeout=LONG)
        assert dialog.get_by_role("progressbar", name="Progress of the check").get_attribute("value") == "3"
        assert faults(page) == []
        until(page, lambda: len(asked) > 1, "it asks again")
        answers[0] = (422, {"detail": "stripes.safetensors: it changed while it was read"})
        dialog.get_by_text("it changed while it was read").wait_for(timeout=LONG)
        count = len(asked)
        page.wait_for_timeout(1600)
        assert len(asked) == count, "it does not ask again by itself"
        answers[0] = (200, {"done": 4, "layers": 9, "result": None})
        dialog.get_by_role("button", name="Try again").click()
        dialog.get_by_text("Layer 4 of 9").wait_for(timeout=LONG)
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
        count = len(asked)
        page.wait_for_timeout(1600)
        assert len(asked) == count, "the dialog is closed"
        page.unroute("**/remora/v1/check?*")
        checked(tab, "stripes").get_by_text("Nothing is wrong by these measures.").wait_for(timeout=LONG)


def together(tab: Tab) -> Any:
    """Press the button above the stack, and return the dialog when it has an answer."""
    tab.pane("Stack")
    tab.button("Check: what the LoRA of the stack do").click()
    dialog = tab.page.get_by_role("dialog", name="Check of the stack")
    dialog.get_by_role("table").wait_for(timeout=LONG)
    return dialog


@pytest.mark.browser
@pytest.mark.parametrize(("theme", "width"), [("dark", 1280), ("light", 390)])
def test_the_files_of_the_stack_are_compared_in_a_map(served: Served, browser: Any, theme: str, width: int) -> None:
    phone = width == 390
    look = {"color_scheme": theme, "viewport": {"width": width, "height": 900}}
    with opened_small(served, browser, **look, has_touch=phone, is_mobile=phone) as page:
        tab = Tab(page).ready()
        tab.write("<lora:stripes:1>")
        tab.pane("Stack")
        assert tab.button("Check: what the LoRA of the stack do").is_disabled(), "one file alone"
        tab.write("<lora:stripes:1:mask=left> <lora:night:0.8@0,0@1> <lora:stars:1>")
        dialog = together(tab)
        dialog.get_by_text("Not counted: schedules and regions.").wait_for()
        rows = dialog.get_by_role("row").all_inner_texts()
        assert rows[0].split() == ["stripes", "night"]
        assert rows[1].split()[:2] == ["night", "independent"]
        assert "not measured" in rows[2], "only the model's weights tell what OFT changes"
        assert "Left out" in dialog.get_by_text("only the model").inner_text()
        dialog.locator("summary", has_text="stripes and night: independent").press("Enter")
        dialog.get_by_text(re.compile("IN01 to IN08: independent; cosine .* by chance")).wait_for()
        assert faults(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        body = dialog.locator(".rt-dialog-body")
        assert body.evaluate("body => body.scrollWidth <= body.clientWidth"), "the map scrolls by itself"


@pytest.fixture
def rival(served: Served) -> Iterator[str]:
    """Yield the name of a file that undoes half of night."""
    night = load_file(served.loras / "night.safetensors")
    path = served.loras / "rival.safetensors"
    save_file({key: -one / 2 if "lora_up" in key else one for key, one in night.items()}, path)
    httpx.post(f"{served.url}/remora/v1/refresh")
    yield "rival"
    path.unlink()
    httpx.post(f"{served.url}/remora/v1/refresh")


@pytest.mark.browser
def test_one_click_sets_strengths_once_and_is_undone(served: Served, browser: Any, rival: str) -> None:
    with opened_small(served, browser) as page:
        tab = Tab(page).ready()
        tab.write(f"<lora:night:1> <lora:{rival}:0.8>")
        dialog = together(tab)
        dialog.get_by_text("night and rival may undo each other").wait_for()
        assert dialog.get_by_role("button", name="Without night").count() == 1
        dialog.get_by_text("No strengths leave half of each file").wait_for()
        dialog.get_by_role("button", name="Without rival").click()
        tab.prompt_is("<lora:night:1> <lora:rival:0>")
        dialog.get_by_text("The strengths are set").wait_for()
        assert not dialog.get_by_text("may undo each other").count()
        assert not dialog.get_by_role("progressbar").count(), "one file alone is not compared"
        assert faults(page) == []
        dialog.get_by_role("button", name="Undo").click()
        tab.prompt_is("<lora:night:1> <lora:rival:0.8>")
        dialog.get_by_text("night and rival may undo each other").wait_for(timeout=LONG)
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
        tab.write(f"<lora:night:1> <lora:{rival}:-0.8>")
        dialog = together(tab)
        assert not dialog.get_by_text("may undo each other").count(), "it is turned round"
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
        early = f"lbw=0,1{',0' * 15}"
        tab.write(f"<lora:night:1> <lora:{rival}:0.8:{early}>")
        dialog = together(tab)
        dialog.get_by_text("night 1 → 0.2, rival 0.8 → 0.8").wait_for()
        dialog.get_by_role("button", name="Leave half of each file").click()
        tab.prompt_is(f"<lora:night:0.2> <lora:rival:0.8:{early}>")
        dialog.get_by_role("list", name="What the sum leaves of each file").wait_for(timeout=LONG)
        assert not dialog.get_by_role("button", name="Leave half of each file").count()
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
        weights = f"lbw=0{',1' * 10}{',0' * 6}"
        written = f"<lora:stripes:1> <lora:night:0.8:{weights}>"
        tab.write(written)
        dialog = together(tab)
        found = httpx.get(f"{served.url}/remora/v1/check/stack", params={"tags": written}).json()["result"]
        factor = found["factor"]
        assert 0.5 < factor < 0.98
        after = [f"{round(strength * factor, 2):g}" for strength in (1, 0.8)]
        dialog.get_by_text(f"stripes 1 → {after[0]}, night 0.8 → {after[1]}").wait_for()
        weaker = found["alone"].index(min(found["alone"]))
        factor = found["alone"][weaker] / found["norm"]
        dialog.get_by_label("Compare the sum with").select_option(("stripes", "night")[weaker])
        after = [f"{round(strength * factor, 2):g}" for strength in (1, 0.8)]
        dialog.get_by_text(f"stripes 1 → {after[0]}, night 0.8 → {after[1]}").wait_for()
        left = dialog.get_by_role("list", name="What the sum leaves of each file").get_by_role("listitem")
        shares = [float(re.findall(r"[\d.]+(?=\s%)", one)[0]) / 100 for one in left.all_inner_texts()]
        assert shares == pytest.approx(found["left"], abs=0.006)
        dialog.get_by_role("button", name="Set these strengths").click()
        tab.prompt_is(f"<lora:stripes:{after[0]}> <lora:night:{after[1]}:{weights}>")
        dialog.get_by_text("These strengths were set here").wait_for(timeout=LONG)
        assert faults(page) == []
        assert not dialog.get_by_role("button", name="Set these strengths").count()
        dialog.get_by_role("button", name="Undo").click()
        tab.prompt_is(written)
        dialog.get_by_role("button", name="Set these strengths").click()
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
        together(tab).get_by_text("These strengths were set here").wait_for(timeout=LONG)
