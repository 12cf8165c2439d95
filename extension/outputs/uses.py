"""The LoRA that a picture used, by its parameters text; pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from ..kept.always_on import PARAMETER
from ..text.infotext import Infotext, parse_hashes, parse_infotext
from ..text.spelling import KIND, name_and_fields, plain, unescaped

_MOST = 100  # LoRA of a picture
_LONGEST_NAME = 500  # characters
_LONGEST_STRENGTH = 100
_LONGEST_PROMPT = 1000
_TAG = re.compile(rf"<(?:{KIND}):([^<>]*)>", re.IGNORECASE)
_HASH = re.compile(r"[0-9a-f]{8,64}")
_OF_NOTHING = hashlib.sha256().hexdigest()
"""The hash of empty content, which some trainers write into every file."""
_LARGEST_SEED = 2**63


@dataclass(frozen=True)
class Use:
    """One LoRA of one picture."""

    name: str
    """As in its tag."""
    strength: str = ""
    """As in its tag, such as `0.8` or `0.8:stop=10`; empty if the tag has none, or if there is no tag."""
    hash: str = ""
    """8 to 64 hex digits; empty if the text has none."""


@dataclass(frozen=True)
class Uses:
    """What an index keeps of a parameters text."""

    loras: tuple[Use, ...] = ()
    prompt: str = ""
    """Its beginning."""
    seed: int | None = None


def read_uses(text: str) -> Uses:
    """Read the LoRA, the prompt and the seed of a parameters text."""
    info = parse_infotext(text)
    hashes = _hashes(info.settings)
    strengths: dict[str, dict[str, None]] = {}
    for name, strength in _tags(info):
        if len(strengths) < _MOST or name in strengths:
            strengths.setdefault(name, {})[strength] = None
    loras = [Use(name, ", ".join(found), hashes.pop(_in_hashes(name), "")) for name, found in strengths.items()]
    if not loras:  # the tags are not in every program's text
        loras = [Use(name, hash=digest) for name, digest in list(hashes.items())[:_MOST]]
    return Uses(tuple(loras), info.prompt[:_LONGEST_PROMPT], _seed(info.settings.get("Seed", "")))


def tags_of(prompt: str) -> str:
    """Return the tags of a prompt."""
    return " ".join(match[0] for match in _TAG.finditer(plain(prompt)))


def _tags(info: Infotext) -> Iterator[tuple[str, str]]:
    """Yield name and strength of each tag of all prompts, then of the LoRA that were always on."""
    named: set[str] = set()
    hires = (info.settings.get(f"Hires {one}", "") for one in ("prompt", "negative prompt"))
    for text in (info.prompt, info.negative_prompt, *hires):
        for name, strength in _tags_in(text):
            named.add(name)
            if not _is_zero(strength):
                yield name, strength
    for name, strength in _tags_in(info.settings.get(PARAMETER, "")):
        if name not in named and not _is_zero(strength):  # the prompt's tag counts
            yield name, strength


def _tags_in(text: str) -> Iterator[tuple[str, str]]:
    for match in _TAG.finditer(plain(text)):
        name, *fields = name_and_fields(match[1])
        if name.strip():
            yield unescaped(name.strip())[:_LONGEST_NAME], ":".join(fields).strip()[:_LONGEST_STRENGTH]


def _is_zero(strength: str) -> bool:
    """Tell whether a tag does nothing; one at 0 excludes a LoRA that is always on."""
    with suppress(ValueError):
        return all(float(field) == 0 for field in strength.split(":"))
    return False


def _hashes(settings: Mapping[str, str]) -> dict[str, str]:
    """Return hash by name: of A1111's one list of pairs, or of SD.Next's two lists."""
    pairs = parse_hashes(settings.get("Lora hashes", ""))
    names, digests = (settings.get(key, "").split(", ") for key in ("LoRA networks", "LoRA hashes"))
    if len(names) == len(digests):
        pairs += zip(names, digests, strict=True)
    elif names != [""]:
        pairs += [(name, "") for name in names]
    return {_in_hashes(name.strip())[:_LONGEST_NAME]: _hash(digest) for name, digest in pairs if name.strip()}


def _in_hashes(name: str) -> str:
    """Return a name as "Lora hashes" has it."""
    return name.replace(":", "").replace(",", "")


def _hash(digest: str) -> str:
    digest = digest.strip().lower()
    return digest if _HASH.fullmatch(digest) and not _OF_NOTHING.startswith(digest) else ""


def _seed(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        return None
    seed = int(text)
    return seed if seed < _LARGEST_SEED else None
