"""Pasted parameters texts: a LoRA that has another name here is found by its hash."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING

from ..kept.always_on import PARAMETER
from ..text.infotext import parse_hashes
from ..text.names import numbered
from ..text.regions import MAX_NAME
from ..text.spelling import KIND, escaped, unescaped

if TYPE_CHECKING:
    from lib_lora import Region

    from ..library.catalog import Catalog

logger = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds in which files are hashed while a text is pasted."""
_LATER = (
    "a LoRA of the parameters text may have another name here: not all files are hashed yet; to find it, paste the "
    "text again in some minutes"
)
_WHOLE_TAG = re.compile(r"<lora:[^<>:][^<>]*>", re.IGNORECASE)
_TAG = re.compile(rf"(<(?:{KIND}):)((?:\\:|[^<>:])+)(?=[:>])", re.IGNORECASE)
_MOST_REGIONS = 50  # of a text; a tag has as many at most
_AROUND_NAME = "! \t\n\r"  # characters around the name of a region
_MASK = re.compile(rf"(<(?:{KIND}):[^<>]*?:\s*mask\s*=)([^<>:]*)", re.IGNORECASE)


def with_own_names(parameters: Mapping[str, str], catalog: Catalog, until: float | None = None) -> str:
    """Return the prompt with each LoRA under the name it has here, after the LoRA that were always on.

    A name stays if it names the file that was used, or if that file is not here.

    Args:
        parameters: of the text. "Prompt", "Remora stack" and "Lora hashes" are read, or SD.Next's "LoRA networks"
            and "LoRA hashes".
        catalog: the files that are here.
        until: when hashes are no longer waited for, by `time.monotonic`; `PATIENCE` from now if None.
    """
    until = time.monotonic() + PATIENCE if until is None else until  # for all hashes: a text may have any number
    hashes = dict(parse_hashes(parameters.get("Lora hashes", "")))
    whole_hashes = _side_by_side(parameters.get("LoRA networks", ""), parameters.get("LoRA hashes", ""))

    @cache
    def own_name(name: str) -> str:
        digest, whole = hashes.get(name.replace(",", "").replace(":", "")), whole_hashes.get(name)
        left = until - time.monotonic()
        if digest is not None:
            return _own_name(name, digest, catalog, left)
        return name if whole is None else _own_name_by_all(name, whole, catalog, left)

    def renamed(match: re.Match[str]) -> str:
        return match[1] + escaped(own_name(unescaped(match[2])))

    prompt = _TAG.sub(renamed, parameters.get("Prompt", ""))
    named = {_file(unescaped(match[2]), catalog) for match in _TAG.finditer(prompt)}
    stack = [_TAG.sub(renamed, match[0]) for match in _WHOLE_TAG.finditer(parameters.get(PARAMETER, ""))]
    # the prompt overrides a LoRA of the stack that it names
    stack = [tag for tag in stack if _file(unescaped(_TAG.findall(tag)[0][1]), catalog) not in named]
    if time.monotonic() > until and catalog.hashes.is_busy:
        logger.warning("remora: %s", _LATER)
    return " ".join([*stack, prompt]) if stack else prompt


def with_own_regions(
    prompt: str, given: Mapping[str, Region], own: Mapping[str, Region], negative: str = ""
) -> tuple[str, dict[str, Region]]:
    """Return the prompt with each region under the name it has here, and the regions to store for it.

    A region that no tag names is not stored, nor are more than a text of a picture has.

    Args:
        prompt: a text with tags.
        given: the regions of the picture, by their names in the text.
        own: the regions that are here.
        negative: the negative prompt, whose tags may name regions, too.
    """
    names: dict[str, str] = {}
    kept: dict[str, Region] = {}
    named = [name for name in dict.fromkeys((*_regions_in(prompt), *_regions_in(negative))) if name in given]
    for name in named[:_MOST_REGIONS]:
        region = given[name]
        present = {one.lower(): one for one in (*own, *kept)}
        tried = numbered(name, "-", MAX_NAME)
        names[name] = next(one for one in tried if own.get(one) == region or one.lower() not in present)
        if own.get(names[name]) != region:
            kept[names[name]] = region

    def part(text: str) -> str:
        name = text.strip(_AROUND_NAME)
        return text[: text.index(name)] + names[name] if name in names else text

    def renamed(match: re.Match[str]) -> str:
        return match[1] + "+".join(map(part, match[2].split("+")))

    return _MASK.sub(renamed, prompt), kept


def _regions_in(text: str) -> Iterator[str]:
    for match in _MASK.finditer(text):
        for part in match[2].split("+"):
            yield part.strip(_AROUND_NAME)


def _file(name: str, catalog: Catalog) -> object:
    """Return a key that is equal for two names of one file."""
    file = catalog.named(name)
    return name if file is None else file.path


def _side_by_side(names: str, hashes: str) -> dict[str, str]:
    """Pair names and hashes; return nothing if their numbers differ."""
    keys, values = names.split(", "), hashes.split(", ")
    return dict(zip(keys, values, strict=True)) if len(keys) == len(values) else {}


def _own_name(name: str, digest: str, catalog: Catalog, seconds: float) -> str:
    """Return the name here of the file whose short hash starts with `digest`."""
    named = catalog.named(name)
    used = catalog.names.with_hash(digest, seconds, named)
    return name if used is None or used == named else catalog.names.name_of(used)


def _own_name_by_all(name: str, digest: str, catalog: Catalog, seconds: float) -> str:
    """Return the name here of the file whose SHA-256 starts with `digest`."""
    named = catalog.named(name)
    used = catalog.names.with_sha256(digest, seconds, named)
    return name if used is None or used == named else catalog.names.name_of(used)
