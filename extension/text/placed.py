"""What the place of a tag in its prompt makes of it: steps, turns, a factor, a part, a half; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from lib_lora import Window

from .spelling import name_of
from .steps import TurnByHost
from .tag import ALWAYS, Place, Tag, Where

PARAMETER = "Remora limits"
"""Name in a parameters text of what brackets around tags meant."""
LABEL = "Tags obey the brackets around them"
"""Of the setting."""

_PERCENT = 100
Ends: TypeAlias = "tuple[float | None, float | None]"
"""Where something begins and where it ends; None is always."""


@dataclass(frozen=True)
class Limits:
    """What the place of a tag in its prompt makes of it."""

    factor: float = 1.0
    share: Ends = (None, None)
    """The part of the steps after which it acts, and until which."""
    steps: Ends = (None, None)
    """The same in steps."""
    turns: tuple[tuple[int, int], ...] = ()
    """Of each alternation around it, its number from 0, and how many there are."""
    part: int | None = None
    """The part of the prompt, from 1; None if AND does not divide it."""
    negative: bool = False
    """It is in the negative prompt."""

    def __and__(self, other: Limits) -> Limits:
        """Return the limits of brackets inside others, or of others around them."""
        return Limits(
            float(f"{self.factor * other.factor:.12g}"),  # 0.8 times 1.5 is 1.2, as it is written
            _both(self.share, other.share),
            _both(self.steps, other.steps),
            tuple(dict.fromkeys((*self.turns, *other.turns))),
            self.part or other.part,
            self.negative or other.negative,
        )

    def applied(self, tag: Tag) -> Tag:
        """Return the tag with these limits beside its own; its own `half=` and `mask=` count."""
        window = tag.during
        own = [Window(*ends) for ends in (self.share, self.steps) if ends != (None, None)]
        for one in (*own, *(TurnByHost(turn=turn) for turn in self.turns)):
            window = one if window == ALWAYS else replace(one, within=window)
        part = self.part if tag.mask.region is None else None
        half = tag.half or ("neg" if self.negative else "")
        return replace(tag.scaled(self.factor), during=window, part=part, half=half)

    @property
    def words(self) -> tuple[str, ...]:
        """Return what they say, in a few words each."""
        return tuple(self._words())

    @property
    def without(self) -> str:
        """Return how a tag acts that does not have them."""
        timed = (self.share, self.steps, self.turns) != ((None, None), (None, None), ())
        said = {"in all steps": timed, "at its own strength": self.factor != 1.0, "in all parts": self.part is not None}
        return " and ".join(text for text, is_meant in said.items() if is_meant)

    def _words(self) -> Iterator[str]:
        if self.negative:
            yield "negative prompt"
        if self.part is not None:
            yield f"part {self.part}"
        shares = tuple(None if one is None else f"{one * _PERCENT:.4g} %" for one in self.share)
        steps = tuple(None if one is None else f"step {one:g}" for one in self.steps)
        for after, until in (shares, steps):
            if after is not None:
                yield f"after {after}"
            if until is not None:
                yield f"until {until}"
        for turn, of in self.turns:
            yield f"step {turn + 1} of every {of}"
        if self.factor != 1.0:
            yield "never" if self.factor == 0 else f"times {self.factor:.4g}"


NO_LIMITS = Limits()
NEVER = Limits(0.0)


class PlacedTag(str):
    """The text between `<lora:` and `>`, with what its place in the prompt means."""

    limits: Limits
    meant: bool
    """Whether the place counts; otherwise the tag acts as if it stood alone, or, in a negative prompt, not at all."""
    start: int
    """Index of its first character in the prompt."""
    number: int
    """Of the tag in its prompt, from 0."""
    is_open: bool
    """Whether `>` is missing."""
    parts: int | None
    """How many parts the prompt has; None where AND does not divide it."""
    written: str
    """The text as it is in the prompt; of a tag that is not closed, its first line."""

    def __new__(
        cls,
        text: str,
        limits: Limits = NO_LIMITS,
        *,
        meant: bool = False,
        start: int = 0,
        number: int = 0,
        is_open: bool = False,
        parts: int | None = None,
    ) -> PlacedTag:
        made = super().__new__(cls, text)
        made.limits, made.meant, made.start, made.number, made.is_open = limits, meant, start, number, is_open
        made.parts = parts
        made.written = text.partition("\n")[0] if is_open else text
        return made

    @classmethod
    def of(cls, text: str, number: int) -> PlacedTag:
        """Return a text as a tag with a place; one whose place is not known has its number among its image's tags."""
        return text if isinstance(text, PlacedTag) else cls(text, number=number)

    def changed(self, fields: str = "", limits: Limits | None = None) -> PlacedTag:
        """Return the tag with more fields, or with other limits, at the same place."""
        kept = self.limits if limits is None else limits
        made = PlacedTag(
            f"{self}{fields}",
            kept,
            meant=self.meant,
            start=self.start,
            number=self.number,
            is_open=self.is_open,
            parts=self.parts,
        )
        made.written = self.written
        return made

    @property
    def place(self) -> Place:
        """Return where it is written, and what that does not do."""
        where: Where = "negative" if self.limits.negative else "prompt"
        return Place(where, self.number, self.written, "" if self.is_open else self.unread)

    def place_of(self, tag: Tag) -> Place:
        """Return the place of the tag that was read, which may name a part that the prompt does not have."""
        place, part = self.place, tag.mask.part
        if place.note or self.parts is None or part is None or part <= self.parts:
            return place
        what = f"{self.name} is for part {part} of the prompt, whose last part is {self.parts}"
        return replace(place, note=f"{what}; join the parts with AND, or change part= in the tag")

    @property
    def name(self) -> str:
        """Return the name that it means."""
        return name_of(self)

    @property
    def unread(self) -> str:
        """Return one sentence on what its place does not do; empty if nothing is amiss."""
        if self.meant:
            return f"{self.name} never acts at its place in the prompt" if self.limits.factor == 0 else ""
        if self.limits == NO_LIMITS:
            return ""
        said = ", ".join(self.limits.words)
        does = f"acts {self.limits.without}: its place in the prompt ({said}) does not count for tags"
        if self.limits.negative:
            does = "is not applied: it stands in the negative prompt, where tags are read as words"
        return f"{self.name} {does}; turn on “{LABEL}”, or write grammar=1 into the tag"


def parameters(tags: Iterable[str]) -> dict[str, str]:
    """Return the parameter that says what the places of tags mean."""
    closed = [one for one in tags if isinstance(one, PlacedTag) and not one.is_open]
    meant = [one for one in closed if one.meant and one.limits != NO_LIMITS]
    found = dict.fromkeys(f"{one.name}: {', '.join(one.limits.words)}" for one in meant)
    return {PARAMETER: "; ".join(found)} if found else {}


def _both(one: Ends, other: Ends) -> Ends:
    """Return the later start and the earlier end of two windows."""
    starts, ends = ([end for end in pair if end is not None] for pair in zip(one, other, strict=True))
    return max(starts, default=None), min(ends, default=None)
