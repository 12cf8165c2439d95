from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from extension.text.infotext import _SETTING, Infotext, format_hashes, format_infotext, parse_hashes, parse_infotext
from tests.selection import examples

FUZZ = settings(max_examples=examples(3000), deadline=None)
SETTINGS = {"Steps": "20", "Sampler": "Euler a", "CFG scale": "7", "Seed": "1", "Size": "512x512"}


def test_the_format_is_that_of_a1111() -> None:
    info = Infotext("a red fox <lora:fur:0.8>", "blurry", {**SETTINGS, "Lora hashes": "fur: 0123456789ab"})
    assert format_infotext(info) == (
        "a red fox <lora:fur:0.8>\n"
        "Negative prompt: blurry\n"
        'Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: 1, Size: 512x512, Lora hashes: "fur: 0123456789ab"'
    )


def test_a_text_written_by_a1111_is_read() -> None:
    text = (
        "two\nlines\nNegative prompt: bad,\nworse\n"
        "Steps: 20, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 7, Seed: 1, Size: 64x64, Model: a b, "
        'TI hashes: "x: 1, y: 2", Lora hashes: "a: 0123456789ab, b: ba9876543210", Version: v1.10.1'
    )
    info = parse_infotext(text)
    assert info.prompt == "two\nlines"
    assert info.negative_prompt == "bad,\nworse"
    assert info.settings["Sampler"] == "DPM++ 2M"
    assert info.settings["Version"] == "v1.10.1"
    assert parse_hashes(info.settings["Lora hashes"]) == [("a", "0123456789ab"), ("b", "ba9876543210")]
    sdnext = parse_infotext("a fox\nNegative prompt: \nTemplate: a fox\nSteps: 2, Seed: 3, App: SD.Next, Size: 8x8")
    assert (sdnext.prompt, sdnext.negative_prompt) == ("a fox", ""), "a template is no prompt"
    other = parse_infotext("a fox\nTemplate: x\nSteps: 2, Seed: 3, Size: 8x8")
    assert other.prompt == "a fox\nTemplate: x"


def test_a_text_without_settings_is_all_prompt() -> None:
    assert parse_infotext("a fox, Steps: many") == Infotext("a fox, Steps: many")
    assert parse_infotext("") == Infotext()


def test_a_last_line_of_three_settings_is_no_prompt_and_one_of_two_is() -> None:
    two = "a fox\nnear: me, far: you"
    assert parse_infotext(two) == Infotext(two), "as in the original"
    assert parse_infotext(f"{two}, Seed: 1") == Infotext("a fox", "", {"near": "me", "far": "you", "Seed": "1"})


# AUTOMATIC1111/stable-diffusion-webui modules/infotext_utils.py, `re_param_code`
ORIGINAL = re.compile(r'\s*(\w[\w \-/]+):\s*("(?:\\.|[^\\"])+"|[^,]*)(?:,|$)')


@FUZZ
@given(st.text(st.sampled_from('ab1_é -/:,"\\\t;.'), max_size=40))
def test_settings_are_found_where_the_originals_pattern_finds_them(line: str) -> None:
    assert _SETTING.findall(line) == ORIGINAL.findall(line)


def test_hashes_keep_their_separators_to_themselves() -> None:
    assert format_hashes([("a,b:c", "12"), ("d", "34")]) == "abc: 12, d: 34"


LINES = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1)
PROMPTS = (
    st.lists(LINES, max_size=3)
    .map("\n".join)
    .map(str.strip)
    .filter(lambda text: not any(line.strip().startswith("Negative prompt:") for line in text.split("\n")))
)
VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = st.from_regex(re.compile(r"[A-Za-z][A-Za-z0-9 /-]{0,12}[A-Za-z0-9]", re.ASCII), fullmatch=True)


@given(PROMPTS, PROMPTS, st.dictionaries(NAMES, VALUES, max_size=4))
def test_what_is_written_is_read_back(prompt: str, negative: str, extra: dict[str, str]) -> None:
    info = Infotext(prompt, negative, {**SETTINGS, **extra})
    assert parse_infotext(format_infotext(info)) == info


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert isinstance(parse_infotext(text), Infotext)
