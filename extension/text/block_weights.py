"""Block weights as prompts and preset files write them: lists, presets by name, rules for some layers; pure.

    lbw=1,0,0,0,1,1,1,1,1,1,1,1,0,0,0,0,0     lbw=OUTALL     lbwe=ATTNDEEPON

A value of a list is a number, `R` (drawn from 0 to 1), `U` (drawn from -0.5 to 1.5), or `X` (that of `x=`, with
`X+0.2` and `X-0.2`). The files, the values and the built-in presets are from
hako-mikan/sd-webui-lora-block-weight scripts/lora_block_weight.py.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from lib_lora import BlockWeights, Element

NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"  # `\d` matches digits of all alphabets
_NUMBER = re.compile(NUMBER)
_SEPARATORS = re.compile(r"[\x1c-\x1f]")
LARGEST = 3.4e38
"""Just below the largest float32 number; strengths are applied in float32."""
_INHERITED = re.compile(r"X(?:([+-])([0-9]+(?:\.[0-9]*)?|\.[0-9]+))?")
_MOST = 400
"""Values in a list; no model has as many blocks."""
_NAME = re.compile(r"(?!.*[\x00-\x1f\x7f-\x9f])[^:<>=,#\s](?:[^:<>=,#]*[^:<>=,#\s])?", re.DOTALL)
_MAX_NAME = 100  # characters
_DIGITS = 3  # of a value that is drawn

Value: TypeAlias = float | str
"""A number, or a letter that stands for one."""

DEFAULT = """\
NONE:0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0
ALL:1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1
INS:1,1,1,1,0,0,0,0,0,0,0,0,0,0,0,0,0
IND:1,0,0,0,1,1,1,0,0,0,0,0,0,0,0,0,0
INALL:1,1,1,1,1,1,1,0,0,0,0,0,0,0,0,0,0
MIDD:1,0,0,0,1,1,1,1,1,1,1,1,0,0,0,0,0
OUTD:1,0,0,0,0,0,0,0,1,1,1,1,0,0,0,0,0
OUTS:1,0,0,0,0,0,0,0,0,0,0,0,1,1,1,1,1
OUTALL:1,0,0,0,0,0,0,0,1,1,1,1,1,1,1,1,1
ALL0.5:0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5
"""
DEFAULT_ELEMENTS = """\
ATTNDEEPON:IN05-OUT05:attn:1

ATTNDEEPOFF:IN05-OUT05:attn:0

