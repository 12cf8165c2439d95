"""What Civitai says of a file, and a download from there, in the tab."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save

from tests.extension.ui.serving import LONG, Served, opened_small
from tests.extension.ui.tab import Tab
from tests.extension.ui.test_accessibility import faults
from tests.fakes import spoiled
from tests.fakes.sites import FakeSites

pytestmark = pytest.mark.browser
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def published(served: Served, sites: FakeSites) -> Iterator[bytes]:
    """Publish a LoRA that is there, and return a newer version of it; the folder is as before afterwards."""
    before = {path: path.read_bytes() for path in served.loras.iterdir() if path.is_file()}
    tensors = spoiled.cast(load_file(served.loras / "stripes.safetensors"), torch.float32)
    newer = save({key: value.contiguous() for key, value in tensors.items()})
    sites.civitai((served.loras / "stripes.safetensors").read_bytes(), name="v22 <b onclick=x>bold</b> &lt;b&gt;")
    sites.civitai(newer, version=24)
    yield newer
    httpx.put(f"{served.url}/remora/v1/online", json={"on": False})
    for path in [path for path in served.loras.iterdir() if path.is_file() and path not in before]:
        path.unlink()
    for path, content in before.items():
        if path.read_bytes() != content:  # notes that another test has left are filled
            path.write_bytes(content)
    httpx.post(f"{served.url}/remora/v1/refresh", headers=JSON)
    sites.answers.clear()
    sites.log.clear()


def fits(page: Any, dialog: Any) -> None:
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert dialog.locator(".rt-dialog-body").evaluate("body => body.scrollWidth <= body.clientWidth"), "nothing is cut"


def test_a_file_is_looked_up_and_its_newer_version_downloaded(
    served: Served, browser: Any, sites: FakeSites, published: bytes
) -> None:
    look = {"color_scheme": "dark", "viewport": {"width": 390, "height": 900}, "has_touch": True, "is_mobile": True}
    with opened_small(served, browser, **look) as page:
        tab = Tab(page).ready()
        tab.pane("Library")
        tab.button("About stripes").click()
        details = page.get_by_role("dialog", name="stripes")
        details.get_by_text("Civitai and Hugging Face").click()
        details.get_by_text("sends the hash of a file to Civitai").wait_for(timeout=LONG)
        assert sites.log == []
        details.get_by_role("button", name="Turn on").click()
        details.get_by_role("button", name="Look up on Civitai").click()
        details.get_by_text("There is a newer version: v24.").wait_for(timeout=LONG)
        assert "credit needed" in details.inner_text()
        assert details.locator(".rt-facts b").count() == 0, "texts of a site are text"
        link = details.get_by_role("link", name=re.compile("^Open "))
        assert link.get_attribute("href") == f"{sites.url}/models/11?modelVersionId=22"
        assert details.get_by_label("Trigger words").input_value() == "zorp style, purple"
        fits(page, details)
        details.get_by_role("button", name="Download").click()
        details.get_by_text("Downloaded as zorp_v24.").wait_for(timeout=LONG)
        assert (served.loras / "zorp_v24.safetensors").read_bytes() == published
        details.get_by_text("The newer version is here: zorp_v24.").wait_for(timeout=LONG)
        details.get_by_role("button", name="Download").wait_for(state="detached")
        page.keyboard.press("Escape")
        tab.button("About zorp_v24").first.wait_for(timeout=LONG)
        tab.root.get_by_role("button", name="Filters").first.click()
        tab.button("Online: look files up").click()
        dialog = page.get_by_role("dialog", name="Civitai and Hugging Face")
        assert dialog.get_by_role("button", name="newer versions").is_disabled()
        dialog.get_by_role("button", name="Look up all files").click()
        dialog.get_by_role("progressbar", name="Progress").wait_for(timeout=LONG)
        fits(page, dialog)
        dialog.get_by_role("button", name="Cancel").click()
        dialog.get_by_text("Cancelled.").wait_for(timeout=LONG)
        (served.loras / "zorp_v24.safetensors").unlink()  # another program has deleted it
        httpx.post(f"{served.url}/remora/v1/refresh", headers=JSON)
        fits(page, dialog)
        dialog.get_by_role("button", name="Download 1 newer version").click()
        dialog.get_by_text("1 newer version downloaded").wait_for(timeout=LONG)
        assert (served.loras / "zorp_v24.safetensors").read_bytes() == published
        dialog.get_by_label("Page of a model").fill("https://evil.example/models/1")
        dialog.get_by_role("button", name="Download", exact=True).click()
        dialog.get_by_text("this is not the address of a model's page on Civitai or Hugging Face").wait_for(
            timeout=LONG
        )
        dialog.get_by_role("button", name="Turn off").click()
        dialog.get_by_role("button", name="Turn on").wait_for(timeout=LONG)
