"""`/remora/v1/presets`: saved stacks."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeVar

from fastapi import HTTPException, Request, Response

from ..kept.presets import PresetError, SavedPreset
from . import records
from .answers import BROKEN, NOT_FOUND, UNPROCESSABLE, answer, refuse_stale

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..generation.session import Session

_T = TypeVar("_T")


class PresetsApi:
    """The presets over one session."""

    def __init__(self, session: Session) -> None:
        self._presets = session.presets

    def list(self, request: Request) -> Response:
        """List the presets."""
        return answer(request, self._listed())

    def text(self, name: str) -> Response:
        """Return one preset as text that can be shared and imported."""
        text = self._tried(lambda: self._presets.get(name)).to_text()
        return Response(text.encode("utf-8", "replace"), media_type="text/plain")

    def put(self, request: Request, body: records.PresetWanted, name: str) -> Response:
        """Save a stack under a name, replacing the preset of that name; `former` renames one."""
        return self._changed(
            request, lambda: self._presets.put(name, body["text"], body.get("former", ""), body.get("parameters"))
        )

    def set_thumbnail(self, request: Request, body: bytes, name: str) -> Response:
        """Replace the thumbnail of a preset; the body is any picture file."""
        return self._changed(request, lambda: self._presets.set_thumbnail(name, body))

    def thumbnail(self, name: str) -> Response:
        """Return the thumbnail of a preset, as WebP."""
        thumbnail = self._tried(lambda: self._presets.get(name)).thumbnail
        if not thumbnail:
            raise HTTPException(NOT_FOUND, f"the preset {name!r:.120} has no thumbnail")
        return Response(thumbnail, media_type="image/webp")

    def remove(self, request: Request, name: str) -> Response:
        """Delete a preset."""
        return self._changed(request, lambda: self._presets.remove(name))

    def add(self, request: Request, body: records.Text) -> Response:
        """Save the presets of a text; all of them or none."""
        return self._changed(request, lambda: self._presets.add_text(body["text"]))

    def _listed(self) -> records.Presets:
        return {"presets": [_told(preset) for preset in self._presets.all], "problem": self._presets.problem}

    def _changed(self, request: Request, work: Callable[[], object]) -> Response:
        """Apply a change unless the presets have changed since the client read them; list the presets."""

        def change() -> Response:
            with self._presets.lock():
                refuse_stale(request, self._listed, "the list of presets")
                work()
                return self.list(request)

        return self._tried(change)

    def _tried(self, work: Callable[[], _T]) -> _T:
        try:
            return work()
        except PresetError as error:
            status = NOT_FOUND if str(error).startswith("there is no preset") else UNPROCESSABLE
            raise HTTPException(status, str(error)) from error
        except OSError as error:
            detail = f"the presets cannot be saved and are unchanged: {error.strerror or error}"
            raise HTTPException(BROKEN, detail) from error


def _told(preset: SavedPreset) -> records.Preset:
    mark = hashlib.sha256(preset.thumbnail).hexdigest()[:8] if preset.thumbnail else ""
    return {"name": preset.name, "text": preset.text, "thumbnail": mark, "parameters": preset.parameters}
