"""A running web UI for the tests of its page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from extension.standalone.demo import Demo
from tests.conftest import find_chromium
from tests.extension.ui.serving import Served, fill, opened, playwright, serving
from tests.fakes.sites import FakeSites, serving_sites


@pytest.fixture(scope="package")
def sites() -> Iterator[FakeSites]:
    """Yield what stands for Civitai and Hugging Face."""
    with serving_sites() as sites:
        yield sites


@pytest.fixture(scope="package")
def served(demo: Demo, sites: FakeSites, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Yield the web UI in a process of its own, as a user starts it; each test leaves it unchanged."""
    arguments = [f"--model={demo.model}", f"--lora-dir={demo.loras}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CIVITAI_ENDPOINT", sites.url)
        patch.setenv("HF_ENDPOINT", sites.url)
        with serving(tmp_path_factory.mktemp("pictures"), demo.loras, arguments) as served:
            yield served


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """One Chromium for all tests of the folder; each of them has a page without memory.

    It is closed behind the last of them, as its event loop would be in the way of others.
    """
    chromium = find_chromium()
    assert chromium is not None, "mark this test `browser`"
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def page(served: Served, browser: Any) -> Iterator[Any]:
    """Yield the page with small and quick settings."""
    with opened(served, browser) as page:
        fill(page, "#width input[type=number]", "64")
        fill(page, "#height input[type=number]", "64")
        fill(page, "#steps input[type=number]", "2")
        fill(page, "#seed input", "7")
        yield page
