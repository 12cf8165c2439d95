"""`/remora/v1/presets`: saved stacks."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, cast

from fastapi import HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool

from ..kept.presets import Preset, PresetError
from .answers import BROKEN, NOT_FOUND, UNPROCESSABLE, answer, object_of, picture_of, refuse_stale

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..generation.session import Session

_MAX_TEXT = 1 << 20  # bytes


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

    async def put(self, request: Request, name: str) -> Response:
        """Save a stack under a name, replacing the preset of that name; `former` renames one."""
        data = await object_of(request, _MAX_TEXT, "a preset", "text", "former")
        text, former = data.get("text"), data.get("former", "")
        if not isinstance(text, str) or not isinstance(former, str):
            raise HTTPException(UNPROCESSABLE, "the text of a preset must be text, and its former name, too")
        return await run_in_threadpool(self._changed, request, lambda: self._presets.put(name, text, former))

    async def set_thumbnail(self, request: Request, name: str) -> Response:
        """Replace the thumbnail of a preset; the body is any picture file."""
        content = await picture_of(request)
        return await run_in_threadpool(self._changed, request, lambda: self._presets.set_thumbnail(name, content))

    def thumbnail(self, name: str) -> Response:
        """Return the thumbnail of a preset, as WebP."""
        thumbnail = self._tried(lambda: self._presets.get(name)).thumbnail
        if not thumbnail:
            raise HTTPException(NOT_FOUND, f"the preset {name!r:.120} has no thumbnail")
        return Response(thumbnail, media_type="image/webp")

    def remove(self, request: Request, name: str) -> Response:
        """Delete a preset."""
        return self._changed(request, lambda: self._presets.remove(name))

    async def add(self, request: Request) -> Response:
        """Save the presets of a text; all of them or none."""
        text = (await object_of(request, _MAX_TEXT, "the import", "text")).get("text")
        if not isinstance(text, str):
            raise HTTPException(UNPROCESSABLE, "text must be the text of one or more presets")
        return await run_in_threadpool(self._changed, request, lambda: self._presets.add_text(text))

    def _listed(self) -> dict[str, Any]:
        return {"presets": [_told(preset) for preset in self._presets.all], "problem": self._presets.problem}

    def _changed(self, request: Request, work: Callable[[], Any]) -> Response:
        """Apply a change unless the presets have changed since the client read them; list the presets."""

        def change() -> Response:
            with self._presets.lock():
                refuse_stale(request, self._listed, "the list of presets")
                work()
                return self.list(request)

        return cast(Response, self._tried(change))

    def _tried(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except PresetError as error:
            status = NOT_FOUND if str(error).startswith("there is no preset") else UNPROCESSABLE
            raise HTTPException(status, str(error)) from error
        except OSError as error:
            detail = f"the presets cannot be saved and are unchanged: {error.strerror or error}"
            raise HTTPException(BROKEN, detail) from error


def _told(preset: Preset) -> dict[str, str]:
    mark = hashlib.sha256(preset.thumbnail).hexdigest()[:8] if preset.thumbnail else ""
    return {"name": preset.name, "text": preset.text, "thumbnail": mark}
