"""What may be meant by a name that does not exist, or by a text that is no number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from extension.text.similar import did_you_mean, number_meant, similar

CASES: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "similar.json").read_text("utf-8"))


@pytest.mark.parametrize(("word", "names", "wanted"), CASES["similar"])
def test_names_are_suggested(word: str, names: list[str], wanted: list[str]) -> None:
    assert similar(word, names) == wanted


@pytest.mark.parametrize(("text", "wanted"), CASES["numbers"])
def test_numbers_are_suggested(text: str, wanted: str) -> None:
    assert number_meant(text) == wanted


def test_a_suggestion_is_the_end_of_a_sentence() -> None:
    assert (did_you_mean(["a", "b"]), did_you_mean([])) == ("did you mean a or b?", "")


def test_no_word_is_compared_with_more_than_some_names() -> None:
    compared = []
    names = (compared.append(i) or f"{'a' * 5000}{i}" for i in range(100_000))
    assert similar("b" * 100_000, names) == []
    assert len(compared) <= 200
