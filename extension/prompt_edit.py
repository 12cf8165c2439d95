"""Changes of LoRA tags within a prompt; nothing else in it is touched. Pure.

`javascript/remora/prompt.js` does the same in the browser; both are held to one table of cases.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .prompt import PromptError, number, parse_arguments

_WHOLE = re.compile(r"<(lora|lyco):([^<>]*)>", re.IGNORECASE)
_FLAGS = ("high", "low")


def names_in(prompt: str) -> list[str]:
    """Return the names of the LoRA tags in a prompt, in order; what cannot be read is left out."""
    return [match[2].split(":")[0].strip() for match in _WHOLE.finditer(prompt) if _readable(match[2])]


def with_strength(prompt: str, name: str, te: float, unet: float) -> str:
    """Return the prompt with other multipliers in every tag of that name, and one more at its end where there is none.

    What else a tag says stays.
    """
    if name not in names_in(prompt):
        tag = f"<lora:{set_multipliers(name, te, unet)}>"
        return f"{prompt.rstrip()} {tag}" if prompt.strip() else tag
    return _changed(prompt, name, lambda kind, written: f"<{kind}:{set_multipliers(written, te, unet)}>")


def without(prompt: str, name: str) -> str:
    """Return the prompt without the tags of that name, and without the blank before each."""
    return _changed(prompt, name, lambda kind, written: "", before=r"[ \t]?")


def renamed(prompt: str, name: str, other: str) -> str:
    """Return the prompt with another name in every tag of that name."""
    return _changed(prompt, name, lambda kind, written: f"<{kind}:{other}{written[len(written.split(':')[0]) :]}>")


def set_multipliers(arguments: str, te: float, unet: float) -> str:
    """Return what stands between `<lora:` and `>` with other multipliers, each where one is written already.

    Args:
        arguments: `name`, `name:0.8`, `name:te=0.5:unet=1`, ...
        te: for the text encoders.
        unet: for the UNet or transformer.
    """
    name, *fields = arguments.split(":")
    named = {field.partition("=")[0].strip(): at for at, field in enumerate(fields) if "=" in field}
    placed = [at for at, field in enumerate(fields) if "=" not in field and field.strip().lower() not in _FLAGS]
    if "te" in named:
        fields[named["te"]] = f"te={number(te)}"
    elif placed:
        fields[placed[0]] = number(te)
    else:
        fields.insert(0, number(te))
        placed, named = [0], {key: at + 1 for key, at in named.items()}
    if "unet" in named:
        fields[named["unet"]] = f"unet={number(unet)}"
    elif len(placed) > 1:
        fields[placed[1]] = number(unet)
        if te == unet and len(placed) == 2 and "te" not in named:
            del fields[placed[1]]
    elif te != unet:
        if placed:
            fields.insert(placed[0] + 1, number(unet))
        else:
            fields.append(f"unet={number(unet)}")
    return ":".join([name, *fields])


def _changed(prompt: str, name: str, change: Callable[[str, str], str], before: str = "") -> str:
    def replace(match: re.Match[str]) -> str:
        return change(match[1], match[2]) if match[2].split(":")[0].strip() == name else match[0]

    return re.sub(before + _WHOLE.pattern, replace, prompt, flags=re.IGNORECASE)


def _readable(arguments: str) -> bool:
    try:
        parse_arguments(arguments)
    except PromptError:
        return False
    return True
