"""Regular expressions of files that nobody has checked, matched without backtracking.

PEFT names layers by regular expressions, and Python's own may take forever over 30 letters. Here a pattern is taken
apart into names, sets of letters, choices and repeats, and all positions of the text that it may have come to are
followed at once. What a pattern may hold: letters, `\\d` and `\\w`, `.`, `[...]`, `(...)`, `(?:...)`, `|`, `*`, `+`,
`?`, and `^` and `$` around it. Any other pattern is a name as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

_LONGEST = 1000  # letters of a pattern
_DEEPEST = 4  # groups in groups: each may repeat
_MOST = 200  # patterns of one table that are more than names
_NAME = re.compile(r"[\w.\-]+")
_ESCAPED: dict[str, Callable[[str], bool]] = {"d": str.isdecimal, "w": lambda one: one.isalnum() or one == "_"}

Positions = frozenset[int]
Step = Callable[[str, Positions], Positions]
"""From a text and the positions that were come to, to the positions behind what it matches."""


class _UnknownError(Exception):
    """The pattern has something that is not read here."""


class Table:
    """Values by patterns of names of layers, as PEFT's `alpha_pattern` and `rank_pattern`.

    Args:
        values: by pattern.
    """

    def __init__(self, values: Iterable[tuple[str, Any]]) -> None:
        self._names: dict[str, tuple[int, Any]] = {}
        self._steps: list[tuple[int, Step, Any]] = []
        for number, (pattern, value) in enumerate(values):
            step = None if _NAME.fullmatch(pattern) or len(self._steps) == _MOST else compiled(pattern)
            if step is None:
                self._names.setdefault(pattern.removeprefix("^").removesuffix("$"), (number, value))
            else:
                self._steps.append((number, step, value))

    def value(self, name: str) -> Any:
        """Return the value of the first pattern that is the whole of `name` or its last parts; None where none is."""
        parts = name.split(".")
        ends = [".".join(parts[i:]) for i in range(len(parts))]
        found = [self._names[end] for end in ends if end in self._names]
        found += [(number, value) for number, step, value in self._steps if any(_matches(step, end) for end in ends)]
        return min(found, key=lambda one: one[0])[1] if found else None


def compiled(pattern: str) -> Step | None:
    """Take a pattern apart; None where it holds something that is not read here."""
    if len(pattern) > _LONGEST:
        return None
    reader = _Reader(pattern.removeprefix("^").removesuffix("$"))
    try:
        step = reader.choices(0)
    except _UnknownError:
        return None
    return step if reader.ended else None


def _matches(step: Step, text: str) -> bool:
    return len(text) in step(text, frozenset((0,)))


@dataclass(slots=True)
class _Reader:
    """A pattern, and how much of it has been read."""

    text: str
    at: int = 0

    @property
    def ended(self) -> bool:
        return self.at == len(self.text)

    def take(self, *starts: str) -> str:
        """Return the first of these that comes next, and go on behind it; empty where none does."""
        found = next((one for one in starts if self.text.startswith(one, self.at)), "")
        self.at += len(found)
        return found

    def choices(self, depth: int) -> Step:
        """Read up to the end of a group."""
        if depth > _DEEPEST:
            raise _UnknownError
        choices = [self.sequence(depth)]
        while self.take("|"):
            choices.append(self.sequence(depth))
        return choices[0] if len(choices) == 1 else _any_of(choices)

    def sequence(self, depth: int) -> Step:
        steps: list[Step] = []
        while not self.ended and self.text[self.at] not in "|)":
            step = self.group(depth) if self.take("(?:", "(") else _letter(self.letters())
            sign = self.take("*", "+", "?")
            steps.append(_repeated(step, sign) if sign else step)
        return _in_order(steps)

    def group(self, depth: int) -> Step:
        step = self.choices(depth + 1)
        if not self.take(")"):
            raise _UnknownError
        return step

    def letters(self) -> Callable[[str], bool]:
        """Read what stands for one letter."""
        letter = self.next()
        if letter == "[":
            return self.set()
        if letter == "\\":
            return self.escaped()
        if letter == ".":
            return lambda one: True
        if letter in "*+?{}^$()]":
            raise _UnknownError
        return letter.__eq__

    def set(self) -> Callable[[str], bool]:
        outside, members = bool(self.take("^")), list[Callable[[str], bool]]()
        while not self.take("]"):
            letter = self.next()
            if letter == "\\":
                members.append(self.escaped())
            elif self.take("-"):
                members.append(_between(letter, self.next()))
            else:
                members.append(letter.__eq__)
        return lambda one: any(member(one) for member in members) is not outside

    def escaped(self) -> Callable[[str], bool]:
        letter = self.next()
        if letter.isalnum() and letter not in _ESCAPED:
            raise _UnknownError
        return _ESCAPED.get(letter, letter.__eq__)

    def next(self) -> str:
        if self.ended:
            raise _UnknownError
        self.at += 1
        return self.text[self.at - 1]


def _between(low: str, high: str) -> Callable[[str], bool]:
    return lambda one: low <= one <= high


def _letter(fits: Callable[[str], bool]) -> Step:
    return lambda text, starts: frozenset(i + 1 for i in starts if i < len(text) and fits(text[i]))


def _any_of(choices: Iterable[Step]) -> Step:
    return lambda text, starts: frozenset[int]().union(*(step(text, starts) for step in choices))


def _in_order(steps: Iterable[Step]) -> Step:
    def run(text: str, starts: Positions) -> Positions:
        for step in steps:
            starts = step(text, starts) if starts else starts
        return starts

    return run


def _repeated(step: Step, sign: str) -> Step:
    def run(text: str, starts: Positions) -> Positions:
        if sign == "?":
            return starts | step(text, starts)
        found = starts if sign == "*" else step(text, starts)
        new = found
        while new:
            new = step(text, new) - found
            found |= new
        return found

    return run
