"""Recipes: the prompt, settings, model and LoRA of a picture, and which of these LoRA are here."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..kept.always_on import PARAMETER
from ..text.infotext import Infotext, format_infotext
from ..text.prompt_edit import renamed
from .paste import with_own_names

if TYPE_CHECKING:
    from ..library.catalog import Catalog, CatalogFile
    from ..outputs import Use

By: TypeAlias = Literal["hash", "tensors", "name", "other", ""]
"""How a LoRA is found; `other` is a file of its name that has another hash, an empty text is no file."""
_SHORT = (10, 12)  # digits of a hash of what is after the header, which A1111 and its relatives write


@dataclass(frozen=True)
class FoundLora:
    """One LoRA of a recipe, and the file here that it is."""

    use: Use
    file: CatalogFile | None = None
    by: By = ""


def found_here(uses: Iterable[Use], sketches: Mapping[str, str], catalog: Catalog, until: float) -> list[FoundLora]:
    """Find the files of LoRA: by hash, by tensors, then by name.

    Files without a known hash are hashed in the background.

    Args:
        uses: the LoRA.
        sketches: of some of them, by name, as `sketch_of` returns them.
        catalog: the files that are here.
        until: when hashes are no longer waited for, by `time.monotonic`.
    """
    return [_found(use, sketches.get(use.name, ""), catalog, until) for use in uses]


def _found(use: Use, sketch: str, catalog: Catalog, until: float) -> FoundLora:
    named = catalog.named(use.name)
    if use.hash:
        is_short = _SHORT[0] <= len(use.hash) <= _SHORT[1]
        with_hash = catalog.names.with_hash if is_short else catalog.names.with_sha256
        file = with_hash(use.hash, until - time.monotonic(), named)
        if file is not None:
            return FoundLora(use, file, "hash")
    if sketch and (alike := catalog.copies.same_as(_bytes(sketch), named)) is not None:
        return FoundLora(use, alike, "name" if alike == named else "tensors")
    if named is None:
        return FoundLora(use)
    return FoundLora(use, named, "other" if use.hash else "name")


def own_text(info: Infotext, loras: Iterable[FoundLora], catalog: Catalog, until: float) -> str:
    """Return the parameters text with each LoRA that is here under the name that it has here; see `found_here`."""
    prompt = with_own_names({**info.settings, "Prompt": info.prompt}, catalog, until)
    for lora in loras:
        if lora.by == "tensors" and lora.file is not None:
            prompt = renamed(prompt, lora.use.name, catalog.names.name_of(lora.file))
    settings = {name: value for name, value in info.settings.items() if name != PARAMETER}  # the prompt has them
    return format_infotext(replace(info, prompt=prompt, settings=settings))


def sketches_of(loras: Iterable[FoundLora], catalog: Catalog) -> dict[str, str]:
    """Return the sketches by which LoRA are found elsewhere, by name; files without one are read for it."""
    made = {lora.use.name: catalog.copies.sketch_of(lora.file) for lora in loras if lora.file and lora.by != "other"}
    return {name: base64.b64encode(sketch).decode("ascii") for name, sketch in made.items() if sketch}


def model_of(info: Infotext) -> str:
    """Return the name of the model that a text tells, and its hash."""
    name, digest = info.settings.get("Model", ""), info.settings.get("Model hash", "")
    return f"{name} [{digest}]" if name and digest else name or digest


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""  # a sketch that is damaged finds nothing
