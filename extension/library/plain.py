"""Stored JSON that other programs may have changed, and that is sent again as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

_MOST = 2**53  # any program can represent the whole numbers up to here


def read_json(text: str) -> Any:
    """Parse JSON whose numbers can be used and sent again.

    Raises:
        ValueError: the text is not JSON, or a number in it is too large or no number.
        RecursionError: it is nested too deeply.
    """
    return _DECODER.decode(text)


def demand(true: bool) -> None:
    """Reject invalid stored data.

    Raises:
        ValueError: the condition is false.
    """
    if not true:
        raise ValueError("it is not what was written")


def are_texts(values: Iterable[object]) -> bool:
    """Tell whether all values are texts."""
    return all(isinstance(value, str) for value in values)


def is_count(value: object) -> bool:
    """Tell whether a value is a whole number from 0."""
    return type(value) is int and 0 <= value <= _MOST


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _float(text: str) -> float:
    number = float(text)
    demand(math.isfinite(number))
    return number


def _int(text: str) -> int:
    demand(len(text) <= 17)  # Python's integers have no bound
    return int(text)


_DECODER = json.JSONDecoder(
    parse_constant=_no_constant, parse_float=_float, parse_int=_int
)  # thousands are read at once
