"""A parameters text from somewhere else: the LoRAs it names are found by their hashes where they go by other names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .always_on import PARAMETER
from .catalog import CatalogError
from .infotext import parse_hashes

if TYPE_CHECKING:
    from .catalog import Catalog

_WHOLE_TAG = re.compile(r"<lora:[^<>:]+[^<>]*>", re.IGNORECASE)
_TAG = re.compile(r"(<(?:lora|lyco):)([^<>:]+)(?=[:>])", re.IGNORECASE)


def with_own_names(parameters: Mapping[str, str], catalog: Catalog) -> str:
    """Return the prompt with each LoRA under the name it has here, and in front those that were always on.

    A name is kept where the file of that name is the one that was used, or where the file that was used is not here.

    Args:
        parameters: of the text; "Prompt", "Remora stack" and "Lora hashes" are read.
        catalog: the files that are here.
    """
    hashes = dict(parse_hashes(parameters.get("Lora hashes", "")))

    def renamed(match: re.Match[str]) -> str:
        name = match[2]
        digest = hashes.get(name.replace(",", ""))
        return match[1] + (name if digest is None else _own_name(name, digest, catalog))

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


def _own_name(name: str, digest: str, catalog: Catalog) -> str:
    used = catalog.with_hash(digest)
    if not used:
        return name
    try:
        if catalog.find(name) in used:
            return name
    except CatalogError:
        pass  # that name is not known here, or is that of several
    return catalog.name_of(used[0])
