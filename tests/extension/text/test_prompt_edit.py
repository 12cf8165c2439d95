"""Changes of tags within a prompt. The same table holds the browser's code, see tests/javascript/prompt.test.js."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extension.text.prompt import PromptError, parse
from extension.text.prompt_edit import names_in, renamed, set_field, set_multipliers, with_field, with_strength, without

CASES: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "prompt_edits.json").read_text("utf-8"))
TEXT = st.text(st.characters(exclude_characters="<>", exclude_categories=["Cs"]), max_size=30)
NUMBER = st.floats(-100, 100, allow_nan=False).map(lambda value: round(value, 4))


@pytest.mark.parametrize(("arguments", "te", "unet", "wanted"), CASES["set_multipliers"])
def test_multipliers_are_set_where_they_are_written(arguments: str, te: float, unet: float, wanted: str) -> None:
    assert set_multipliers(arguments, te, unet) == wanted


def test_fields_are_set_where_they_are_written() -> None:
    wrong = [case for case in CASES["set_field"] if set_field(*case[:3]) != case[3]]
    assert wrong == []


@pytest.mark.parametrize(("text", "name", "te", "unet"), CASES["read"])
def test_what_is_written_is_read(text: str, name: str, te: float, unet: float) -> None:
    (tag,) = parse(text).tags
    assert (tag.name, tag.te, tag.unet) == (name, te, unet)


def test_what_cannot_be_read_is_refused_and_has_no_name() -> None:
    for text in CASES["refused"]:
        with pytest.raises(PromptError):
            parse(text)
        assert names_in(text) == [], text


@given(before=TEXT, after=TEXT, te=NUMBER, unet=NUMBER, former=NUMBER)
def test_nothing_else_is_touched(before: str, after: str, te: float, unet: float, former: float) -> None:
    prompt = f"{before}<lora:a b:{former}>{after}"
    changed = with_strength(prompt, "a b", te, unet)
    (tag,) = parse(changed).tags
    assert (tag.te, tag.unet) == (te, unet)
    assert parse(changed).text == before + after
    assert parse(with_strength(changed, "a b", former, former)) == parse(prompt)


@pytest.mark.parametrize(("points", "scaled"), [("2e38@0,1e38@1", "100@0,50@1"), ("1e999@0,1@1", "100")])
def test_a_schedule_of_huge_numbers_is_scaled(points: str, scaled: str) -> None:
    assert with_strength(f"<lora:a:{points}> <lora:a:1>", "a", 100, 100) == f"<lora:a:{scaled}> <lora:a:100>"


def test_a_tag_is_put_at_the_end_where_there_is_none() -> None:
    assert with_strength("a fox ", "b", 1, 1) == "a fox <lora:b:1>"
    assert with_strength("", "b", 0.5, 1) == "<lora:b:0.5:1>"


def test_a_tag_goes_with_the_blank_before_it() -> None:
    assert without("a fox <lora:b:1>, night <lora:c:1>", "b") == "a fox, night <lora:c:1>"
    assert without("<lora:b:1> a fox", "b") == " a fox"


def test_a_name_is_changed_and_nothing_else() -> None:
    assert renamed("x <lora: b :te=1:high> <lyco:b> <lora:c:1>", "b", "d") == "x <lora:d:te=1:high> <lyco:d> <lora:c:1>"


def test_a_field_is_set_in_every_tag_of_a_name_and_nothing_else() -> None:
    prompt = "x <lora: b :te=1:high> (y:1.2) <lyco:b:1:IN02> <lora:c:1>"
    changed = with_field(prompt, "b", "lbw", "OUTALL")
    assert changed == "x <lora: b :te=1:high:lbw=OUTALL> (y:1.2) <lyco:b:1:OUTALL> <lora:c:1>"
    assert with_field(changed, "b", "lbw", "") == "x <lora: b :te=1:high> (y:1.2) <lyco:b:1> <lora:c:1>"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<lora:b:1:0@0,1@1>", "<lora:b:0.5:0@0,0.5@1>"),
        ("<lora:b:0@0;2~10;1>", "<lora:b:0@0,0.5~10,0.25>"),
        ("<lora:b:1:0@0,0@1:stop=5>", "<lora:b:0.5:0.5@0,0.5@1:stop=5>"),
        ("<lora:b:1:IN02>", "<lora:b:0.5:IN02>"),
    ],
)
def test_a_strength_keeps_the_form_of_a_schedule(before: str, after: str) -> None:
    assert with_strength(before, "b", 0.5, 0.5) == after
