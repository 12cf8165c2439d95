"""Changes of LoRA tags within a prompt; the rest of the prompt is not touched. Pure.

`javascript/remora/prompt.js` does the same in the browser; one table of cases tests both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from .block_weights import NUMBER
from .prompt import ALIASES, PromptError, is_range, match_range, number, parse_arguments
from .spelling import KIND, escaped, name_and_fields, name_of

_WHOLE = re.compile(rf"<({KIND}):([^<>]*)>", re.IGNORECASE)
_NUMBER = re.compile(NUMBER)
_POINT = re.compile(rf"\s*(?P<value>{_NUMBER.pattern})\s*(?P<place>[@~]\s*{_NUMBER.pattern}\s*)?")
_FLAGS = ("high", "low")


def names_in(prompt: str) -> list[str]:
    """Return the names of the LoRA tags in a prompt, in order; invalid tags are left out."""
    return [name_of(match[2]) for match in _WHOLE.finditer(prompt) if _readable(match[2])]


def with_strength(prompt: str, name: str, te: float, unet: float) -> str:
    """Return the prompt with new multipliers in every tag of that name, or with a new tag at its end.

    A schedule is scaled so that its value farthest from 0 is the strength. Other fields stay.
    """
    if name not in names_in(prompt):
        tag = f"<lora:{set_multipliers(escaped(name), te, unet)}>"
        return f"{prompt.rstrip()} {tag}" if prompt.strip() else tag
    return _changed(prompt, name, lambda kind, written: f"<{kind}:{_with_strength(written, te, unet)}>")


def with_field(prompt: str, name: str, key: str, value: str) -> str:
    """Return the prompt with a field set in every tag of that name; an empty value removes the field."""
    return _changed(prompt, name, lambda kind, written: f"<{kind}:{set_field(written, key, value)}>")


def without(prompt: str, name: str) -> str:
    """Return the prompt without the tags of that name, and without the blank before each."""
    return _changed(prompt, name, lambda kind, written: "", before=r"[ \t]?")


def renamed(prompt: str, name: str, other: str) -> str:
    """Return the prompt with another name in every tag of that name."""

    def change(kind: str, written: str) -> str:
        return f"<{kind}:{':'.join([escaped(other), *name_and_fields(written)[1:]])}>"

    return _changed(prompt, name, change)


def set_multipliers(arguments: str, te: float | str, unet: float | str) -> str:
    """Return the text between `<lora:` and `>` with new multipliers, each where it is already written.

    Args:
        arguments: `name`, `name:0.8`, `name:te=0.5:unet=1`, ...
        te: for the text encoders; a number, or the points of a schedule as text.
        unet: for the UNet or transformer.
    """
    name, fields = _taken_apart(arguments)
    for_te, for_unet = (value if isinstance(value, str) else number(value) for value in (te, unet))
    counts = _find(fields, "te")
    if counts is None:
        counts = _Part("te", for_te)
        fields.insert(0, counts)
    counts.put(for_te)
    first = next((field for field in fields if field.key == "te" and not field.named), None)
    own = _find(fields, "unet")
    if own is not None:
        own.put(for_unet)
        last = not any(field for field in fields[fields.index(own) + 1 :] if not field.named)
        if for_te == for_unet and not own.named and last and not counts.named:
            fields.remove(own)
    # block weights may follow a positional number
    elif for_te != for_unet and first is not None and not any(one.key == "lbw" and not one.named for one in fields):
        fields.insert(fields.index(first) + 1, _Part("unet", for_unet))
    elif for_te != for_unet:
        fields.append(_Part("unet", for_unet, "unet="))
    return _joined(name, fields)


def set_field(arguments: str, key: str, value: str) -> str:
    """Return the text between `<lora:` and `>` with one field set in its place.

    The field keeps its spelling, by position or by an alias; a missing one is appended. `step=a-b` holds
    `start` and `stop`.

    Args:
        arguments: `name`, `name:1:IN02`, `name:lbw=IN02:stop=10`, ...
        key: `lbw`, `stop`, `te`, ...
        value: as text; empty removes the field.
    """
    name, fields = _taken_apart(arguments)
    key = ALIASES.get(key, key)
    steps = next((one for one in fields if one.key == "step" and match_range(one.value)), None)
    if steps is not None and key in ("start", "stop"):
        return _joined(name, _with_steps(fields, steps, key, value))
    own = _find(fields, key)
    if not value:
        return _joined(name, _without(fields, key))
    if own is None:
        fields.append(_Part(key, value, f"{key}="))
        return _joined(name, fields)
    own.value = value
    if not own.named and not _keep_places(fields):
        at = fields.index(own)
        fields = [*fields[:at], *(field.with_key() for field in fields[at:])]
    return _joined(name, fields)


@dataclass(eq=False)
class _Part:
    """The text between two colons."""

    key: str
    """For a flag, the flag itself; empty for a surplus value."""
    value: str
    head: str = ""
    """The key as written, with its `=`."""
    flag: bool = False
    """It needs no key, wherever it stands: a flag, or a range of steps."""

    @property
    def named(self) -> bool:
        return self.flag or bool(self.head)

    def put(self, value: str) -> None:
        self.value = value
        if self.named:
            self.head = f"{self.key}="

    def with_key(self) -> _Part:
        if self.named or not self.key:
            return self
        return replace(self, head=f"{self.key}=", value=self.value.strip())


def _taken_apart(arguments: str) -> tuple[str, list[_Part]]:
    name, *texts = name_and_fields(arguments)
    fields = [_field(text) for text in texts]
    placed = [field for field in fields if not field.named]
    for field, key in zip(placed, _placed_keys([field.value for field in placed]), strict=True):
        field.key = key
    return name, fields


def _field(text: str) -> _Part:
    key, equals, value = text.partition("=")
    if equals:
        return _Part(ALIASES.get(key.strip(), key.strip()), value, key + equals)
    flag = text.strip().lower()
    if flag in _FLAGS:
        return _Part(flag, text, flag=True)
    return _Part("step", text, flag=True) if is_range(text) else _Part("", text)


def _placed_keys(values: Sequence[str]) -> list[str]:
    """Return the keys that positional values set.

    Both strengths and a rank; or one strength, block weights, and the value of X, or rules for blocks.
    """
    keys = ["te", "unet", "dyn"]
    if len(values) > 1 and not _may_be_amount(values[1]):
        keys = ["te", "lbw", "x" if len(values) > 2 and _may_be_amount(values[2]) else "lbwe"]
    return [*keys[: len(values)], *[""] * (len(values) - len(keys))]


def _may_be_amount(value: str) -> bool:
    return "@" in value or "~" in value or _NUMBER.fullmatch(value.strip()) is not None


def _joined(name: str, fields: Iterable[_Part]) -> str:
    return ":".join([name, *(field.head + field.value for field in fields)])


def _find(fields: Sequence[_Part], key: str) -> _Part | None:
    """Return the field in effect: a named field overrides a positional one."""
    own = [field for field in fields if field.key == key]
    return next((field for field in own if field.named), own[0] if own else None)


def _keep_places(fields: Sequence[_Part]) -> bool:
    """Tell whether positional values keep their meaning."""
    placed = [field for field in fields if not field.named]
    return [field.key for field in placed] == _placed_keys([field.value for field in placed])


def _without(fields: Sequence[_Part], key: str) -> list[_Part]:
    """Remove the field; positional values after it get their key, as their position changes."""
    placed = [at for at, field in enumerate(fields) if field.key == key and not field.named]
    first = min(placed, default=len(fields))
    return [field.with_key() if at > first else field for at, field in enumerate(fields) if field.key != key]


def _with_steps(fields: list[_Part], steps: _Part, key: str, value: str) -> list[_Part]:
    match = match_range(steps.value)
    assert match is not None
    ends = {"start": match[1], "stop": match[2], key: value}
    if ends["start"] and ends["stop"]:
        steps.value = f"{ends['start']}-{ends['stop']}"
    elif ends["start"] or ends["stop"]:
        left = "start" if ends["start"] else "stop"
        steps.head, steps.value = f"{left}=", ends[left]
    else:
        fields.remove(steps)
    return fields


def _with_strength(arguments: str, te: float, unet: float) -> str:
    _, fields = _taken_apart(arguments)
    for_te, for_unet = _find(fields, "te"), _find(fields, "unet") or _find(fields, "te")
    return set_multipliers(
        arguments,
        te if for_te is None else _scaled(for_te.value, te),
        unet if for_unet is None else _scaled(for_unet.value, unet),
    )


def _scaled(amount: str, strength: float) -> float | str:
    """Return the strength; a schedule is scaled so that its value farthest from 0 is the strength."""
    points = [_POINT.fullmatch(part) for part in re.split("[,;]", amount)]
    if _NUMBER.fullmatch(amount.strip()) or not all(points):
        return strength
    found = [(float(point["value"]), (point["place"] or "").strip()) for point in points if point is not None]
    peak = max((value for value, _ in found), key=abs)
    if math.isinf(peak):  # no valid tag has such a number
        return strength
    return ",".join(
        f"{number(round(value / peak * strength if peak else strength, 6))}{place}" for value, place in found
    )


def _changed(prompt: str, name: str, change: Callable[[str, str], str], before: str = "") -> str:
    def put(match: re.Match[str]) -> str:
        return change(match[1], match[2]) if name_of(match[2]) == name else match[0]

    return re.sub(before + _WHOLE.pattern, put, prompt, flags=re.IGNORECASE)


def _readable(arguments: str) -> bool:
    for named in ("lbw", "lbwe", "mask", "feather", "outside", "part"):  # their names are checked elsewhere
        arguments = set_field(arguments, named, "")
    try:
        parse_arguments(arguments)
    except PromptError:
        return False
    return True
