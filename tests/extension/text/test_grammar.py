"""Tags inside a prompt's grammar: `extension/text/grammar.py` and `placed.py`."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extension.text import placed
from extension.text.grammar import read
from extension.text.prompt import PromptError, parse, parse_placed
from extension.text.steps import TurnByHost
from extension.text.tag import Tag
from lib_lora import Window
from tests.selection import examples

CASES = json.loads((Path(__file__).parents[2] / "data" / "prompt_grammar.json").read_text("utf-8"))
PIECES = ["(", ")", "[", "]", ":", "|", "\\", " AND ", "a", "<lora:a:1>", "<lora:b:0.5:stop=4>", ":0.4", ":1.2", ":7"]


@pytest.mark.parametrize(("prompt", "on", "text", "words"), CASES)
def test_every_place_and_what_is_left_of_the_prompt(prompt: str, on: bool, text: str, words: list[list[str]]) -> None:
    found = read(prompt, on=on, parts=True)
    assert found.text == text
    assert [list(one.limits.words) for _, one in found.tags] == words
    assert read(found.with_tags, on=on, parts=True).text.replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize(
    ("place", "written"),
    [
        ("[<lora:a:1>::0.4]", "<lora:a:1:stop=0.4>"),
        ("[<lora:a:0.8:unet=0.5>:10]", "<lora:a:0.8:unet=0.5:start=10>"),
        ("[<lora:a:1>:<lora:b:1>:0.5]", "<lora:a:1:stop=0.5><lora:b:1:start=0.5>"),
        ("(<lora:a:0.8:hr=0.4>:1.5)", "<lora:a:1.2:hr=0.6>"),
        ("(<lora:a:0@0,1@0.5:in=0.3>:2)", "<lora:a:0@0,2@0.5:in=0.6>"),
        ("[[<lora:a:1>::0.6]:0.2]", "<lora:a:1:start=0.2:stop=0.6>"),
    ],
)
def test_a_place_means_what_the_same_fields_mean(place: str, written: str) -> None:
    placed, plain = parse(place, on=True).tags, parse(written).tags
    assert [tag.multiplier for tag in placed] == [tag.multiplier for tag in plain]
    assert parse(place.replace(":0.8", ":0.8:grammar=1"), on=True).text == ""
    assert parse(place).tags == tuple(parse(re.sub(r"[^<]*(<[^>]*>)[^<]*", r"\1", place)).tags)


def test_limits_of_a_place_are_beside_those_of_the_tag() -> None:
    (tag,) = parse("[<lora:a:1:stop=4:sigma=9-2>:0.2]", on=True).tags
    assert tag.during == Window(start=0.2, within=Window(stop=4, high=9, low=2))
    both = parse("[[[<lora:a:1>|b]:2]::0.5]", on=True).tags[0].during
    assert both == TurnByHost(turn=(0, 2), within=Window(start=2, within=Window(stop=0.5)))


def test_a_tag_of_the_negative_prompt_is_for_its_half() -> None:
    prompt = "bad (<lora:a:1>:0.5) <lora:b:1:half=pos> AND"
    on, off = parse(prompt, on=True, negative=True), parse(prompt, negative=True)
    assert on.tags == (Tag("a", 0.5, 0.5, half="neg"), Tag("b", half="pos"))
    assert on.text == "bad   AND"
    assert (off.tags, off.text) == ((), prompt)
    assert "negative prompt" in off.placed[0].unread


def test_a_place_that_does_not_count_says_so_and_what_to_do() -> None:
    (timed, strong, plain) = parse("[<lora:my\\: a:1>::0.4] (<lora:b:1>) <lora:c:1>").placed
    assert timed.unread.startswith("my: a acts in all steps: its place in the prompt (until 40 %) does not count")
    assert "at its own strength" in strong.unread
    assert "grammar=1" in strong.unread
    assert plain.unread == ""
    (never,) = parse("[<lora:a:1>:1.0]", on=True).placed
    assert never.unread == "a never acts at its place in the prompt"


def test_a_tag_that_is_not_closed_has_no_place() -> None:
    found = read("a <lora:a", on=False, negative=True), read("bad AND <lora:a", on=True, parts=True)
    unclosed = [tag for one in found for _, tag in one.tags]
    assert [tag.limits.words for tag in unclosed] == [("negative prompt",), ("part 2",)]
    assert [tag.place.note for tag in unclosed] == ["", ""]
    assert placed.parameters(unclosed) == {}


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_off_reads_as_ever_and_on_keeps_all_words(prompt: str) -> None:
    off, on = read(prompt, on=False, parts=True), read(prompt, on=True, parts=True)
    assert off.text == re.sub(r"<lora:[^<>]*>", "", prompt)
    assert off.with_tags == prompt
    assert [one for _, one in on.tags] == re.findall(r"<lora:([^<>]*)>", on.with_tags)
    assert re.findall("[a\\\\]|AND", on.text) == re.findall("[a\\\\]|AND", off.text)


def test_a_field_of_many_blanks_takes_no_long_time() -> None:
    blanks, start = " " * 20_000, time.process_time()
    for field in (f"{blanks}-{blanks}", f"{blanks}x{blanks}", f"5{blanks}-{blanks}x"):
        with pytest.raises(PromptError):
            parse(f"<lora:a:{field}>")
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("before", "unit", "after"),
    [
        *(
            ("", unit, "")
            for unit in ("(<lora:a:1>", "[<lora:a:1>|", "&lt;lora:", "<lora:a ", "[(:", ")]", "AND ", "<")
        ),
        ("[", "<lora:a:1>|", "]"),
    ],
)
def test_a_long_prompt_takes_linear_time(before: str, unit: str, after: str) -> None:
    def seconds(length: int) -> float:
        prompt, start = before + unit * (length // len(unit)) + after, time.process_time()
        read.__wrapped__(prompt, on=True, parts=True)  # as its results are kept
        return time.process_time() - start

    short, long = (min(seconds(length) for _ in range(2)) for length in (25_000, 100_000))
    assert long < 12 * short + 0.05  # four times as long; 16 times the time if it were quadratic


@pytest.mark.parametrize(
    ("prompt", "note"),
    [
        ("a <lora:x:1:mask=left:part=9>", "x is for part 9 of the prompt, whose last part is 1"),
        ("a AND b <lora:x:1:mask=left:part=3>", "x is for part 3 of the prompt, whose last part is 2"),
        ("a AND b <lora:x:1:mask=left:part=1>", ""),
        ("a AND b <lora:x:1:mask=left>", ""),
    ],
)
def test_a_part_that_the_prompt_does_not_have_is_said(prompt: str, note: str) -> None:
    ((_, one),) = read(prompt, on=True, parts=True).tags
    assert parse_placed(one).place.note.partition(";")[0] == note
    ((_, whole),) = read(prompt, on=True).tags
    assert parse_placed(whole).place.note == "", "where AND divides no prompt, nothing tells"
