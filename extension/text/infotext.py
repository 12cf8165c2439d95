"""Generation parameters as text, in the format of AUTOMATIC1111's web UI and everything that reads it; pure.

a red fox <lora:fur:0.8>
Negative prompt: blurry
Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: 1, Size: 512x512, Lora hashes: "fur: 0123456789ab"
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_NEGATIVE = "Negative prompt:"
_TEMPLATES = ("Template:", "Negative template:")  # of SD.Next: the prompts once more, before styles and wildcards
# Finds the matches of the original's pattern, which starts with `\s*(`. Here a name is searched once per run of valid
# characters, not at each of them, which would take minutes for a long line without a colon.
_SETTING = re.compile(r'(?<![\w \-/])[ \-/]*(\w[\w \-/]+):\s*("(?:\\.|[^\\"])+"|[^,]*)(?:,|$)')
_MIN_SETTINGS = 3  # a last line with fewer belongs to the prompt, as in the original


@dataclass(frozen=True)
class Infotext:
    """The parameters of a picture."""

    prompt: str = ""
    negative_prompt: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Name to value, in the order shown; a name starts with a letter and contains letters, digits, space, - and /."""


def format_infotext(info: Infotext) -> str:
    """Write the parameters text of one picture."""
    lines = [info.prompt]
    if info.negative_prompt:
        lines.append(f"{_NEGATIVE} {info.negative_prompt}")
    lines.append(", ".join(f"{name}: {_quote(value)}" for name, value in info.settings.items()))
    return "\n".join(lines).strip()


def parse_infotext(text: str) -> Infotext:
    """Parse a parameters text; a text without settings is a prompt.

    A line of the prompt that starts with "Negative prompt:" is read as the negative prompt.
    """
    *lines, last = text.strip().split("\n")
    found = _SETTING.findall(last)
    if len(found) < _MIN_SETTINGS:
        lines, found = [*lines, last], []
    if ("App", "SD.Next") in found:
        lines = lines[: next((i for i, line in enumerate(lines) if line.startswith(_TEMPLATES)), len(lines))]
    start = next((i for i, line in enumerate(lines) if line.strip().startswith(_NEGATIVE)), len(lines))
    negative = "\n".join(lines[start:]).strip().removeprefix(_NEGATIVE).strip()
    return Infotext("\n".join(lines[:start]).strip(), negative, {name: _unquote(value) for name, value in found})


def format_hashes(hashes: Iterable[tuple[str, str]]) -> str:
    """Write the value of "Lora hashes" from (name, hash) pairs; as in the original, names lose `:` and `,`."""
    return ", ".join(f"{name.replace(':', '').replace(',', '')}: {digest}" for name, digest in hashes)


def parse_hashes(value: str) -> list[tuple[str, str]]:
    """Parse the value of "Lora hashes" into (name, hash) pairs; anything else is left out."""
    pairs = (entry.rpartition(":") for entry in value.split(","))
    return [(name.strip(), digest.strip()) for name, colon, digest in pairs if colon and name.strip()]


def _quote(value: str) -> str:
    # blanks at the edges need quotes, or they are lost when read back
    if value and not any(mark in value for mark in ",\n:") and value == value.strip() and not value.startswith('"'):
        return value
    return json.dumps(value, ensure_ascii=False) if value else value


def _unquote(value: str) -> str:
    if len(value) < 2 or value[0] != '"' or value[-1] != '"':
        return value
    try:
        loaded = json.loads(value)
    except ValueError:
        return value  # quoted by another program's rules; show it as it stands
    return loaded if isinstance(loaded, str) else value
