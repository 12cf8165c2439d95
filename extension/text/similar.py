"""What may be meant by a name that does not exist, or by a text that is no number; pure.

The tab's javascript/remora/similar.js does the same, and one table of cases holds both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

from .block_weights import is_number
from .spelling import NARROW

_MOST = 3  # suggestions
_LONGEST = 60  # characters of a name that is compared
_COMPARED = 200  # names
_FARTHEST = 3  # letters that differ
_BEGINNING = 3  # letters of a name that stand for all of it
_PERCENT = 100
_AROUND = re.compile(
    r"(?:x|[^0-9a-z.+ -]){0,2} *([+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)) *([^0-9 ]{0,2})", re.IGNORECASE | re.ASCII
)
"""A number with marks before it, and with marks or letters behind it, as (0.7), x0.7 and 0.7f; IN02 is a block."""
_DASHES = re.compile("[\u2010-\u2015\u2212]")
"""Dashes and the minus sign, which keyboards of phones and texts from the web have for a hyphen."""


def similar(word: str, names: Iterable[str]) -> list[str]:
    """Return up to three names that a word may mean, the likeliest first: if some differ in case only, these alone."""
    wanted = word.strip().lower()[:_LONGEST]
    most = max(1, min(_FARTHEST, len(wanted) // 3))
    found = []
    for name in islice(names, _COMPARED):
        distance = _distance(wanted, name.lower()[:_LONGEST], most) if wanted else most + 1
        if distance <= most:
            found.append((distance, name))
    found.sort(key=lambda one: one[0])
    is_exact = bool(found) and found[0][0] == 0
    return [name for distance, name in found[:_MOST] if not (is_exact and distance)]


def _distance(word: str, name: str, most: int) -> int:
    """Count the letters that are missing, superfluous, other, or exchanged with the next one; at most `most` + 1."""
    shorter, longer = sorted((word, name), key=len)
    if len(shorter) >= _BEGINNING and longer.startswith(shorter):
        return min(1, len(longer) - len(shorter))
    if len(longer) - len(shorter) > most:
        return most + 1
    before: list[int] = []
    above = list(range(len(name) + 1))
    for i, letter in enumerate(word, 1):
        row = [i]
        for j, other in enumerate(name, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != other)))
            if i > 1 and j > 1 and letter == name[j - 2] and word[i - 2] == other:
                row[j] = min(row[j], before[j - 2] + 1)
        before, above = above, row
    return above[-1]


def number_meant(text: str) -> str:
    """Return the number that a text may mean which is none, such as 0,7; empty if there is none."""
    plain = _plain(text)
    if is_number(plain):
        return "" if plain == text.strip() else plain
    around = _AROUND.fullmatch(plain)
    if around is None or not is_number(around[1]):
        return ""
    return f"{float(around[1]) / _PERCENT:.12g}" if "%" in around[2] else around[1]


def range_meant(text: str) -> str:
    """Return a text with the marks of a range, such as 0.2-0.8 for 0,2\u20130,8; it may be no range."""
    return _plain(text)


def _plain(text: str) -> str:
    return _DASHES.sub("-", text.strip().translate(NARROW)).replace(",", ".")


def did_you_mean(names: Iterable[str]) -> str:
    """Return the end of a sentence that asks whether one of the names is meant; empty without names."""
    asked = " or ".join(names)
    return f"did you mean {asked}?" if asked else ""
