"""Regular expressions of untrusted files, matched without backtracking.

PEFT names layers by regular expressions, and Python's own may take forever over 30 letters. Here all patterns of a
table become one automaton, and all places of it that a text may have come to are followed at once. A pattern may hold:
letters, `\\d` and `\\w`, `.`, `[...]`, `(...)`, `(?:...)`, `|`, `*`, `+`, `?`, and `^` and `$` around it. Any other
pattern is a name as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_LONGEST = 1000  # letters of a pattern, and of a name that is one
_DEEPEST = 4  # groups in groups: each may repeat
_MOST = 200  # patterns of one table that are more than names
_EFFORT = 8_000_000  # places of patterns looked at for one table, in seconds; what people share takes a tenth
_NAME = re.compile(r"[\w.\-]+")

Fits = Callable[[str], bool]
"""Whether a letter is meant."""
_ESCAPED: dict[str, Fits] = {"d": str.isdecimal, "w": lambda one: one.isalnum() or one == "_"}


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
            if _NAME.fullmatch(name) or more == _MOST or not self._automaton.add(name, number, anchored=anchored):
                (self._whole if anchored else self._names).setdefault(name, number)
            else:
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
        found = [self._whole.get(name), self._automaton.first(name)]
        for length in self._lengths:
            start = len(name) - length
            if start < 0:
                break
            if start == 0 or name[start - 1] == ".":
                found.append(self._names.get(name[start:]))
        yield from (number for number in found if number is not None)


def compiled(pattern: str) -> _Automaton | None:
    """Take one pattern apart; None where it holds something that is not read here."""
    automaton = _Automaton()
    return automaton if automaton.add(pattern.removeprefix("^").removesuffix("$"), 0, anchored=False) else None


class _State:
    """The set of places that a beginning of a name has come to."""

    __slots__ = ("first", "moves", "places")

    def __init__(self, places: frozenset[int], first: int | None) -> None:
        self.places = places
        self.first = first
        """The first pattern that ends here."""
        self.moves: dict[str, _State] = {}
        """By the next letter, as far as names had it."""


class _Automaton:
    """All patterns of a table as one, which reads a name once, from all beginnings of its parts at the same time.

    A place is in front of a letter, at a fork, or at the end of a pattern. Sets of places are remembered, so that names
    that begin alike, as layers' names do, cost a look-up for each letter.
    """

    def __init__(self) -> None:
        self._fits: list[Fits | None] = []  # None at forks and ends
        self._next: list[list[int]] = []
        self._ends: dict[int, int] = {}
        self._starts: list[int] = []
        self._anchored: list[int] = []
        self._states: dict[frozenset[int], _State] = {}
        self._begin: _State | None = None
        self._again: frozenset[int] = frozenset()
        self._effort = 0

    def add(self, pattern: str, number: int, *, anchored: bool) -> bool:
        """Add a pattern and return True; return False where it holds something that is not read here.

        An anchored pattern starts at the beginning of a name only.
        """
        if len(pattern) > _LONGEST:
            return False
        reader = _Reader(self, pattern)
        try:
            start = self.place()
            end = reader.choices(start, 0)
        except _UnknownError:
            return False
        if not reader.ended:
            return False
        self._ends[end] = number
        (self._anchored if anchored else self._starts).append(start)
        return True

    def place(self) -> int:
        """Make a place that leads nowhere yet."""
        self._fits.append(None)
        self._next.append([])
        return len(self._fits) - 1

    def lead(self, place: int, to: int, fits: Fits | None = None) -> None:
        """Let a place lead to another one: by a letter that fits, or by itself."""
        self._fits[place] = fits
        self._next[place].append(to)

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


class _Reader:
    """A reader of one pattern, which adds it to an automaton from a place on, and returns the place where it ends."""

    def __init__(self, automaton: _Automaton, text: str) -> None:
        self._automaton = automaton
        self._text = text
        self._at = 0

    @property
    def ended(self) -> bool:
        """Return whether all has been read."""
        return self._at == len(self._text)

    def choices(self, start: int, depth: int) -> int:
        """Read up to the end of a group."""
        if depth > _DEEPEST:
            raise _UnknownError
        end = self._automaton.place()
        while True:
            first = self._automaton.place()
            self._automaton.lead(start, first)
            self._automaton.lead(self._sequence(first, depth), end)
            if not self._take("|"):
                return end

    def _sequence(self, place: int, depth: int) -> int:
        """Read up to the end of a choice, from a place that leads nowhere yet."""
        new, lead = self._automaton.place, self._automaton.lead
        while not self.ended and self._text[self._at] not in "|)":
            fork, fits = place, None
            if self._take("(?:", "("):
                begin = new()
                end = self.choices(begin, depth + 1)
                if not self._take(")"):
                    raise _UnknownError
            else:
                end, fits = new(), self._letters()
            sign = self._take("*", "+", "?")
            if fits is not None:
                begin = new() if sign else fork
                lead(begin, end, fits)
            if begin != fork:
                lead(fork, begin)
            place = end
            if sign:
                behind = new()
                lead(end, behind)
                if sign != "?":
                    lead(end, begin)
                if sign != "+":
                    lead(fork, behind)
                place = behind
        return place

    def _letters(self) -> Fits:
        """Read what stands for one letter."""
        letter = self._letter()
        if letter == "[":
            return self._set()
        if letter == "\\":
            return self._escaped()
        if letter == ".":
            return lambda one: True
        if letter in "*+?{}^$()]":
            raise _UnknownError
        return letter.__eq__

    def _set(self) -> Fits:
        outside, members = bool(self._take("^")), list[Fits]()
        while not self._take("]"):
            letter = self._letter()
            if letter == "\\":
                members.append(self._escaped())
            elif self._take("-"):
                members.append(_between(letter, self._letter()))
            else:
                members.append(letter.__eq__)
        return lambda one: any(member(one) for member in members) is not outside

    def _escaped(self) -> Fits:
        letter = self._letter()
        if letter.isalnum() and letter not in _ESCAPED:
            raise _UnknownError
        return _ESCAPED.get(letter, letter.__eq__)

    def _letter(self) -> str:
        if self.ended:
            raise _UnknownError
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, *starts: str) -> str:
        """Return the first of these that comes next, and go on behind it; empty where none does."""
        found = next((one for one in starts if self._text.startswith(one, self._at)), "")
        self._at += len(found)
        return found


def _between(low: str, high: str) -> Fits:
    return lambda one: low <= one <= high
