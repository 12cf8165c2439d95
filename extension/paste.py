"""A parameters text from somewhere else: the LoRAs it names are found by their hashes where they go by other names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .always_on import PARAMETER
from .catalog import CatalogError
from .infotext import parse_hashes

if TYPE_CHECKING:
    from .catalog import Catalog, CatalogFile

_WHOLE_TAG = re.compile(r"<lora:[^<>:]+[^<>]*>", re.IGNORECASE)
_TAG = re.compile(r"(<(?:lora|lyco|loractl):)([^<>:]+)(?=[:>])", re.IGNORECASE)


def with_own_names(parameters: Mapping[str, str], catalog: Catalog) -> str:
    """Return the prompt with each LoRA under the name it has here, and in front those that were always on.

    A name is kept where the file of that name is the one that was used, or where the file that was used is not here.

    Args:
        parameters: of the text; "Prompt", "Remora stack" and "Lora hashes" are read, or SD.Next's "LoRA networks" and
            "LoRA hashes".
        catalog: the files that are here.
    """
    hashes = dict(parse_hashes(parameters.get("Lora hashes", "")))
    whole_hashes = _side_by_side(parameters.get("LoRA networks", ""), parameters.get("LoRA hashes", ""))

    def renamed(match: re.Match[str]) -> str:
        name = match[2]
        digest, whole = hashes.get(name.replace(",", "")), whole_hashes.get(name)
        if digest is not None:
            name = _own_name(name, digest, catalog)
        elif whole is not None:
            name = _own_name_by_all(name, whole, catalog)
        return match[1] + name

    prompt = _TAG.sub(renamed, parameters.get("Prompt", ""))
    named = {_file(match[2], catalog) for match in _TAG.finditer(prompt)}
    stack = [_TAG.sub(renamed, match[0]) for match in _WHOLE_TAG.finditer(parameters.get(PARAMETER, ""))]
    # where a prompt names one of them, they were not what counted
    stack = [tag for tag in stack if _file(_TAG.findall(tag)[0][1], catalog) not in named]
    return " ".join([*stack, prompt]) if stack else prompt


def _file(name: str, catalog: Catalog) -> object:
    """What makes two names those of one file."""
    try:
        return catalog.find(name).path
    except CatalogError:
        return name


def _side_by_side(names: str, hashes: str) -> dict[str, str]:
    """Which hash is whose; nothing where some are missing."""
    keys, values = names.split(", "), hashes.split(", ")
    return dict(zip(keys, values, strict=True)) if len(keys) == len(values) else {}


def _own_name(name: str, digest: str, catalog: Catalog) -> str:
    used = catalog.with_hash(digest)
    if not used or _named(name, catalog) in used:
        return name
    return catalog.name_of(used[0])


def _own_name_by_all(name: str, digest: str, catalog: Catalog) -> str:
    """The same by the hash of the whole file."""
    named = _named(name, catalog)
    used = catalog.with_sha256(digest, named)
    return name if used is None or used == named else catalog.name_of(used)


def _named(name: str, catalog: Catalog) -> CatalogFile | None:
    """The file of that name here; None where there is none, or several."""
    try:
        return catalog.find(name)
    except CatalogError:
        return None
