"""The browser's code for tags, held to the table that holds the server's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.extension.ui.serving import Served, opened

pytestmark = pytest.mark.browser
CASES: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "prompt_edits.json").read_text("utf-8"))
MODULE = "const m = await import('/remora/app/prompt.js');"

# prompt, index of the tag, its words, words of others -> prompt without both
WITHOUT = [
    ["a fox <lora:b:1>, night", 0, "", [], "a fox, night"],
    ["a fox, <lora:b:1> fur coat, night", 0, "fur coat", [], "a fox, night"],
    ["<lora:b:1> fur coat, night", 0, "fur coat", [], "night"],
    ["<lora:b:1> fur coat", 0, "fur coat", [], ""],
    ["<lora:b:1> fur coats", 0, "fur coat", [], "fur coats"],
    ["fur coat, a fox <lora:b:1>", 0, "fur coat", [], "a fox"],
    ["a fox, fur coat, x <lora:b:1>", 0, "fur coat", ["fur coat"], "a fox, fur coat, x"],
    ["a (fur coat:1.2) fox <lora:b:1>", 0, "fur coat", [], "a (fur coat:1.2) fox"],
    ["x <lora:a:1> <lora:b:1> y", 1, "", [], "x <lora:a:1> y"],
]
# before, after, what it has become since -> what taking it back gives
BACK = [
    ["a fox", "a fox <lora:b:1>", "a fox <lora:b:1>", "a fox"],
    ["a fox", "a fox <lora:b:1>", "a big fox <lora:b:1>, night", "a big fox, night"],
    ["a <lora:b:1> c", "a <lora:b:0.5> c", "x a <lora:b:0.5> c y", "x a <lora:b:1> c y"],
    ["a fox", "a fox <lora:b:1>", "something else", None],
]
# body of a tag -> strengths for text encoders and UNet, the rest of an entry, and the body it becomes in a prompt again
ENTRIES = [
    ["a", 1, 1, "", "a:1"],
    ["a:0.5:0.7:8", 0.5, 0.7, "dyn=8", "a:0.5:0.7:dyn=8"],
    ["a:0.5:IN02:0.3:high", 0.5, 0.5, "lbw=IN02:x=0.3:high", "a:0.5:lbw=IN02:x=0.3:high"],
    ["a:0.8:0@0,1@1:stop=10", 0.8, 1, "unet=0@0,1@1:stop=10", "a:0.8:0@0,1@1:stop=10"],
    ["a:te=0@0;1@1:pass=hires", 1, 1, "te=0@0;1@1:unet=0@0;1@1:pass=hires", "a:0@0;1@1:pass=hires"],
]


@pytest.fixture(scope="module")
def run(served: Served, browser: Any) -> Any:
    with opened(served, browser) as page:
        yield lambda code, *given: page.evaluate(f"async given => {{ {MODULE} return {code} }}", list(given))


def test_multipliers_are_set_as_on_the_server(run: Any) -> None:
    got = run("given.map(([body, te, unet]) => m.setMultipliers(body, te, unet))", *CASES["set_multipliers"])
    assert got == [wanted for *_, wanted in CASES["set_multipliers"]]


def test_fields_are_set_as_on_the_server(run: Any) -> None:
    got = run("given.map(([body, key, value]) => m.setField(body, key, value))", *CASES["set_field"])
    assert got == [wanted for *_, wanted in CASES["set_field"]]


def test_schedules_are_read_as_points_in_order(run: Any) -> None:
    points = "tag => [tag.teCurve, tag.unetCurve].map(c => c && c.map(p => [p.value, p.at]))"
    got = run(f"given.map(([text]) => m.readTags(text)[0]).map({points})", *CASES["curves"])
    assert got == [[te, unet] for _, te, unet in CASES["curves"]]
    assert not any(run("given.map(([text]) => m.readTags(text)[0].problem)", *CASES["curves"], *CASES["read"]))


def test_an_entry_that_is_always_on_keeps_all_that_its_tag_says(run: Any) -> None:
    got = run("given.map(([body]) => m.entryOf(body)).map(e => [e.text_encoder, e.unet, e.more])", *ENTRIES)
    assert got == [[te, unet, more] for _, te, unet, more, _ in ENTRIES]
    back = run("given.map(([body]) => m.tagOf({name: 'a', ...m.entryOf(body)}))", *ENTRIES)
    assert back == [f"<lora:{body}>" for *_, body in ENTRIES]
    again = run("given.map(([body]) => m.entryOf(m.bodyOf({name: 'a', ...m.entryOf(body)})).more)", *ENTRIES)
    assert again == [more for _, _, _, more, _ in ENTRIES]


def test_tags_are_read_as_on_the_server(run: Any) -> None:
    got = run("given.map(([text]) => m.readTags(text)[0]).map(t => [t.text, t.name, t.te, t.unet])", *CASES["read"])
    assert got == CASES["read"]
    assert all(run("given.map(text => m.readTags(text)[0].problem)", *CASES["refused"]))


def test_a_tag_goes_with_its_words_and_nothing_else(run: Any) -> None:
    got = run("given.map(([p, i, words, others]) => m.withoutEntry(p, i, words, others))", *WITHOUT)
    assert got == [wanted for *_, wanted in WITHOUT]


def test_what_is_inserted_is_removed_again(run: Any) -> None:
    prompts = ["", "a fox", "a fox,", "a fox.", "x <lora:a:1>", "a, b , c"]
    made = run("given.map(p => m.withEntry(p, '<lora:b:1>', 'fur, ink'))", *prompts)
    assert made[1] == "a fox, <lora:b:1> fur, ink"
    back = run("given.map(p => m.withoutEntry(p, m.readTags(p).length - 1, 'fur, ink'))", *made)
    assert back == ["", "a fox", "a fox", "a fox.", "x <lora:a:1>", "a, b , c"]


def test_a_change_is_taken_back_within_what_was_typed_since(run: Any) -> None:
    got = run("given.map(([before, after, now]) => m.takenBack(before, after, now))", *BACK)
    assert got == [wanted for *_, wanted in BACK]


def test_words_are_found_whole_outside_of_tags(run: Any) -> None:
    cases = [["a Fur Coat, x", "fur coat"], ["fur coats", "fur coat"], ["<lora:fur:1>", "fur"], ["abc", ""], ["", "x"]]
    assert run("given.map(([prompt, words]) => m.hasWords(prompt, words))", *cases) == [True, False, False, True, False]


def test_ranges_of_strengths(run: Any) -> None:
    values = "(await import('/remora/app/ui/compare.js')).valuesOf"
    assert run(f"given.map({values})", "0, 0.5,1", "0-1 (0.25)", "-1 - 1 [3]", "0.1") == [
        [0, 0.5, 1],
        [0, 0.25, 0.5, 0.75, 1],
        [-1, 0, 1],
        [0.1],
    ]
    for bad in ("", "x", "0-1", "0-1 (0)", "0-1 [999]", "1,,x"):
        code = "(() => { try { values(given[0]); return '' } catch (error) { return error.message } })()"
        assert run(f"await (async () => {{ const values = {values}; return {code} }})()", bad), bad
