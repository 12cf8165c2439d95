"""Tags inside a prompt's grammar: what brackets around a tag mean, as web UIs read them around words; pure.

    [<lora:a:1>::0.4]   [<lora:a:1>:<lora:b:1>:10]   [<lora:a:1>:0.4]   [<lora:a:1>|<lora:b:1>]
    (<lora:a:1>:1.2)   (<lora:a:1>)   [<lora:a:1>]   a cat AND a dog <lora:a:1>

Brackets that are empty without their tags are taken out with them. One pass over the prompt, whose stack of open
brackets is bounded, reads it in linear time.

Source: AUTOMATIC1111/stable-diffusion-webui modules/prompt_parser.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from .block_weights import NUMBER, is_number
from .placed import NEVER, NO_LIMITS, Ends, Limits, PlacedTag
from .spelling import KIND, name_and_fields, plain

_TOKEN = re.compile(rf"\\[()\[\]:|\\]|<(?:((?i:{KIND})):([^<>]*)(>?)|\w+:[^<>]*>)|[()\[\]:|]|\bAND\b")
_WHEN = re.compile(rf"\s*({NUMBER})\s*")
_LONGEST = 60  # characters of a number
_DEEPEST = 32
"""Brackets inside so many others are read as words."""
_UP = 1.1
_OPEN = {")": "(", "]": "["}


@dataclass(frozen=True)
class Grammar:
    """A prompt, read with its brackets."""

    text: str
    """The prompt without its tags, and without the brackets that are left empty."""
    with_tags: str
    """The same with its tags, for programs that take them out themselves."""
    tags: tuple[tuple[str, PlacedTag], ...]
    """The kind of each tag, in lower case, and what it says."""


@lru_cache(maxsize=64)
def read(prompt: str, *, on: bool, parts: bool = False, negative: bool = False) -> Grammar:
    """Read the tags of a prompt.

    Args:
        prompt: the text.
        on: the brackets around tags mean something, unless a tag has `grammar=0`; if off, unless one has `grammar=1`.
        parts: AND divides it.
        negative: it is a negative prompt.
    """
    written, prompt = prompt, plain(prompt)
    reader = _PromptReader(prompt, Limits(negative=negative), parts=parts and not negative)
    meant = _wanted([one.text for one in reader.tags], on)
    count = reader.part if parts and not negative else None
    found = [(one.kind, one.placed(number, meant=meant, parts=count)) for number, one in enumerate(reader.tags)]
    cuts = reader.cuts if meant else []
    whole = sorted((one.start, one.end) for one in reader.tags if not one.is_open)
    if negative and not meant:
        return Grammar(written, written, tuple(found))
    text = _without(prompt, _merged([*cuts, *whole]))
    return Grammar(text, _without(prompt, list(_around(cuts, whole))) if cuts else prompt, tuple(found))


def _wanted(tags: Sequence[str], on: bool) -> bool:
    chosen = {
        value.strip()
        for one in tags
        if "grammar" in one
        for key, _, value in (field.partition("=") for field in name_and_fields(one)[1:])
        if key.strip() == "grammar"
    }
    return "1" in chosen or (on and "0" not in chosen)


@dataclass(eq=False, slots=True)
class _WrittenTag:
    kind: str
    text: str
    start: int
    end: int
    is_open: bool
    section: _Section | None
    """None outside of brackets."""
    part: int
    limits: Limits = NO_LIMITS

    def placed(self, number: int, *, meant: bool, parts: int | None) -> PlacedTag:
        start = self.start + len(f"<{self.kind}:")
        return PlacedTag(
            self.text, self.limits, meant=meant, start=start, number=number, is_open=self.is_open, parts=parts
        )


@dataclass(eq=False, slots=True)
class _Section:
    """The text between two separators of a bracket."""

    bracket: _Bracket
    number: int = 0
    known: Limits | None = None

    @property
    def limits(self) -> Limits:
        """Return what this bracket and the ones around it mean, once all are read."""
        if self.known is None:
            own, around = self.bracket.limits(self.number), self.bracket.around
            self.known = own if around is None else around.limits & own
        return self.known


@dataclass(eq=False, slots=True)
class _Bracket:
    kind: str
    start: int
    around: _Section | None
    cuts: int
    """How many cuts there were before it."""
    has_tag: bool = False
    marks: list[tuple[str, int]] = field(default_factory=list)
    """The separators in it, and where they are."""
    marked: set[str] = field(default_factory=set)
    """The kinds of them."""
    filled: list[bool] = field(default_factory=lambda: [False])
    """Of each section between them, whether there is more in it than tags and blanks."""
    closed: bool = False
    when: str | None = None
    """The number behind its last colon."""
    section: _Section = field(init=False)
    """The latest."""

    def __post_init__(self) -> None:
        self.section = _Section(self)

    def limits(self, section: int) -> Limits:
        """Return what it means for a tag in one of its sections."""
        if not self.closed:
            return NO_LIMITS
        if self.kind == "(":
            return Limits(_UP if self.when is None else float(self.when))
        if self.marked == {"|"}:
            return Limits(turns=((section, len(self.filled)),))
        if self.is_scheduled:
            return _timed(str(self.when), is_first=section == 0 and len(self.marks) == 2)
        return Limits(float(f"{1 / _UP:.12g}"))

    @property
    def is_scheduled(self) -> bool:
        return self.kind == "[" and self.when is not None and len(self.marks) < 3 and self.marked == {":"}

    @property
    def is_empty(self) -> bool:
        """Return whether nothing but its tags is in it."""
        numbered = self.is_scheduled or (self.kind == "(" and self.when is not None)
        return self.has_tag and not any(self.filled[:-1] if numbered else self.filled)


def _timed(when: str, *, is_first: bool) -> Limits:
    """Return what a bracket with a time means for the tags that act until then, or after it."""
    value, is_share = float(when), "." in when or abs(float(when)) < 1
    if value <= 0 or (is_share and value >= 1):
        return NEVER if is_first == (value <= 0) else NO_LIMITS
    ends: Ends = (None, value) if is_first else (value, None)
    return Limits(share=ends) if is_share else Limits(steps=ends)


class _PromptReader:
    """Reads one prompt; `tags` and `cuts` are what it found."""

    def __init__(self, prompt: str, of_all: Limits, *, parts: bool) -> None:
        self._prompt, self._of_all, self._parts = prompt, of_all, parts
        self.tags: list[_WrittenTag] = []
        self.cuts: list[tuple[int, int]] = []
        """The brackets that are left empty."""
        self._open: list[_Bracket] = []
        self._deep: list[str] = []  # open brackets beyond the deepest
        self.part = 1
        self._at = 0  # behind the latest token
        for match in _TOKEN.finditer(prompt):
            self._words(match.start())
            self._token(match)
            self._at = match.end()
        self._close_none(0)
        for one in self.tags:
            part = self._of_all if self.part == 1 else self._of_all & Limits(part=one.part)
            one.limits = part if one.section is None else part & one.section.limits

    def _words(self, until: int) -> None:
        if self._open and not self._open[-1].filled[-1] and self._prompt[self._at : until].strip():
            self._fill()

    def _fill(self) -> None:
        if self._open:
            self._open[-1].filled[-1] = True

    def _token(self, match: re.Match[str]) -> None:
        token = match[0]
        if match[2] is not None:
            self._tag(match)
        elif token in ("(", "["):
            self._begin(token, match.start())
        elif token in _OPEN:
            self._end(_OPEN[token], match.start())
        elif token in (":", "|") and self._open and not self._deep:
            bracket = self._open[-1]
            bracket.marks.append((token, match.start()))
            bracket.marked.add(token)
            bracket.filled.append(False)
            bracket.section = _Section(bracket, len(bracket.marks))
        elif token == "AND" and self._parts:
            self._close_none(0)
            self._deep.clear()
            self.part += 1
        else:
            self._fill()

    def _tag(self, match: re.Match[str]) -> None:
        if match[1] is None:
            self._fill()
            return
        section = self._open[-1].section if self._open else None
        if section is not None:
            section.bracket.has_tag = True
        kind, text, is_open = match[1].lower(), match[2], not match[3]
        self.tags.append(_WrittenTag(kind, text, match.start(), match.end(), is_open, section, self.part))

    def _begin(self, kind: str, start: int) -> None:
        if len(self._open) < _DEEPEST and not self._deep:
            around = self._open[-1].section if self._open else None
            self._open.append(_Bracket(kind, start, around, len(self.cuts)))
        else:
            self._fill()
            self._deep.append(kind)

    def _end(self, kind: str, start: int) -> None:
        if self._deep:
            if self._deep[-1] == kind:
                self._deep.pop()
            return
        place = next((i for i in reversed(range(len(self._open))) if self._open[i].kind == kind), None)
        if place is None:
            self._fill()
            return
        self._close_none(place + 1)
        bracket = self._open.pop()
        if bracket.around is not None:
            bracket.around.bracket.has_tag |= bracket.has_tag
        bracket.closed, bracket.when = True, self._when(bracket, start)
        if bracket.is_empty:
            del self.cuts[bracket.cuts :]
            self.cuts.append((bracket.start, start + 1))
        else:
            self._fill()

    def _close_none(self, left: int) -> None:
        """Leave open brackets as words, but for so many of the outermost."""
        while len(self._open) > left:
            has_tag = self._open.pop().has_tag
            if self._open:
                self._open[-1].has_tag |= has_tag
            self._fill()

    def _when(self, bracket: _Bracket, end: int) -> str | None:
        """Return the number behind the last colon of a bracket."""
        if not bracket.marks or bracket.marks[-1][0] != ":":
            return None
        start = bracket.marks[-1][1] + 1
        match = _WHEN.fullmatch(self._prompt[start:end]) if end - start < _LONGEST else None
        return match[1] if match is not None and is_number(match[1]) else None


def _merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order, of which none is inside another."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if not found or start >= found[-1][1]:
            found.append((start, end))
    return found


def _around(cuts: Sequence[tuple[int, int]], tags: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the text in the cuts beside the tags."""
    waiting = iter(tags)
    tag = next(waiting, None)
    for start, end in sorted(cuts):
        while tag is not None and tag[0] < end:
            if tag[0] >= start:
                yield start, tag[0]
                start = tag[1]
            tag = next(waiting, None)
        yield start, end


def _without(text: str, ranges: Sequence[tuple[int, int]]) -> str:
    starts = [0, *(end for _, end in ranges)]
    ends = [*(start for start, _ in ranges), len(text)]
    return "".join(text[start:end] for start, end in zip(starts, ends, strict=True))