PROJDEEPOFF:IN05-OUT05:proj:0
"""


class BlockWeightsError(ValueError):
    """A text is no list and no preset; the message names the fault, or the presets that exist."""


@dataclass(frozen=True)
class BlockPresets:
    """Presets by name: lists, and rules. Names are case-sensitive."""

    lists: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    elements: Mapping[str, tuple[Element, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class TagBlocks:
    """The block weights of a tag."""

    written: str = ""
    """A list, or the name of a preset."""
    values: tuple[Value, ...] = ()
    rules: str = ""
    """The name of a preset of rules."""
    elements: tuple[Element, ...] = ()
    x: float = 1.0
    """The value of `X`."""

    def weights(self, seed: int | None = None) -> BlockWeights | None:
        """Return the block weights, or None if the tag has none.

        Args:
            seed: of the picture; equal seeds draw equal values. None draws others each time.
        """
        if not self.values and not self.elements:
            return None
        # seeded with the list too, so that two LoRA of one picture get different values
        draw = random.Random() if seed is None else random.Random(f"{seed}:{self.written}")  # no secret
        values = tuple(_drawn(value, self.x, draw) for value in self.values)
        return BlockWeights(values or None, self.elements)

    @property
    def random(self) -> bool:
        """Return whether a value is drawn."""
        return any(value in ("R", "U") for value in self.values)


def is_number(text: str) -> bool:
    """Tell whether a text is a valid strength; a number like 1e39 is not."""
    return _NUMBER.fullmatch(text) is not None and abs(float(text)) <= LARGEST


def read_list(text: str) -> tuple[Value, ...]:
    """Parse a list.

    Raises:
        BlockWeightsError: a value is invalid.
    """
    written = [one.strip() for one in text.split(",")]
    if len(written) > _MOST:
        raise BlockWeightsError(f"a list of {len(written)} block weights; no model has as many")
    return tuple(_value(one, place) for place, one in enumerate(written, 1))


def is_list(text: str) -> bool:
    """Tell whether a text is meant as a list, not as a name."""
    return "," in text


def read_presets(text: str) -> dict[str, tuple[Value, ...]]:
    """Parse a file of lists, one `NAME:1,0,…` per line; as in the original, other lines are comments."""
    found = {}
    for line in text.splitlines():
        name, colon, values = line.partition(":")
        if colon and "#" not in line and "," in values:
            try:
                found[name.strip()] = read_list(values)
            except BlockWeightsError:
                continue
    return found


def read_rules(text: str) -> dict[str, tuple[Element, ...]]:
    """Parse a file of rules, `NAME:blocks:words:weight`, separated by blank lines; commas or lines join several."""
    found = {}
    for part in re.split(r"\n\s*\n", text):
        name, colon, written = part.strip().partition(":")
        if colon:
            rules = [_element(one.strip()) for one in re.split(r"[,\n]", written)]
            if any(rules):
                found[name.strip()] = tuple(rule for rule in rules if rule is not None)
    return found


def format_presets(presets: Mapping[str, Sequence[Value]]) -> str:
    """Write lists so that `read_presets` reads them back."""
    return "".join(f"{name}:{format_list(values)}\n" for name, values in presets.items())


def format_list(values: Iterable[Value]) -> str:
    """Write a list."""
    return ",".join(value if isinstance(value, str) else f"{value:.12g}" for value in values)


def described(rules: Iterable[Element]) -> str:
    """Return sentences that say what rules do, in their order."""
    return " ".join(f"{_layers(rule)}{_places(rule)}: weight {rule.weight:g}." for rule in rules)


def _layers(rule: Element) -> str:
    words = " or ".join(f"“{word}”" for word in rule.words)
    if not words:
        return "All layers"
    return f"Layers without {words} in their names" if rule.not_words else f"Layers with {words} in their names"


def _places(rule: Element) -> str:
    blocks = ", ".join(rule.blocks)
    if not blocks:
        return ""
    return f", in all blocks but {blocks}" if rule.not_blocks else f", in {blocks}"


def checked_name(name: str) -> str:
    """Return a valid name of a preset.

    Raises:
        BlockWeightsError: a tag cannot refer to this name, or a file cannot contain it.
    """
    name = name.strip()
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        raise BlockWeightsError(
            f"a preset's name is 1 to {_MAX_NAME} characters, no control character, no : < > = , #; not {name[:60]!r}"
        )
    if _NUMBER.fullmatch(name):
        raise BlockWeightsError(f"{name!r} is a number; choose a name that is not a number")
    return name


def known(what: str, names: Iterable[str]) -> str:
    """Return a part of a sentence that lists the names."""
    found = sorted(names)
    shown = ", ".join(found[:20]) + (", …" if len(found) > 20 else "")
    return f"{what} there are: {shown}" if found else f"there are no {what}"


def _value(text: str, place: int) -> Value:
    if text in ("R", "U") or _INHERITED.fullmatch(text):
        return text
    if not is_number(text):
        upper = text.upper()
        wanted = f"; write {upper}" if upper in ("R", "U") or _INHERITED.fullmatch(upper) else ""
        raise BlockWeightsError(f"value {place} of the list, {text[:20]!r}, is neither a number nor R, U or X{wanted}")
    return float(text)


def _drawn(value: Value, x: float, draw: random.Random) -> float:
    if isinstance(value, float | int):
        return float(value)
    if value == "R":
        return round(draw.random(), _DIGITS)
    if value == "U":
        return round(draw.uniform(-0.5, 1.5), _DIGITS)
    match = _INHERITED.fullmatch(value)
    assert match is not None  # as it was read
    offset = float(match[2] or 0)
    return x - offset if match[1] == "-" else x + offset


def _element(text: str) -> Element | None:
    """Parse one rule, or return None if it is invalid."""
    parts = text.split(":")
    # browsers and `float` treat these characters as no blanks, and `strip` does
    if len(parts) != 3 or _SEPARATORS.search(parts[2]) or not is_number(parts[2].strip()):
        return None
    (not_blocks, blocks), (not_words, words) = (_negated(part) for part in parts[:2])
    return Element(blocks, words, float(parts[2]), not_blocks, not_words)


def _negated(text: str) -> tuple[bool, tuple[str, ...]]:
    words = text.split()
    return (True, tuple(words[1:])) if words[:1] == ["NOT"] else (False, tuple(words))


NO_BLOCKS = TagBlocks()
BUILT_IN = BlockPresets(read_presets(DEFAULT), read_rules(DEFAULT_ELEMENTS))
"""The presets that Remora ships."""
