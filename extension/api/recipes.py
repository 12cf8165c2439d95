"""`/remora/v1/recipe`: the prompt, LoRA and settings of a picture or a preset, and which of the LoRA are here."""

from __future__ import annotations

import io
import re
import sqlite3
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from fastapi import HTTPException, Request, Response

from ..generation.paste import PATIENCE
from ..generation.recipe import FoundLora, found_here, model_of, own_text, sketches_of
from ..kept.presets import PresetError, SavedPreset, read_text
from ..outputs import DamagedError, Sought, embedded_in, read_uses, tags_of
from ..text.infotext import parse_infotext
from . import records
from .answers import NOT_FOUND, UNPROCESSABLE, answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..generation.session import Session

_LIKELY = 200  # pictures of one seed among which a picture is looked for
_PRESET = re.compile(r"\ufeff?\s*(?:\{|#\s*Remora preset)", re.IGNORECASE)


class RecipesApi:
    """The recipes over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def of_picture(self, request: Request, body: bytes) -> Response:
        """Return the recipe in the parameters text of a picture, and its place in the output folders."""
        try:
            text = embedded_in(io.BytesIO(body)).text
        except DamagedError as error:
            raise HTTPException(UNPROCESSABLE, f"the picture cannot be used: {error}") from error
        if not text.strip():
            raise HTTPException(
                UNPROCESSABLE, "the picture has no parameters text: it may have lost it on its way here"
            )
        return answer(request, recipe_of(self._session, text, file=self._place(len(body), text)))

    def of_text(self, request: Request, body: records.Text) -> Response:
        """Return the recipe in a parameters text, or in a preset as a file or as text."""
        text = body["text"]
        if not _PRESET.match(text):
            return answer(request, recipe_of(self._session, text))
        try:
            return answer(request, self._of_preset(read_text(text)[0]))
        except PresetError as error:
            raise HTTPException(UNPROCESSABLE, str(error)) from error

    def of_preset(self, request: Request, name: str) -> Response:
        """Return the recipe in a preset."""
        return answer(request, self._of_preset(self._preset(name)))

    def file(self, name: str, sketches: str = "") -> Response:
        """Return one preset as a file; with `sketches=all`, it has sketches, by which its LoRA are found by tensors."""
        whole = preset = self._preset(name)
        if sketches == "all":
            catalog, uses = self._session.catalog, read_uses(preset.parameters or preset.text).loras
            loras = found_here(uses, preset.sketches, catalog, time.monotonic() + PATIENCE)
            whole = replace(preset, sketches={**preset.sketches, **sketches_of(loras, catalog)})
        elif sketches:
            raise HTTPException(UNPROCESSABLE, f"sketches must be 'all' or left out, not {sketches!r:.60}")
        disposition = f"attachment; filename*=UTF-8''{quote(name, safe='')}.remora.json"
        return Response(whole.to_file(), media_type="application/json", headers={"Content-Disposition": disposition})

    def _preset(self, name: str) -> SavedPreset:
        try:
            return self._session.presets.get(name)
        except PresetError as error:
            raise HTTPException(NOT_FOUND, str(error)) from error

    def _of_preset(self, preset: SavedPreset) -> records.Recipe:
        return recipe_of(self._session, preset.parameters or preset.text, preset.sketches, name=preset.name)

    def _place(self, size: int, text: str) -> str:
        """Return where a picture is below the output folders; empty if it is not."""
        outputs, uses = self._session.outputs, read_uses(text)
        if outputs.index is None or uses.seed is None:
            return ""
        with suppress(sqlite3.Error, OSError):  # the list of pictures says so
            _, found = outputs.index.latest(Sought(seed=uses.seed), 0, _LIKELY)
            return next((outputs.shown(one) for one in found if one.size == size and one.uses == uses), "")
        return ""


def recipe_of(
    session: Session, text: str, sketches: Mapping[str, str] | None = None, name: str = "", file: str = ""
) -> records.Recipe:
    """Return what a parameters text tells, and which of its LoRA are here."""
    catalog, info = session.catalog, parse_infotext(text)
    until = time.monotonic() + PATIENCE
    loras = found_here(read_uses(text).loras, sketches or {}, catalog, until)
    own = own_text(info, loras, catalog, until)
    is_missing = any(lora.by in ("", "other") for lora in loras)
    reads_on = catalog.hashes.is_busy or (bool(sketches) and catalog.copies.progress.running)
    return {
        "name": name,
        "file": file,
        "text": text,
        "own": own,
        "tags": tags_of(parse_infotext(own).prompt),
        "prompt": info.prompt,
        "negative": info.negative_prompt,
        "settings": dict(info.settings),
        "model": model_of(info),
        "loras": [_listed(lora) for lora in loras],
        "searching": is_missing and reads_on,
    }


def _listed(lora: FoundLora) -> records.RecipeLora:
    id_of_file = None if lora.file is None else lora.file.id
    return {"name": lora.use.name, "strength": lora.use.strength, "id": id_of_file, "by": lora.by}
