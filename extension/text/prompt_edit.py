"""Changes of LoRA tags within a prompt; nothing else in it is touched. Pure.

`javascript/remora/prompt.js` does the same in the browser; both are held to one table of cases.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from .block_weights import NUMBER
from .prompt import KINDS, RANGE, PromptError, number, parse_arguments

_WHOLE = re.compile(rf"<({'|'.join(KINDS)}):([^<>]*)>", re.IGNORECASE)
_NUMBER = re.compile(NUMBER)
_POINT = re.compile(rf"\s*(?P<value>{_NUMBER.pattern})\s*(?P<place>[@~]\s*{_NUMBER.pattern}\s*)?")
_FLAGS = ("high", "low")
_ALIASES = {"w": "lbw"}


def names_in(prompt: str) -> list[str]:
    """Return the names of the LoRA tags in a prompt, in order; what cannot be read is left out."""
    return [match[2].split(":")[0].strip() for match in _WHOLE.finditer(prompt) if _readable(match[2])]


def with_strength(prompt: str, name: str, te: float, unet: float) -> str:
    """Return the prompt with other multipliers in every tag of that name, and one more at its end where there is none.

    A schedule stays one, with the strength as its value farthest from 0. What else a tag says stays.
    """
    if name not in names_in(prompt):
        tag = f"<lora:{set_multipliers(name, te, unet)}>"
        return f"{prompt.rstrip()} {tag}" if prompt.strip() else tag
    return _changed(prompt, name, lambda kind, written: f"<{kind}:{_with_strength(written, te, unet)}>")


def with_field(prompt: str, name: str, key: str, value: str) -> str:
    """Return the prompt with another value of a field in every tag of that name; without the field if it is empty."""
    return _changed(prompt, name, lambda kind, written: f"<{kind}:{set_field(written, key, value)}>")


def without(prompt: str, name: str) -> str:
    """Return the prompt without the tags of that name, and without the blank before each."""
    return _changed(prompt, name, lambda kind, written: "", before=r"[ \t]?")


def renamed(prompt: str, name: str, other: str) -> str:
    """Return the prompt with another name in every tag of that name."""
    return _changed(prompt, name, lambda kind, written: f"<{kind}:{other}{written[len(written.split(':')[0]) :]}>")


def set_multipliers(arguments: str, te: float | str, unet: float | str) -> str:
    """Return what stands between `<lora:` and `>` with other multipliers, each where one is written already.

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
    # behind a number without a key there may stand block weights, in its place
    elif for_te != for_unet and first is not None and not any(one.key == "lbw" and not one.named for one in fields):
        fields.insert(fields.index(first) + 1, _Part("unet", for_unet))
    elif for_te != for_unet:
        fields.append(_Part("unet", for_unet, "unet="))
    return _joined(name, fields)


def set_field(arguments: str, key: str, value: str) -> str:
    """Return what stands between `<lora:` and `>` with another value of one field, where it stands.

    In whichever spelling it is, by place or by an alias; at the end where it was missing. `start` and `stop` of a tag
    with `step=a-b` are set there.

    Args:
        arguments: `name`, `name:1:IN02`, `name:lbw=IN02:stop=10`, ...
        key: `lbw`, `stop`, `te`, ...
        value: the text of it; empty to have it no more.
    """
    name, fields = _taken_apart(arguments)
    key = _ALIASES.get(key, key)
    steps = next((one for one in fields if one.key == "step" and RANGE.fullmatch(one.value)), None)
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
    """What stands between two colons."""

    key: str
    """Of a flag itself; empty for one that is too many."""
    value: str
    head: str = ""
    """The key as it is written, with its `=`."""
    flag: bool = False

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
    name, *texts = arguments.split(":")
    fields = [_field(text) for text in texts]
    placed = [field for field in fields if not field.named]
    for field, key in zip(placed, _placed_keys([field.value for field in placed]), strict=True):
        field.key = key
    return name, fields


def _field(text: str) -> _Part:
    key, equals, value = text.partition("=")
    if equals:
        return _Part(_ALIASES.get(key.strip(), key.strip()), value, key + equals)
    flag = text.strip().lower()
    return _Part(flag, text, flag=True) if flag in _FLAGS else _Part("", text)


def _placed_keys(values: Sequence[str]) -> list[str]:
    """What values without a key set, by their place.

    Both strengths and a rank; or one strength, block weights, and what X is, or rules for blocks.
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
    """The field that counts: a named one beats one by its place."""
    own = [field for field in fields if field.key == key]
    return next((field for field in own if field.named), own[0] if own else None)


def _keep_places(fields: Sequence[_Part]) -> bool:
    """Whether values without a key still mean what they did."""
    placed = [field for field in fields if not field.named]
    return [field.key for field in placed] == _placed_keys([field.value for field in placed])


def _without(fields: Sequence[_Part], key: str) -> list[_Part]:
    """The others; those behind one without a key get their key, as they would move up to another meaning."""
    placed = [at for at, field in enumerate(fields) if field.key == key and not field.named]
    first = min(placed, default=len(fields))
    return [field.with_key() if at > first else field for at, field in enumerate(fields) if field.key != key]


def _with_steps(fields: list[_Part], steps: _Part, key: str, value: str) -> list[_Part]:
    match = RANGE.fullmatch(steps.value)
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
    """The strength; of a schedule, the schedule with it as the value farthest from 0."""
    points = [_POINT.fullmatch(part) for part in re.split("[,;]", amount)]
    if _NUMBER.fullmatch(amount.strip()) or not all(points):
        return strength
    found = [(float(point["value"]), (point["place"] or "").strip()) for point in points if point is not None]
    peak = max((value for value, _ in found), key=abs)
    if math.isinf(peak):  # no tag that can be read has such a number
        return strength
    return ",".join(
        f"{number(round(value / peak * strength if peak else strength, 6))}{place}" for value, place in found
    )


def _changed(prompt: str, name: str, change: Callable[[str, str], str], before: str = "") -> str:
    def put(match: re.Match[str]) -> str:
        return change(match[1], match[2]) if match[2].split(":")[0].strip() == name else match[0]

    return re.sub(before + _WHOLE.pattern, put, prompt, flags=re.IGNORECASE)


def _readable(arguments: str) -> bool:
    for named in ("lbw", "lbwe", "mask", "feather", "part"):  # which of them there are is known elsewhere
        arguments = set_field(arguments, named, "")
    try:
        parse_arguments(arguments)
    except PromptError:
        return False
    return True
