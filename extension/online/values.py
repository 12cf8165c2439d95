"""Values of an answer, which may be anything: each is what it should be, or empty."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..library.notes import without_html

_LONGEST_LINE = 300  # characters
_LONGEST_TEXT = 10_000
_MOST_LINES = 100
_MOST_OBJECTS = 10_000
_INVISIBLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]+")
_NO_TAGS = str.maketrans({"<": "\u2039", ">": "\u203a"})  # quotation marks that look alike


def line(value: object, most: int = _LONGEST_LINE) -> str:
    """Return a text as one line without HTML; of a number, its digits; of all else, an empty text."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**15:
        value = str(value)
    return " ".join(text(value).split())[:most].strip()


def text(value: object) -> str:
    """Return a text without HTML and without characters that nobody sees."""
    if not isinstance(value, str):
        return ""
    # a program that shows it as HTML finds no tag in it, whatever was escaped
    lines = without_html(value[: 10 * _LONGEST_TEXT]).translate(_NO_TAGS).splitlines()
    return "\n".join(_INVISIBLE.sub(" ", one).strip() for one in lines)[:_LONGEST_TEXT].strip()


def lines(value: object) -> tuple[str, ...]:
    """Return the texts of a list, or a single one."""
    values = value if isinstance(value, list) else [value]
    return tuple(one for one in map(line, values[:_MOST_LINES]) if one)


def mapping(value: object) -> Mapping[str, Any]:
    """Return an object; of all else, an empty one."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[Mapping[str, Any]]:
    """Return the objects of a list."""
    return [one for one in value[:_MOST_OBJECTS] if isinstance(one, dict)] if isinstance(value, list) else []


def whole(value: object) -> int:
    """Return a whole number from 0 on; of all else, 0."""
    return value if type(value) is int and 0 <= value < 1 << 53 else 0


def digest(value: object) -> str:
    """Return a SHA-256 in lower case; of all else, an empty text."""
    return value.lower() if isinstance(value, str) and re.fullmatch(r"[0-9a-fA-F]{64}", value) else ""


def date(value: object) -> str:
    """Return a point in time as ISO 8601 has it, which sorts as text; of all else, an empty text."""
    return value if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]{5,15}Z?", value) else ""


def prompt_words(value: object) -> tuple[str, ...]:
    """Return trigger words without tags of LoRA, which a click would insert into the prompt."""
    values = value if isinstance(value, list) else [value]
    plain = [re.sub(r"<[^<>]*>|[<>]", " ", one) if isinstance(one, str) else one for one in values]
    return tuple(stripped for one in lines(plain) if (stripped := one.strip(" ,")))
