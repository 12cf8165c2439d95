"""JSON that was kept: other programs may have changed it since, and what is read of it is told again as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

_MOST = 2**53  # the whole numbers up to here are the same in any program


def read_json(text: str) -> Any:
    """Read JSON of which each number can be computed with, and told again.

    Raises:
        ValueError: it is none, or a number in it is too large or no number.
        RecursionError: it is nested too deeply.
    """
    return _DECODER.decode(text)


def demand(true: bool) -> None:
    """Refuse what is kept where it is not what was written.

    Raises:
        ValueError: it is not.
    """
    if not true:
        raise ValueError("it is not what was written")


def are_texts(values: Iterable[object]) -> bool:
    """Tell whether all of these are texts."""
    return all(isinstance(value, str) for value in values)


def is_count(value: object) -> bool:
    """Tell whether it is a whole number that counts something."""
    return type(value) is int and 0 <= value <= _MOST


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _float(text: str) -> float:
    number = float(text)
    demand(math.isfinite(number))
    return number


def _int(text: str) -> int:
    demand(len(text) <= 17)  # Python's integers have no end
    return int(text)


_DECODER = json.JSONDecoder(
    parse_constant=_no_constant, parse_float=_float, parse_int=_int
)  # thousands are read at once
