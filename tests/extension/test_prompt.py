from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extension.prompt import PromptError, Tag, format_tag, parse, parse_arguments
from lib_lora import Entry, LoraError

NAMES = st.text(st.characters(exclude_characters="<>:", exclude_categories=["Cs", "Cc"]), min_size=1).filter(
    lambda name: name == name.strip()
)
NUMBERS = st.floats(-10, 10, allow_nan=False)
TAGS = st.builds(
    Tag, NAMES, NUMBERS, NUMBERS, st.none() | st.integers(1, 512), st.frozensets(st.sampled_from(["high", "low"]))
)


@pytest.mark.parametrize(
    ("written", "tag"),
    [
        ("<lora:foo>", Tag("foo", 1.0, 1.0)),
        ("<lora:foo:0.8>", Tag("foo", 0.8, 0.8)),
        ("<lora:foo:0.5:1.0>", Tag("foo", 0.5, 1.0)),
        ("<lora:foo:0.5:1.0:16>", Tag("foo", 0.5, 1.0, 16)),
        ("<lora:foo:te=0.4:unet=0.9:dyn=16>", Tag("foo", 0.4, 0.9, 16)),
        ("<lora:foo:te=0.4>", Tag("foo", 0.4, 0.4)),
        ("<lora:foo:unet=0.9>", Tag("foo", 1.0, 0.9)),
        ("<lora:foo:0.5:te=0.2>", Tag("foo", 0.2, 0.2)),
        ("<lyco:foo:-1>", Tag("foo", -1.0, -1.0)),
        ("<LoRA:foo:.5>", Tag("foo", 0.5, 0.5)),
        ("<lora:sub/[XL] my.lora v1.5 :1e-1>", Tag("sub/[XL] my.lora v1.5", 0.1, 0.1)),
        ("<lora:a=b:1>", Tag("a=b", 1.0, 1.0)),
        ("<lora:foo:0.7:high>", Tag("foo", 0.7, 0.7, None, frozenset({"high"}))),
        ("<lora:foo:LOW>", Tag("foo", 1.0, 1.0, None, frozenset({"low"}))),
        ("<lora:foo:high:0.7:low:0.5>", Tag("foo", 0.7, 0.5, None, frozenset({"high", "low"}))),
    ],
)
def test_every_written_form(written: str, tag: Tag) -> None:
    assert parse(f"a {written} b").tags == (tag,)


def test_a_tag_may_be_for_one_expert_alone() -> None:
    (tag,) = parse("<lora:foo:0.7:high>").tags
    found = Entry("foo.safetensors", tag.multiplier)
    names = ("transformer", "transformer_2", "text_encoder", "unet")
    assert [found.strength(name) for name in names] == [0.7, 0.0, 0.7, 0.7]
    (tag,) = parse("<lora:foo:low>").tags
    assert [Entry("foo.safetensors", tag.multiplier).strength(name) for name in names] == [0.0, 1.0, 1.0, 1.0]
    (tag,) = parse("<lora:foo:0.7>").tags
    assert [Entry("foo.safetensors", tag.multiplier).strength(name) for name in names] == [0.7] * 4


def test_tags_are_cut_out_and_everything_else_stays() -> None:
    parsed = parse("a <lora:x:1>, (b:1.2) <hypernet:h:1> 1 < 2 <lora:x:0.5>")
    assert parsed.text == "a , (b:1.2) <hypernet:h:1> 1 < 2 "
    assert parsed.tags == (Tag("x"), Tag("x", 0.5, 0.5))  # the same file twice: both apply


@pytest.mark.parametrize(
    ("prompt", "place", "reason"),
    [
        ("a <lora:x:1.1.>", "1.1.", "'1.1.' is not a number"),
        ("a <lora:x:>", ">", "'' is not a number"),
        ("a <lora:x:1:nan>", "nan", "'nan' is not a number"),
        ("a <lora:x:1e999>", "1e999", "is not a number"),
        ("a <lora:x:1:1:0>", "0>", "is not a rank"),
        ("a <lora:x:dyn=4.5>", "4.5", "is not a rank"),
        ("a <lora:x:1:1:8:9>", "9>", "a fourth number"),
        ("a <lora:x:lbw=1>", "lbw", "'lbw' is no setting"),
        ("a <lora:x:te=1:te=2>", "te=2", "set twice"),
        ("a <lora::1>", ":1>", "name is missing"),
        ("a <lora:x:1 and more", "<lora", "not closed"),
        ("a <lora:x:1 <lora:y:1>", "<lora:x", "not closed"),
    ],
)
def test_an_error_shows_the_text_and_the_place(prompt: str, place: str, reason: str) -> None:
    with pytest.raises(PromptError, match="expected <lora:name") as caught:
        parse(prompt)
    error = caught.value
    assert prompt[error.position :].startswith(place)
    assert f"character {error.position + 1} of" in str(error)
    assert reason in error.reason
    assert error.text in str(error)
    assert error.text in prompt
    assert isinstance(error, LoraError)


def test_one_number_stays_one_and_two_name_the_components() -> None:
    assert Tag("x", 0.5, 0.5).multiplier == 0.5
    model = dict.fromkeys(("unet", "transformer", "prior", "llm_adapter"), 1.0)
    assert Tag("x", 0.5, 1.0).multiplier == {"text_encoder": 0.5, **model}


def test_a_tag_is_off_only_when_all_is_zero() -> None:
    assert parse("<lora:x:0>").tags[0].is_off
    assert not parse("<lora:x:0:1>").tags[0].is_off
    assert not parse("<lora:x:1:0>").tags[0].is_off


def test_arguments_alone_are_read_as_in_a_tag() -> None:
    assert parse_arguments("x:0.5:1:8") == Tag("x", 0.5, 1.0, 8)
    with pytest.raises(PromptError) as caught:
        parse_arguments("x:what")
    assert "<lora:x:what>"[caught.value.position :].startswith("what")


@given(st.lists(TAGS, max_size=4), st.text(st.characters(exclude_characters="<>")))
def test_what_is_written_is_read_back(tags: list[Tag], text: str) -> None:
    parsed = parse(text.join(["", *map(format_tag, tags), ""]))
    assert parsed.tags == tuple(tags)
    assert parsed.text == text * (len(tags) + 1)


@given(st.text(st.sampled_from("<>:lora lyco te=unet=dyn=0.1-x"), max_size=60))
def test_any_text_is_read_or_refused_at_a_place_inside_it(prompt: str) -> None:
    error, text = None, prompt
    try:
        text = parse(prompt).text
    except PromptError as caught:
        error = caught
    if error is not None:
        assert 0 <= error.position < len(prompt)
        assert error.text.removesuffix("...") in prompt
    assert len(text) <= len(prompt)
    assert set(text) <= set(prompt)
