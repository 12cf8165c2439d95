"""Words that come and go with a LoRA: the user's own stay, and a file's bring nothing else along."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.extension.ui.serving import LONG, Served, opened_small
from tests.extension.ui.tab import SHADOW, Tab

pytestmark = pytest.mark.browser
NEGATIVE = "#negative textarea"


@pytest.fixture
def tab(served: Served, browser: Any) -> Iterator[Tab]:
    with opened_small(served, browser) as page:
        yield Tab(page).ready()


@pytest.fixture
def noted(served: Served, tab: Tab) -> Iterator[Any]:
    """Make LoRA files with words; they are called after the notes."""
    made: list[Path] = []

    def make(**notes: dict[str, str]) -> None:
        for name, words in notes.items():
            path = served.loras / f"{name}.safetensors"
            path.write_bytes((served.loras / "zorp.safetensors").read_bytes())
            path.with_suffix(".json").write_text(json.dumps(words), "utf-8")
            made.extend((path, path.with_suffix(".json")))
        httpx.post(f"{served.url}/remora/v1/refresh").raise_for_status()
        for name in notes:
            tab.button(f"Insert {name} into the prompt").wait_for(timeout=LONG)

    yield make
    for path in made:
        path.unlink()
    httpx.post(f"{served.url}/remora/v1/refresh").raise_for_status()
    httpx.put(f"{served.url}/remora/v1/stack", json={}).raise_for_status()


def negative(tab: Tab) -> str:
    return str(tab.page.input_value(NEGATIVE))


def focused(tab: Tab, label: str) -> None:
    """Wait until the element of a label has the focus."""
    script = f"label => {SHADOW}.activeElement?.getAttribute('aria-label') === label"
    tab.page.wait_for_function(script, arg=label, timeout=LONG)


def test_words_for_the_negative_prompt_come_and_go_whole(tab: Tab, noted: Any) -> None:
    noted(cats={"activation text": "cat lady", "negative text": "cat, Blurry"})
    tab.page.fill(NEGATIVE, "caterpillar, blurry")
    tab.insert("cats")
    tab.prompt_is("<lora:cats:1> cat lady")
    assert negative(tab) == "caterpillar, blurry, cat"
    tab.button("Remove cats from the prompt").click()
    tab.prompt_is("")
    assert negative(tab) == "caterpillar, blurry"


def test_words_that_the_user_typed_stay(tab: Tab, noted: Any) -> None:
    noted(cats={"activation text": "cat lady", "negative text": "blurry"})
    tab.page.fill(NEGATIVE, "ugly, blurry")
    tab.write("cat lady, a house")
    tab.insert("cats")
    tab.prompt_is("cat lady, a house <lora:cats:1>")
    tab.button("Remove cats from the prompt").click()
    tab.prompt_is("cat lady, a house")
    assert negative(tab) == "ugly, blurry"


def test_words_that_another_lora_needs_stay_until_it_goes(tab: Tab, noted: Any) -> None:
    noted(
        cats={"activation text": "fur coat", "negative text": "blurry"},
        dogs={"activation text": "fur", "negative text": "blurry"},
    )
    tab.insert("cats", "dogs")
    tab.prompt_is("<lora:cats:1> fur coat <lora:dogs:1>")
    tab.row("cats").get_by_role("button", name="Remove cats").click()
    focused(tab, "Remove dogs")
    tab.prompt_is("fur coat <lora:dogs:1>")
    assert negative(tab) == "blurry"
    tab.row("dogs").get_by_role("button", name="Remove dogs").click()
    tab.prompt_is("fur coat")
    assert negative(tab) == ""


def test_words_go_and_come_back_with_every_way_out_of_the_prompt(tab: Tab, noted: Any) -> None:
    noted(cats={"activation text": "cat lady", "negative text": "dog"})
    tab.page.fill(NEGATIVE, "ugly")
    tab.insert("cats")
    tab.row("cats").get_by_label("cats on").uncheck()
    tab.prompt_is("")
    assert negative(tab) == "ugly"
    tab.row("cats").get_by_label("cats on").check()
    tab.prompt_is("<lora:cats:1> cat lady")
    assert negative(tab) == "ugly, dog"
    tab.button("Remove all LoRA").click()
    tab.prompt_is("")
    focused(tab, "Undo")  # as the button that had it can do nothing now
    assert negative(tab) == "ugly"
    tab.button("Undo").click()
    tab.prompt_is("<lora:cats:1> cat lady")
    assert negative(tab) == "ugly, dog"
    tab.row("cats").get_by_role("button", name="Remove cats").click()
    tab.prompt_is("")
    assert negative(tab) == "ugly"


def test_words_of_a_file_bring_no_other_lora_along(tab: Tab, noted: Any) -> None:
    words = "<lora:night:5> cat\nlady, __colour__, <s1>, <lora:stripes:1"
    noted(cats={"activation text": words, "negative text": "dog <lora:night:5>\nbad"})
    tab.insert("cats")
    tab.prompt_is("<lora:cats:1> cat lady, __colour__, <s1>, lora:stripes:1")
    assert negative(tab) == "dog bad"
    assert tab.page.evaluate("window.remoraTab.stack.rows().map(row => row.name)") == ["cats"]
    tab.button("Remove cats from the prompt").click()
    tab.prompt_is("")
    assert negative(tab) == ""


def test_what_goes_from_always_on_into_the_prompt_is_there_once(tab: Tab, served: Served) -> None:
    entries = [{"name": "zorp", "unet": 0.8, "text_encoder": 0.8, "more": "stop=5"}]
    httpx.put(f"{served.url}/remora/v1/stack", json={"always_on": True, "entries": entries}).raise_for_status()
    try:
        tab.row("zorp", "Always on").wait_for(timeout=LONG)
        tab.write("a fox <lora:zorp:0.5> in the snow, <lora:night:1>")
        tab.button("Into the prompt: move zorp").click()
        tab.prompt_is("a fox <lora:zorp:0.8:stop=5> in the snow, <lora:night:1>")
        tab.root.get_by_text("The tag of zorp in the prompt now has the settings of “Always on”.").wait_for()
        tab.saved()
        assert httpx.get(f"{served.url}/remora/v1/stack").json()["entries"] == []
        tab.button("Undo").click()
        tab.prompt_is("a fox <lora:zorp:0.5> in the snow, <lora:night:1>")
        tab.row("zorp", "Always on").wait_for()
    finally:
        httpx.put(f"{served.url}/remora/v1/stack", json={}).raise_for_status()
