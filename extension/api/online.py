"""`/remora/v1/online`: look-ups and downloads; one job at a time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fastapi import HTTPException, Request, Response

from ..generation.options import ONLINE, online
from ..generation.save_places import folders
from ..online.fetch import OnlineError
from ..online.runs import Download, Downloading, DownloadNewer, Found, LookUp, OfFiles, Run, site_of
from ..online.sites import known_sites
from . import records
from .answers import CONFLICT, UNPROCESSABLE, answer, set_option
from .library import find_file

if TYPE_CHECKING:
    from ..generation.session import Session

_MOST_TOLD = 500  # files of a job
_MOST_ASKED = 10_000  # ids of a request
_LONGEST_PAGE = 2000  # characters


class OnlineApi:
    """The latest job of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._latest: Run | None = None

    def state(self, request: Request) -> Response:
        """Return whether sites may be asked, and the progress of the latest job; `job` is null without one."""
        told: records.Online = {
            "on": online(self._session.host),
            "sites": _sites(),
            "folders": folders(self._session),
            "job": None if self._latest is None else self._job(self._latest),
        }
        return answer(request, told)

    def switch(self, request: Request, body: records.OnlineWanted) -> Response:
        """Switch "Look up and download LoRA online" on or off, as in the web UI's settings; off ends the job."""
        set_option(self._session.host, ONLINE, body["on"])
        return self.state(request) if body["on"] else self.cancel(request)

    def look_up(self, request: Request, body: records.LookUpWanted) -> Response:
        """Begin to look files up; answer its progress. The results are written beside each file."""
        catalog, page = self._session.catalog, body.get("page", "").strip()
        if len(body["ids"]) > _MOST_ASKED:
            raise HTTPException(UNPROCESSABLE, f"ids must be a list of no more than {_MOST_ASKED:,} texts")
        if page:
            _check(page)
        files = [find_file(catalog, one, "") for one in body["ids"]] or catalog.files
        readable = [file for file in files if file.readable]
        return self._begin(request, lambda: LookUp(self._session, readable, page))

    def download(self, request: Request, body: records.DownloadWanted) -> Response:
        """Begin to download the file of a page into a LoRA folder; answer its progress."""
        page = body["page"].strip()
        _check(page)
        return self._begin(
            request, lambda: Download(self._session, page, body.get("folder", ""), body.get("name", "").strip())
        )

    def download_newer(self, request: Request, body: records.NewerWanted) -> Response:
        """Begin to download the newer versions of files, each into the folder of its file; answer its progress."""
        if not 1 <= len(body["ids"]) <= _MOST_ASKED:
            raise HTTPException(UNPROCESSABLE, f"ids must be a list of 1 to {_MOST_ASKED:,} texts")
        files = [find_file(self._session.catalog, one, "") for one in dict.fromkeys(body["ids"])]
        return self._begin(request, lambda: DownloadNewer(self._session, files))

    def cancel(self, request: Request) -> Response:
        """Cancel the job; the next download of the same file goes on where this one ended."""
        if self._latest is not None:
            self._latest.cancel()
        return self.state(request)

    def _begin(self, request: Request, make: Callable[[], Run]) -> Response:
        if not online(self._session.host):
            raise HTTPException(CONFLICT, "looking files up online is off; turn it on first")
        with self._lock:
            if self._latest is not None and self._latest.running:
                raise HTTPException(CONFLICT, "files are being looked up or downloaded; wait, or cancel that")
            self._latest = make()
            self._latest.start()
        return self.state(request)

    def _job(self, run: Run) -> records.OnlineJob:
        running = run.running  # first: what is told beside it is complete then
        results = dict(run.results) if isinstance(run, OfFiles) else {}
        states = Counter(state for state, _ in results.values())
        there, size = (run.there, run.size) if isinstance(run, Downloading) else (0, 0)
        file = run.file if isinstance(run, Download) else None
        return {
            "id": run.id,
            "kind": run.kind,
            "running": running,
            "cancelled": run.cancelled,
            "problem": run.problem,
            "done": there if isinstance(run, Download) else run.done,
            "total": size if isinstance(run, Download) else run.total,
            "there": there,
            "size": size,
            "found": states["found"] + states["newer"],
            "unknown": states["unknown"],
            "files": list(islice(_told(results), _MOST_TOLD)),
            "file": None if file is None else file.id,
            "name": "" if file is None else self._session.catalog.names.name_of(file),
            "note": run.note if isinstance(run, Download) else "",
        }


def _told(results: Mapping[str, tuple[Found, str]]) -> Iterator[records.OnlineFile]:
    """Yield the files that the user may want to do something about."""
    for id_of_file, (state, reason) in results.items():
        if state == "newer" or state == "failed":  # a tuple would tell mypy less
            yield {"id": id_of_file, "state": state, "reason": reason}


def _check(page: str) -> None:
    try:
        if len(page) > _LONGEST_PAGE:
            raise OnlineError(f"an address has no more than {_LONGEST_PAGE:,} characters")
        site_of(page)
    except OnlineError as error:
        raise HTTPException(UNPROCESSABLE, str(error)) from error


def _sites() -> list[records.OnlineSite]:
    ways = [(site.key, site.access()) for site in known_sites()]
    return [
        {
            "key": key,
            "name": way.name,
            "host": urlsplit(way.endpoint).netloc,
            "token": bool(way.token),
            "token_variable": way.token_variable,
        }
        for key, way in ways
    ]
