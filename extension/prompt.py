"""LoRA tags in a prompt, as in AUTOMATIC1111's web UI; pure text.

    <lora:name>   <lora:name:0.8>   <lora:name:0.5:1.0>   <lora:name:te=0.4:unet=0.9:dyn=16>   <lyco:name:0.8>
    <lora:name:1:high>   <lora:name:1:low>

The first number is the multiplier of the text encoders, the second that of the unet (as the first, where missing),
the third the rank to cut to. `high` and `low`, which are SD.Next's, choose one of the two experts of Wan 2.2, that for
high noise or that for low. Other `<kind:...>` tags stay in the text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from lib_lora import LoraError

_TAG = re.compile(r"<(lora|lyco):([^<>]*)(>?)", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_FORM = "<lora:name:text-encoder multiplier:unet multiplier:rank>, as in <lora:name:0.8>"
_FIELDS = ("te", "unet", "dyn")
_EXPERTS = {"high": "transformer", "low": "transformer_2"}


class PromptError(LoraError, ValueError):
    """A tag that cannot be understood.

    Attributes:
        text: the tag as written.
        position: index in the prompt of the character at fault, from 0.
        reason: what is wrong there, without the place.
    """

    def __init__(self, text: str, position: int, reason: str) -> None:
        super().__init__(f"{text!r}, at character {position + 1} of the prompt: {reason}; expected {_FORM}")
        self.text = text
        self.position = position
        self.reason = reason


@dataclass(frozen=True)
class Tag:
    """One LoRA wish as written in a prompt."""

    name: str
    te: float = 1.0
    unet: float = 1.0
    rank: int | None = None
    noise: frozenset[str] = frozenset()
    """Of `high` and `low`, those whose expert alone it is for."""

    @property
    def multiplier(self) -> float | Mapping[str, float]:
        """The factor per component, one number where all are equal."""
        if self.te == self.unet and not self.noise:
            return self.unet
        model = dict.fromkeys(("unet", "transformer", "prior", "llm_adapter"), self.unet)
        if self.noise:
            model |= {expert: self.unet if noise in self.noise else 0.0 for noise, expert in _EXPERTS.items()}
        return {"text_encoder": self.te, **model}

    def without(self, components: Collection[str]) -> Tag:
        """The same, leaving some components alone: text encoders, or the unet and transformer."""
        te = 0.0 if any(name.startswith("text_encoder") for name in components) else self.te
        return replace(self, te=te, unet=0.0 if {"unet", "transformer"} & set(components) else self.unet)

    @property
    def is_off(self) -> bool:
        """Whether every multiplier is 0, which equals no tag."""
        return self.te == 0 and self.unet == 0


@dataclass(frozen=True)
class Parsed:
    """A prompt taken apart."""

    text: str
    """The prompt without its LoRA tags, otherwise unchanged."""
    tags: tuple[Tag, ...]


def parse(prompt: str) -> Parsed:
    """Split a prompt into its text and its LoRA tags, in order; a name may occur twice.

    Raises:
        PromptError: a tag is not closed, has no name, or a field that cannot be read.
    """
    tags = []
    for match in _TAG.finditer(prompt):
        if not match[3]:
            raise PromptError(_shown(match[0]), match.start(), "the tag is not closed, '>' is missing")
        tags.append(_tag(match[0], match[2], match.start(2)))
    return Parsed(_TAG.sub("", prompt), tuple(tags))


def parse_arguments(arguments: str, default: float = 1.0) -> Tag:
    """Read what stands between `<lora:` and `>`; for hosts that split the prompt themselves.

    Args:
        arguments: the text.
        default: the multiplier of a tag without one.

    Raises:
        PromptError: as `parse`; positions count from the tag's `<`.
    """
    return _tag(f"<lora:{arguments}>", arguments, len("<lora:"), default)


def format_tag(tag: Tag) -> str:
    """Write a tag so that `parse` reads it back; the name must hold none of `<`, `>` and `:`."""
    fields = [number(tag.te)]
    if tag.unet != tag.te or tag.rank is not None:
        fields.append(number(tag.unet))
    if tag.rank is not None:
        fields.append(str(tag.rank))
    fields += sorted(tag.noise)
    return f"<lora:{':'.join([tag.name, *fields])}>"


@dataclass(frozen=True)
class _Field:
    """A value between two colons, and where it stands in the prompt."""

    value: str
    place: int


def _tag(text: str, arguments: str, start: int, default: float = 1.0) -> Tag:
    name, *rest = arguments.split(":")
    if not name.strip():
        raise PromptError(text, start, "the name is missing")
    fields, noise = _fields(text, rest, start + len(name) + 1)
    te = _multiplier(text, fields.get("te"), default)
    return Tag(name.strip(), te, _multiplier(text, fields.get("unet"), te), _rank(text, fields.get("dyn")), noise)


def _fields(text: str, rest: list[str], place: int) -> tuple[dict[str, _Field], frozenset[str]]:
    """Sort fields by what they set, and the experts chosen; a named field beats one by position."""
    positional: list[_Field] = []
    named: dict[str, _Field] = {}
    noise: set[str] = set()
    for written in rest:
        key, equals, value = written.partition("=")
        if not equals and key.strip().lower() in _EXPERTS:
            noise.add(key.strip().lower())
        elif not equals:
            positional.append(_Field(written, place))
        elif key.strip() not in _FIELDS:
            raise PromptError(text, place, f"{key.strip()!r} is no setting, the settings are {', '.join(_FIELDS)}")
        elif key.strip() in named:
            raise PromptError(text, place, f"{key.strip()!r} is set twice")
        else:
            named[key.strip()] = _Field(value, place + len(key) + 1)
        place += len(written) + 1
    if len(positional) > len(_FIELDS):
        raise PromptError(text, positional[len(_FIELDS)].place, f"a fourth number, {positional[len(_FIELDS)].value!r}")
    return {**dict(zip(_FIELDS, positional, strict=False)), **named}, frozenset(noise)


def _multiplier(text: str, field: _Field | None, default: float) -> float:
    if field is None:
        return default
    if not _NUMBER.fullmatch(field.value.strip()) or not math.isfinite(float(field.value)):
        raise PromptError(text, field.place, f"{field.value!r} is not a number")
    return float(field.value)


def _rank(text: str, field: _Field | None) -> int | None:
    if field is None:
        return None
    written = field.value.strip()
    if not (written.isascii() and written.isdigit() and len(written) <= 6 and int(written) > 0):
        raise PromptError(text, field.place, f"{field.value!r} is not a rank (a whole number from 1)")
    return int(written)


def number(value: float) -> str:
    """Write a multiplier as short as it reads back the same."""
    return repr(int(value)) if value == int(value) and abs(value) < 1e6 else repr(value)


def _shown(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
