"""`/remora/v1/regions`: the regions that tags may name."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from fastapi import HTTPException, Request, Response

from ..kept.region_files import as_png, from_text
from ..text.regions import NAMED, RegionTextError, checked_name
from . import records
from .answers import BROKEN, UNPROCESSABLE, answer, refuse_stale

if TYPE_CHECKING:
    from collections.abc import Callable

    from lib_lora import Region

    from ..generation.session import Session


class RegionsApi:
    """The regions over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def list(self, request: Request) -> Response:
        """List the regions that `mask=` can name, Remora's first, as small grey pictures."""
        return answer(request, self._listed())

    def _listed(self) -> records.Regions:
        own = self._session.regions.all
        come_along = [_shown(name, region, own=False) for name, region in NAMED.items() if name not in own]
        return {
            "regions": [*come_along, *(_shown(name, region, own=True) for name, region in own.items())],
            "problem": self._session.regions.problem,
        }

    def put(self, request: Request, body: records.RegionWanted) -> Response:
        """Save a picture as a region under a name, replacing the region of that name."""
        name, picture = body["name"], body["picture"]
        return self._changed(request, lambda: self._session.regions.put(checked_name(name), from_text(picture)))

    def remove(self, request: Request, name: str) -> Response:
        """Delete one of the user's own regions."""
        return self._changed(request, lambda: self._session.regions.delete(name))

    def _changed(self, request: Request, work: Callable[[], object]) -> Response:
        """Apply a change unless the regions have changed since the client read them; list the regions."""
        try:
            with self._session.regions.lock():
                refuse_stale(request, self._listed, "the list of regions")
                work()
                return self.list(request)
        except RegionTextError as error:
            raise HTTPException(UNPROCESSABLE, str(error)) from error
        except OSError as error:
            detail = f"the region cannot be saved and is unchanged: {error.strerror or error}"
            raise HTTPException(BROKEN, detail) from error


def _shown(name: str, region: Region, *, own: bool) -> records.Region:
    picture = base64.b64encode(as_png(region)).decode("ascii")
    return {"name": name, "own": own, "share": round(region.share, 4), "picture": picture}
