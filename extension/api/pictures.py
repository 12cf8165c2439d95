"""`/remora/v1/pictures`: the pictures of this session, and the LoRA of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import HTTPException, Request, Response

from ..library.catalog import CatalogError
from . import records
from .answers import NOT_FOUND, answer, whole

if TYPE_CHECKING:
    from ..generation.record import Picture
    from ..generation.session import Session
    from ..library.catalog import CatalogFile


class PicturesApi:
    """The record of pictures of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def list(self, request: Request, lora: str = "", seed: str = "", most: str = "") -> Response:
        """List the pictures of this session, the latest first, with the LoRA of each.

        `lora` is the id of a file: then only the pictures that used it. `seed` and `most` limit the list, too.
        """
        file = self._file(lora) if lora else None
        found = self._session.record.pictures(file, whole(seed, "seed") if seed else None)
        shown = found[: whole(most, "most")] if most else found
        told: records.Pictures = {
            "count": self._session.record.count,
            "found": len(found),
            "pictures": [_told(picture) for picture in shown],
        }
        return answer(request, told)

    def thumbnail(self, id: str = "") -> Response:  # noqa: A002  # of the query
        """Return one picture, small, as WebP."""
        picture = self._session.record.picture(whole(id, "id"))
        if picture is None or picture.thumbnail is None:
            raise HTTPException(NOT_FOUND, "the session has no such picture (any more)")
        # another process counts its pictures from 1 again
        return Response(picture.thumbnail, media_type="image/webp", headers={"Cache-Control": "no-store"})

    def _file(self, wanted: str) -> CatalogFile:
        try:
            return self._session.catalog.with_id(wanted)
        except CatalogError as error:
            raise HTTPException(NOT_FOUND, str(error)) from error


def _told(picture: Picture) -> records.MadePicture:
    return {
        "id": picture.number,
        "time": picture.at,
        "seed": picture.seed,
        "thumbnail": picture.thumbnail is not None,
        "loras": [
            {
                "id": None if one.file is None else one.file.id,
                "name": one.name,
                "strength": one.strength,
                "state": one.state,
                "reason": one.reason,
                "always_on": one.always_on,
            }
            for one in picture.loras
        ],
    }
