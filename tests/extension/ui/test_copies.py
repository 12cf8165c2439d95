"""The page of copies, and the filters that leave them out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.extension.ui.serving import LONG, Served, opened_small
from tests.extension.ui.tab import Tab
from tests.extension.ui.test_accessibility import faults
from tests.fakes import spoiled

EXACT, EPOCH = "stripes_fp32", "stripes_e2"
GROUP = "stripes and 2 copies"


@pytest.fixture
def copies(served: Served) -> Iterator[None]:
    """Put two copies of a LoRA beside it, and make it the one that is used."""
    tensors = load_file(served.loras / "stripes.safetensors")
    noisy = spoiled.noisy(tensors, 0.15, torch.Generator().manual_seed(0))
    paths = []
    for name, one in ((EXACT, spoiled.cast(tensors, torch.float32)), (EPOCH, noisy)):
        paths.append(served.loras / f"{name}.safetensors")
        save_file({key: value.contiguous() for key, value in one.items()}, paths[-1])
    notes = {"favourite": True}
    httpx.post(f"{served.url}/remora/v1/refresh")
    httpx.patch(f"{served.url}/remora/v1/lora", params={"name": "stripes"}, json=notes).raise_for_status()
    yield
    httpx.patch(f"{served.url}/remora/v1/lora", params={"name": "stripes"}, json={"favourite": False})
    for path in paths:
        path.unlink()
        path.with_suffix(".json").unlink(missing_ok=True)
    httpx.post(f"{served.url}/remora/v1/refresh")


def filtered(tab: Tab, show: str) -> None:
    """Choose what the library shows, as its filters do."""
    tab.pane("Library")
    button = tab.root.get_by_role("button", name="Filters").first
    if button.get_attribute("aria-expanded") != "true":
        button.click()
    tab.root.get_by_role("combobox", name=re.compile("^Show")).select_option(label=show)


def pages(tab: Tab) -> Any:
    """Open the page of copies, and return it when it has the group."""
    tab.pane("Library")
    filters = tab.root.get_by_role("button", name="Filters").first
    if filters.get_attribute("aria-expanded") != "true":
        filters.click()
    tab.button("Copies: find files").click()
    dialog = tab.page.get_by_role("dialog", name="Copies")
    dialog.get_by_role("heading", name=GROUP).wait_for(timeout=2 * LONG)
    return dialog


def names(tab: Tab) -> set[str]:
    shown = tab.root.get_by_role("list", name="LoRA found").locator(".rt-card-name").all_inner_texts()
    return {"".join(text.split()) for text in shown}


@pytest.mark.browser
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_a_group_says_how_each_is_a_copy_and_what_differs(
    served: Served, browser: Any, copies: None, theme: str, width: int
) -> None:
    phone = width == 390
    look = {"color_scheme": theme, "viewport": {"width": width, "height": 900}}
    with opened_small(served, browser, **look, has_touch=phone, is_mobile=phone) as page:
        dialog = pages(Tab(page).ready())
        dialog.get_by_text("1 group of copies").wait_for(timeout=LONG)
        rows = dialog.get_by_role("region", name=GROUP).locator("li")
        named = ["".join(text.split()) for text in rows.locator(".rt-link").all_inner_texts()]
        told = dict(zip(named, rows.all_inner_texts(), strict=True))
        assert "the one to keep" in told["stripes"]
        assert "stripes in another precision" in told[EXACT]
        assert "nearly stripes: maybe another epoch of one training (cosine +0.9" in told[EPOCH]
        bold = rows.filter(has_text=EXACT).locator("strong").all_inner_texts()
        assert "float32" in bold
        assert not [text for text in bold if "rank" in text]
        assert faults(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        body = dialog.locator(".rt-dialog-body")
        assert body.evaluate("body => body.scrollWidth <= body.clientWidth"), "nothing is cut"


@pytest.mark.browser
def test_copies_are_hidden_from_the_page_and_come_back(served: Served, browser: Any, copies: None) -> None:
    with opened_small(served, browser) as page:
        tab = Tab(page).ready()
        dialog = pages(tab)
        dialog.get_by_role("button", name=f"Hide {EPOCH} in the library").click()
        pressed = dialog.get_by_role("button", name=f"Hide {EPOCH} in the library", pressed=True)
        pressed.wait_for(timeout=LONG)
        assert faults(page) == []
        page.keyboard.press("Escape")
        dialog.wait_for(state="detached")
        assert EPOCH not in names(tab)
        assert {"stripes", EXACT} <= names(tab)
        sidecar = json.loads((served.loras / f"{EPOCH}.json").read_text("utf-8"))
        assert sidecar["remora"] == {"hidden": True}
        filtered(tab, "Hidden")
        tab.root.get_by_text("1 of ").wait_for(timeout=LONG)
        assert names(tab) == {EPOCH}
        tab.button(f"About {EPOCH}").click()
        details = page.get_by_role("dialog", name=EPOCH)
        details.get_by_role("button", name="Hide", exact=True, pressed=True).click()
        details.get_by_role("button", name="Hide", exact=True, pressed=False).wait_for(timeout=LONG)
        page.keyboard.press("Escape")
        filtered(tab, "All")
        assert {"stripes", EXACT, EPOCH} <= names(tab)


@pytest.mark.browser
def test_the_library_shows_copies_alone_or_one_of_each(served: Served, browser: Any, copies: None) -> None:
    with opened_small(served, browser) as page:
        tab = Tab(page).ready()
        filtered(tab, "Copies")
        tab.root.get_by_text("3 of ").wait_for(timeout=2 * LONG)
        assert names(tab) == {"stripes", EXACT, EPOCH}
        assert faults(page) == []
        filtered(tab, "Without copies")
        tab.button(f"About {EXACT}").wait_for(state="detached", timeout=LONG)
        assert names(tab) & {"stripes", EXACT, EPOCH} == {"stripes"}


@pytest.mark.browser
def test_all_but_the_first_are_hidden_at_once(served: Served, browser: Any, copies: None) -> None:
    with opened_small(served, browser) as page:
        dialog = pages(Tab(page).ready())
        dialog.get_by_role("button", name="Hide all but the first").click()
        for name in (EXACT, EPOCH):
            dialog.get_by_role("button", name=f"Hide {name} in the library", pressed=True).wait_for(timeout=LONG)
        assert not dialog.get_by_role("button", name="Hide stripes in the library", pressed=True).count()
        assert not dialog.get_by_role("button", name="Hide all but the first").count()


@pytest.mark.browser
def test_two_copies_are_compared_in_pictures(served: Served, browser: Any, copies: None) -> None:
    with opened_small(served, browser) as page:
        tab = Tab(page).ready()
        tab.write("a red circle <lora:stripes:0.7>")
        pages(tab).get_by_role("button", name=f"Compare pictures with {EXACT} and with stripes").click()
        dialog = page.get_by_role("dialog", name="Compare")
        assert dialog.get_by_label("stripes", exact=True).is_checked()
        assert dialog.get_by_label(EXACT, exact=True).is_checked()
        assert "<lora:stripes:0.7>" in tab.prompt, "it was there"
        assert f"<lora:{EXACT}:1>" in tab.prompt


@pytest.mark.browser
def test_it_says_how_far_it_is_what_it_leaves_out_and_what_was_merged(served: Served, browser: Any) -> None:
    with opened_small(served, browser) as page:
        tab = Tab(page).ready()
        ids = page.evaluate("Object.fromEntries(window.remoraTab.library.catalog.all.map(({name, id}) => [name, id]))")
        told: dict[str, Any] = {"running": True, "done": 2, "total": 9, "left_out": [], "groups": [], "found": 0}
        told |= {"per_page": 50, "firsts": [], "others": [], "merges": []}
        asked: list[str] = []

        def answer(route: Any) -> None:
            asked.append(route.request.url)
            route.fulfill(status=200, content_type="application/json", body=json.dumps(told))

        page.route("**/remora/v1/copies?*", answer)
        tab.root.get_by_role("button", name="Filters").first.click()
        tab.button("Copies: find files").click()
        dialog = page.get_by_role("dialog", name="Copies")
        dialog.get_by_text("2 of 9 files read").wait_for(timeout=LONG)
        dialog.get_by_text("No copies were found yet.").wait_for(timeout=LONG)
        merge = {"id": ids["night"], "parents": [ids["stripes"], ids["zorp"]], "strengths": [0.7, 0.9], "left": 0.01}
        left_out = [{"id": ids["neon"], "reason": "neon.safetensors: it is truncated"}]
        told |= {"running": False, "found": 60, "merges": [merge], "left_out": left_out}
        dialog.get_by_text("60 groups of copies").wait_for(timeout=LONG)
        dialog.get_by_text("night is 0.7 \u00d7 stripes + 0.9 \u00d7 zorp, but for 1.0 % of its energy").wait_for()
        dialog.locator("summary", has_text="1 file cannot be compared").press("Enter")
        dialog.get_by_text("it is truncated").wait_for()
        assert faults(page) == []
        count = len(asked)
        page.wait_for_timeout(2500)
        assert len(asked) == count, "there is nothing to wait for"
        assert dialog.get_by_role("button", name="Back").is_disabled()
        with page.expect_request("**/remora/v1/copies?page=1"):
            dialog.get_by_role("button", name="Next").click()
        dialog.get_by_text("Page 2 of 2").wait_for(timeout=LONG)
        assert dialog.get_by_role("button", name="Next").is_disabled()
