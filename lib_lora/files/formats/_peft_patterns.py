r"""Regular expressions of untrusted files, matched without backtracking.

PEFT names layers by regular expressions, and Python's own may take forever over 30 letters. Here all patterns of a
table become one automaton (https://swtch.com/~rsc/regexp/regexp1.html). A pattern may hold: letters, `\d`, `\w`, `\s`
and the like, `.`, `[...]`, `(...)`, `(?:...)`, `|`, `*`, `+`, `?`, and `^` and `$` around it. Any other pattern is a
name as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

_LONGEST = 1000  # letters of a pattern, and of a name that is one
_DEEPEST = 4  # groups in groups: each may repeat
_MOST = 200  # patterns of one table that are more than names
_EFFORT = 8_000_000  # states looked at for one table, in seconds; what people share takes a tenth
_NAME = re.compile(r"[\w.\-]+")
_TOKEN = re.compile(r"\(\?:|\\[dDsSwW\W]|\[\^?(?:\\[dDsSwW\W]|(?!--)[^\[\]\\&|~])+\]|[^\\\[\]{}^$]", re.DOTALL)


class State:
    """A state of an automaton: before a letter, at a fork, or at the end of a pattern."""

    __slots__ = ("fits", "next", "number")

    def __init__(self, fits: Callable[[str], object] | None = None) -> None:
        self.fits = fits
        """Tells whether a letter leads on; None where none is needed."""
        self.next: list[State] = []
        self.number: int | None = None
        """The number of the pattern that ends here."""


def read_pattern(pattern: str) -> tuple[State, State] | None:
    """Return the first and the last state of a pattern; None where it holds something that is not read here."""
    tokens = _TOKEN.findall(pattern)[::-1]
    if len(pattern) > _LONGEST or sum(map(len, tokens)) != len(pattern):
        return None
    try:
        found = _choices(tokens, 0)
    except (ValueError, re.error):
        return None
    return None if tokens else found


def _choices(tokens: list[str], depth: int) -> tuple[State, State]:
    """Take the tokens up to the end of a group from the end of the list; return its first and its last state."""
    start, end = State(), State()
    while depth <= _DEEPEST:
        here = State()
        start.next.append(here)
        while tokens and tokens[-1] not in ("|", ")"):
            here = _item(tokens, here, depth)
        here.next.append(end)
        if not tokens or tokens[-1] == ")":
            return start, end
        tokens.pop()
    raise ValueError("too many groups in groups")


def _item(tokens: list[str], here: State, depth: int) -> State:
    """Take a letter or a group, and how often it may occur; return the state behind it."""
    token = tokens.pop()
    if token in ("(", "(?:"):
        first, last = _choices(tokens, depth + 1)
        if not tokens:
            raise ValueError("a group that does not end")
        tokens.pop()
    elif token in ("*", "+", "?"):
        raise ValueError("nothing to repeat")
    else:
        first, last = State(re.compile(token, re.DOTALL).fullmatch), State()  # of one letter, so it cannot backtrack
        first.next.append(last)
    here.next.append(first)
    sign = tokens.pop() if tokens and tokens[-1] in ("*", "+", "?") else ""
    if not sign:
        return last
    behind = State()
    last.next.append(behind)
    if sign != "?":
        last.next.append(first)
    if sign != "+":
        here.next.append(behind)
    return behind


class Table:
    """Values by patterns of names of layers, as PEFT's `alpha_pattern` and `rank_pattern`.

    All states that a name can lead to are followed at once. Sets of states are cached, so that names that begin alike,
    as layers' names do, cost a look-up for each letter.

    Args:
        values: by pattern.
    """

    def __init__(self, values: Iterable[tuple[str, Any]]) -> None:
        self._names: dict[str, int] = {}
        self._whole: dict[str, int] = {}
        self._values: list[Any] = []
        starts: list[State] = []  # of patterns that match from the beginning of any part of a name
        anchored: list[State] = []
        for number, (pattern, value) in enumerate(values):
            self._values.append(value)
            name = pattern.removeprefix("^").removesuffix("$")
            plain = len(starts) + len(anchored) == _MOST or _NAME.fullmatch(name)
            states = None if plain else read_pattern(name)
            if states is None:
                (self._whole if name != pattern.removesuffix("$") else self._names).setdefault(name, number)
            else:
                states[1].number = number
                (anchored if pattern.startswith("^") else starts).append(states[0])
        self._lengths = sorted({len(name) for name in self._names if len(name) <= _LONGEST})
        self._known: dict[str, int | None] = {}
        self._effort = 0
        self._moves: dict[frozenset[State], dict[str, frozenset[State]]] = {}
        self._starts = self._closure(starts)
        self._begin = self._closure((*starts, *anchored))

    def value(self, name: str) -> Any:
        """Return the value of the first pattern that matches the whole of `name` or its last parts; None without one.

        A pattern that begins with `^` matches the whole only: diffusers writes `^proj_out$` so that `a.proj_out` keeps
        its own rank.

        Raises:
            ValueError: the patterns of the table would take minutes to match.
        """
        if name not in self._known:
            found = [self._whole.get(name), *(state.number for state in self._reached(name))]
            for length in self._lengths:
                start = len(name) - length
                if start < 0:
                    break
                if start == 0 or name[start - 1] == ".":
                    found.append(self._names.get(name[start:]))
            self._known[name] = min((number for number in found if number is not None), default=None)
        number = self._known[name]
        return None if number is None else self._values[number]

    def _reached(self, name: str) -> frozenset[State]:
        """Return the states that are reached when all of a name is read."""
        states = self._begin
        for letter in name if states else "":
            moves = self._moves[states]
            found = moves.get(letter)
            if found is None:
                self._effort += len(states)
                reached = {one.next[0] for one in states if one.fits is not None and one.fits(letter)}
                found = moves[letter] = self._closure(reached.union(self._starts if letter == "." else ()))
            states = found
        return states

    def _closure(self, reached: Iterable[State]) -> frozenset[State]:
        """Return these states and all that forks lead to, without the forks."""
        seen = set(reached)
        rest = list(seen)
        while rest:
            state = rest.pop()
            if state.fits is None:
                new = [one for one in state.next if one not in seen]
                seen.update(new)
                rest += new
        self._effort += len(seen)
        if self._effort > _EFFORT:
            raise ValueError("its patterns of names of layers take too long to match; write the names themselves")
        states = frozenset([one for one in seen if one.fits is not None or one.number is not None])
        self._moves.setdefault(states, {})
        return states
