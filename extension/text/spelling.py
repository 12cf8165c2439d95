r"""How people write a tag: its kind, its name, and the marks around them; pure.

<lora:name:1>   <LoRA:name:1>   &lt;lora:name:1&gt;   <lora:a\: b:1>   and the full-width marks of an input method
"""

from __future__ import annotations

import re
from collections.abc import Mapping

KINDS = ("lora", "lyco", "loractl")
"""Kinds of tag; LyCORIS files and schedules once had their own."""
KIND = "|".join(KINDS)
"""A pattern of them."""

_SPELLINGS = ("<", "[^<>]", ">"), ("\uff1c", "[^<>\uff1c\uff1e]", "\uff1e"), ("&lt;", "(?:(?!&[lg]t;)[^<>])", "&gt;")
"""For each, what opens a tag, what may be in it, and what closes it; the second is full-width."""
_COLON = "\uff1a"  # full-width
_SPELT = re.compile(
    "|".join(rf"{left}[ \t]*({KIND})[ \t]*([:{_COLON}])({inner}*){right}" for left, inner, right in _SPELLINGS),
    re.IGNORECASE,
)
_PLAIN = re.compile(rf"(?<=<)({KIND}):([^<>]*)(?=>)", re.IGNORECASE)
NARROW = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
"""Full-width letters, digits and marks as they are in ASCII."""


def plain(prompt: str) -> str:
    """Return the prompt with tags in full-width, HTML and capital spelling as `<lora:...>`."""
    return _SPELT.sub(_plain_tag, prompt)


def _plain_tag(match: re.Match[str]) -> str:
    kind, colon, arguments = (one for one in match.groups() if one is not None)
    if colon != ":" or not match[0].startswith("<"):
        name, *fields = name_and_fields(arguments.replace(_COLON, ":"))
        arguments = ":".join([name, *(field.translate(NARROW) for field in fields)])
    return f"<{kind.lower()}:{arguments}>"


def name_and_fields(arguments: str) -> list[str]:
    r"""Split the text between `<lora:` and `>` at its colons; `\:` is a colon of the name, and stays as written."""
    if "\\:" not in arguments:
        return arguments.split(":")
    return re.split(r"(?<!\\):", arguments)


def name_of(arguments: str) -> str:
    """Return the name that a tag means."""
    return unescaped(name_and_fields(arguments)[0].strip())


def escaped(name: str) -> str:
    """Return a name as a tag has it."""
    return name.replace(":", "\\:")


def unescaped(name: str) -> str:
    """Return a name that is written as a tag has it."""
    return name.replace("\\:", ":")


def names_in(prompt: str) -> list[str]:
    """Return the names that the tags of a plain prompt mean."""
    return [name_of(arguments) for _, arguments in _PLAIN.findall(prompt)]


def renamed(prompt: str, names: Mapping[str, str]) -> str:
    """Return a plain prompt whose tags have other names; all else stays as written."""

    def tag(match: re.Match[str]) -> str:
        written, *fields = name_and_fields(match[2])
        name = unescaped(written.strip())
        return ":".join([match[1], escaped(names[name]) if name in names else written, *fields])

    return _PLAIN.sub(tag, prompt)
