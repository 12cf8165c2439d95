"""Regular expressions of files that nobody has checked, matched without backtracking.

PEFT names layers by regular expressions, and Python's own may take forever over 30 letters. Here a pattern is taken
apart into names, sets of letters, choices and repeats, and all places of all patterns that a text may have come to are
followed at once. What a pattern may hold: letters, `\\d` and `\\w`, `.`, `[...]`, `(...)`, `(?:...)`, `|`, `*`, `+`,
`?`, and `^` and `$` around it. Any other pattern is a name as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_LONGEST = 1000  # letters of a pattern, and of a name that is one
_DEEPEST = 4  # groups in groups: each may repeat
_MOST = 200  # patterns of one table that are more than names
_EFFORT = 8_000_000  # places of patterns looked at for one table, in seconds; what people share takes a tenth
_NAME = re.compile(r"[\w.\-]+")
_ESCAPED: dict[str, Callable[[str], bool]] = {"d": str.isdecimal, "w": lambda one: one.isalnum() or one == "_"}


class EffortError(ValueError):
    """The patterns of a table are such that to match them would take minutes."""


class _UnknownError(Exception):
    """The pattern has something that is not read here."""


class Table:
    """Values by patterns of names of layers, as PEFT's `alpha_pattern` and `rank_pattern`.

    Args:
        values: by pattern.
    """

    def __init__(self, values: Iterable[tuple[str, Any]]) -> None:
        self._names: dict[str, int] = {}
        self._whole: dict[str, int] = {}
        self._values: list[Any] = []
        self._automaton = _Automaton()
        more = 0
        for number, (pattern, value) in enumerate(values):
            self._values.append(value)
            anchored, name = pattern.startswith("^"), pattern.removeprefix("^").removesuffix("$")
            part = None if _NAME.fullmatch(name) or more == _MOST else compiled(pattern)
            if part is None:
                (self._whole if anchored else self._names).setdefault(name, number)
            else:
                self._automaton.add(part, number, anchored=anchored)
                more += 1
        lengths = {len(name) for name in self._names}
        self._lengths = sorted(length for length in lengths if length <= _LONGEST)
        self._known: dict[str, int | None] = {}

    def value(self, name: str) -> Any:
        """Return the value of the first pattern that matches the whole of `name` or its last parts; None without one.

        A pattern that begins with `^` matches the whole only: diffusers writes `^proj_out$` so that `a.proj_out` keeps
        its own rank.

        Raises:
            EffortError: to find it would take too long.
        """
        if name not in self._known:
            self._known[name] = min(self._numbers(name), default=None)
        number = self._known[name]
        return None if number is None else self._values[number]

    def _numbers(self, name: str) -> Iterator[int]:
        """Yield the numbers of patterns that match, the first one among them."""
        whole = self._whole.get(name)
        if whole is not None:
            yield whole
        for length in self._lengths:
            start = len(name) - length
            if start < 0:
                break
            if start == 0 or name[start - 1] == ".":
                number = self._names.get(name[start:])
                if number is not None:
                    yield number
        number = self._automaton.first(name)
        if number is not None:
            yield number


def compiled(pattern: str) -> Part | None:
    """Take a pattern apart; None where it holds something that is not read here."""
    if len(pattern) > _LONGEST:
        return None
    reader = _Reader(pattern.removeprefix("^").removesuffix("$"))
    try:
        part = reader.choices(0)
    except _UnknownError:
        return None
    return part if reader.ended else None


class _State:
    """Places that a beginning of a name has come to."""

    __slots__ = ("first", "moves", "places")

    def __init__(self, places: frozenset[int], first: int | None) -> None:
        self.places = places
        self.first = first
        """The first pattern that ends here."""
        self.moves: dict[str, _State] = {}
        """By the next letter, as far as that has been asked for."""


class _Automaton:
    """All patterns of a table as one, which reads a name once, from all beginnings of its parts at the same time.

    A place is in front of a letter, at a fork, or at the end of a pattern. Sets of places are remembered, so that names
    that begin alike, as those of layers do, cost a look-up for each letter.
    """

    def __init__(self) -> None:
        self._fits: list[Callable[[str], bool] | None] = []  # None at forks and ends
        self._next: list[tuple[int, ...]] = []
        self._ends: dict[int, int] = {}
        self._starts: list[int] = []
        self._anchored: list[int] = []
        self._states: dict[frozenset[int], _State] = {}
        self._begin: _State | None = None
        self._again: frozenset[int] = frozenset()
        self._effort = 0

    def add(self, part: Part, number: int, *, anchored: bool) -> None:
        """Add a pattern; an anchored one starts at the beginning of a name only."""
        end = self.place((), None)
        self._ends[end] = number
        (self._anchored if anchored else self._starts).append(part(self, end))

    def place(self, following: tuple[int, ...], fits: Callable[[str], bool] | None) -> int:
        """Make a place.

        Args:
            following: where it leads.
            fits: the letters that lead there; None where none is needed.
        """
        self._fits.append(fits)
        self._next.append(following)
        return len(self._fits) - 1

    def lead(self, place: int, following: tuple[int, ...]) -> None:
        """Have a place lead elsewhere."""
        self._next[place] = following

    def first(self, name: str) -> int | None:
        """Return the number of the first pattern that is the whole of `name` or its last parts.

        Raises:
            EffortError: to find it would take too long.
        """
        if not self._starts and not self._anchored:
            return None
        if self._begin is None:
            self._again = self._state(self._starts).places
            self._begin = self._state((*self._starts, *self._anchored))
        state = self._begin
        for letter in name:
            state = state.moves.get(letter) or self._moved(state, letter)
        return state.first

    def _moved(self, state: _State, letter: str) -> _State:
        self._spend(len(state.places))
        reached = [self._next[one][0] for one in state.places if (fits := self._fits[one]) is not None and fits(letter)]
        if letter == ".":
            reached += self._again
        found = state.moves[letter] = self._state(reached)
        return found

    def _state(self, reached: Iterable[int]) -> _State:
        """Return the state of these places and all that forks lead to."""
        seen = set(reached)
        rest = list(seen)
        while rest:
            place = rest.pop()
            if self._fits[place] is None:
                new = [one for one in self._next[place] if one not in seen]
                seen.update(new)
                rest += new
        self._spend(len(seen))
        places = frozenset(one for one in seen if self._fits[one] is not None or one in self._ends)
        state = self._states.get(places)
        if state is None:
            first = min((self._ends[one] for one in places if one in self._ends), default=None)
            state = self._states[places] = _State(places, first)
        return state

    def _spend(self, effort: int) -> None:
        self._effort += effort
        if self._effort > _EFFORT:
            raise EffortError("its patterns of names of layers take too long to match; write the names themselves")


Part = Callable[[_Automaton, int], int]
"""Puts a part of a pattern before a place of an automaton, and gives the place where it begins."""


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

    def choices(self, depth: int) -> Part:
        """Read up to the end of a group."""
        if depth > _DEEPEST:
            raise _UnknownError
        choices = [self.sequence(depth)]
        while self.take("|"):
            choices.append(self.sequence(depth))
        return choices[0] if len(choices) == 1 else _any_of(choices)

    def sequence(self, depth: int) -> Part:
        parts: list[Part] = []
        while not self.ended and self.text[self.at] not in "|)":
            part = self.group(depth) if self.take("(?:", "(") else _letter(self.letters())
            sign = self.take("*", "+", "?")
            parts.append(_repeated(part, sign) if sign else part)
        return _in_order(parts)

    def group(self, depth: int) -> Part:
        part = self.choices(depth + 1)
        if not self.take(")"):
            raise _UnknownError
        return part

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


def _letter(fits: Callable[[str], bool]) -> Part:
    return lambda automaton, end: automaton.place((end,), fits)


def _any_of(choices: Sequence[Part]) -> Part:
    return lambda automaton, end: automaton.place(tuple(part(automaton, end) for part in choices), None)


def _in_order(parts: Sequence[Part]) -> Part:
    def put(automaton: _Automaton, end: int) -> int:
        for part in reversed(parts):
            end = part(automaton, end)
        return end

    return put


def _repeated(part: Part, sign: str) -> Part:
    def put(automaton: _Automaton, end: int) -> int:
        if sign == "?":
            return automaton.place((part(automaton, end), end), None)
        again = automaton.place((), None)
        begin = part(automaton, again)
        automaton.lead(again, (begin, end))
        return again if sign == "*" else begin

    return put
