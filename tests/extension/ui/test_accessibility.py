"""The tab has no fault for people who see, hear or move otherwise; axe-core looks for them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.extension.ui.serving import LONG, Served, opened
from tests.extension.ui.tab import Tab

pytestmark = pytest.mark.browser


def faults(page: Any, context: str = "#remora-tab") -> list[str]:
    """Return what axe finds below the tab, or another part of the page."""
    found = Axe().run(page, context=context).response["violations"]
    return [f"{one['id']}: {node['html'][:150]}: {node['failureSummary']}" for one in found for node in one["nodes"]]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_fault(served: Served, browser: Any, theme: str) -> None:
    httpx.put(f"{served.url}/remora/v1/stack", json={"always_on": True, "entries": [{"name": "night"}]})
    try:
        with opened(served, browser, color_scheme=theme) as page:
            tab = Tab(page).ready()
            tab.write("<lora:stripes:0.5> <lora:nowhere:1> <lora:neon:x>")
            tab.button("Filters").click()
            tab.page.wait_for_timeout(300)
            assert faults(page, "body") == [], "the whole page"
            tab.root.get_by_role("searchbox").fill("of no file")
            assert faults(page) == [], "nothing found"
            tab.button("Show all").click()
            tab.button("Show as a list").click()
            assert faults(page) == [], "list"
            tab.button("About zorp").click()
            page.get_by_role("dialog", name="zorp").get_by_text("Trigger words").wait_for(timeout=LONG)
            assert faults(page) == [], "about"
            page.keyboard.press("Escape")
            tab.pane("Stack")
            tab.button("Strengths of stripes apart").click()
            tab.button("More: schedule, region, passes, blocks of stripes").click()
            tab.root.get_by_role("group", name="Block weights of stripes").wait_for(timeout=LONG)
            tab.row("nowhere").get_by_text("is not in the LoRA folders").wait_for(timeout=LONG)
            assert faults(page) == [], "stack"
            for name in ("Presets", "Compare"):
                tab.button(name).click()
                page.get_by_role("dialog", name=name).wait_for()
                assert faults(page) == [], name
                page.keyboard.press("Escape")
    finally:
        httpx.put(f"{served.url}/remora/v1/stack", json={})
