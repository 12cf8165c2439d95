"""The jobs: looking files up, and downloading some; each in a thread of its own."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from lib_lora import LoraError

from ..generation.options import online
from ..generation.save_places import SaveError, checked_name, place
from ..library import CatalogFile, NotesError, beside
from ..library.catalog import CatalogError
from ..library.hashes import HashStopped, hash_from
from ..library.moves import Move
from ..library.notes import read_own
from ..library.pictures import PictureError
from ..library.walk import READABLE
from ..text.names import numbered
from .fetch import CancelledError, EndedError, OnlineError, SiteClient, UnreachableError
from .sidecars import ONLINE, keep, keep_picture, read_online
from .site import LocalFile, Published, Site, SiteFile
from .sites import known_sites
from .values import line, mapping

if TYPE_CHECKING:
    from ..generation.session import Session

logger = logging.getLogger(__name__)

Kind: TypeAlias = Literal["lookup", "download", "newer"]
Found: TypeAlias = Literal["found", "newer", "unknown", "failed"]
"""What became of a file that was looked up, or whose newer version was downloaded."""
_FAULTS = (OnlineError, SaveError, NotesError, LoraError, CatalogError)
"""Errors whose message is a sentence for the user."""
_MOST_BYTES = 64 << 30  # of a download
_MOST_SILENT = 3  # files in a row for which a site does not answer
_AT_ONCE = 50  # files that a site is asked for at once; Civitai takes 100, and their answer has a bound here
_NUMBERED_AT_MOST = 1000  # names that are tried
_LONGEST = 100  # characters of a name with a number
_SPARE = 256 << 20  # bytes that a download leaves on the disk


def site_of(page: str) -> Site:
    """Return the site that an address is a page of.

    Raises:
        OnlineError: it is none of any site.
    """
    for site in known_sites():
        if site.has(page):
            return site
    names = " or ".join(site.access().name for site in known_sites())
    raise OnlineError(f"this is not the address of a model's page on {names}")


@dataclass
class Run(ABC):
    """One job."""

    session: Session
    id: str = field(default_factory=lambda: secrets.token_hex(8), init=False)
    done: int = field(default=0, init=False)
    """Files."""
    total: int = field(default=0, init=False)
    running: bool = field(default=True, init=False)
    problem: str = field(default="", init=False)
    """Why it ended early, as one sentence."""
    kind: ClassVar[Kind]

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._clients: dict[str, SiteClient] = {}
        self._thread = threading.Thread(target=self._in_thread, name="remora-online", daemon=True)

    @property
    def cancelled(self) -> bool:
        return self._stop.is_set()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def cancel(self) -> None:
        """Stop as soon as possible; the downloaded part is kept for the next time."""
        self._stop.set()

    def _in_thread(self) -> None:
        try:
            self._work()
        except (CancelledError, HashStopped):
            pass
        except _FAULTS as error:
            self.problem = str(error)
        except OSError as error:
            self.problem = f"a file cannot be read or written: {error.strerror or error}"
        except Exception as error:
            logger.exception("remora: a job online failed")
            self.problem = f"the job failed: {error!r:.200}"
        finally:
            self.running = False

    @abstractmethod
    def _work(self) -> None: ...

    def _client(self, site: Site) -> SiteClient:
        if site.key not in self._clients:
            self._clients[site.key] = SiteClient(site.access(), lambda: online(self.session.host), self._stop)
        return self._clients[site.key]

    def _keep(self, site: Site, file: CatalogFile, published: Published) -> str:
        """Keep what a site says of a file; return a sentence if its picture cannot be kept."""
        problem = ""
        keep(file, published)
        if published.picture and beside(file).picture is None:
            try:
                keep_picture(file, self._client(site).picture(published.picture))
            except (OnlineError, PictureError) as error:
                problem = f"there is no preview: {error}"
        self.session.catalog.reread(beside(file))
        return problem


@dataclass
class OfFiles(Run):
    """Asks sites for files, one after the other."""

    files: Sequence[CatalogFile]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.total = len(self.files)
        self.results: dict[str, tuple[Found, str]] = {}
        """Id of a file -> what became of it, and why."""

    def _work(self) -> None:
        silent = 0
        for number, file in enumerate(self.files):
            if self.cancelled:
                return
            if number % _AT_ONCE == 0:
                self._prepare(self.files[number : number + _AT_ONCE])
            try:
                self.results[file.id] = self._one(file)
                silent = 0
            except EndedError:
                raise
            except _FAULTS as error:
                self.results[file.id] = ("failed", str(error))
                silent = silent + 1 if isinstance(error, UnreachableError) else 0
                if silent == _MOST_SILENT:
                    raise
            except OSError as error:
                self.results[file.id] = ("failed", f"{file.path.name}: {error.strerror or error}")
            self.done += 1

    def _prepare(self, files: Sequence[CatalogFile]) -> None:
        """Ask for what the next files have in common."""

    @abstractmethod
    def _one(self, file: CatalogFile) -> tuple[Found, str]: ...


@dataclass
class LookUp(OfFiles):
    """Looks files up."""

    page: str = ""
    """The page of the files; if it is empty, the known page of each, or a search by its hash."""
    kind = "lookup"

    def _prepare(self, files: Sequence[CatalogFile]) -> None:
        """Ask for the files whose hash is known all at once."""
        known = {file: row.sha256 for file in files if (row := self.session.catalog.index.get(file)) is not None}
        for site in known_sites():
            hashes = [digest for file, digest in known.items() if digest and site in self._sites(file)[1]]
            if len(hashes) > 1:
                try:
                    site.prepare(self._client(site), hashes)
                except (EndedError, UnreachableError):
                    raise
                except OnlineError as error:
                    logger.info("remora: files are looked up one after the other: %s", error)

    def _sites(self, file: CatalogFile) -> tuple[str, Sequence[Site]]:
        """Return the page that a file is from, if it is known, and the sites to ask for the file."""
        page = self.page or line(mapping(read_own(file).get(ONLINE)).get("page"), 2000)
        return page, [site for site in known_sites() if site.has(page)] or known_sites()

    def _one(self, file: CatalogFile) -> tuple[Found, str]:
        page, sites = self._sites(file)
        hashes, stop = self.session.catalog.hashes, self._stop.is_set
        local = LocalFile(hashes.sha256(file, stop), lambda: hashes.short(file, stop), page)
        for site in sites:
            published = site.find(self._client(site), local)
            if published is not None:
                problem = self._keep(site, file, published)
                newer = published.newer
                return ("found" if newer is None or self._is_here(newer.page) else "newer"), problem
        return "unknown", ""

    def _is_here(self, page: str) -> bool:
        """Return whether a file is the version of a page: on some sites an older one has the same page."""
        every = (row.notes for row in self.session.catalog.index.rows())
        return any(notes is not None and notes.page == page != notes.newer for notes in every)


@dataclass
class Downloading(Run):
    """Downloads files of pages."""

    there: int = field(default=0, init=False)
    """Bytes of the file that is downloaded."""
    size: int = field(default=0, init=False)
    """All bytes of it; 0 if the site does not tell."""
    file: CatalogFile | None = field(default=None, init=False)
    """The one that was downloaded last."""
    note: str = field(default="", init=False)

    def _download(self, page: str, place_of: Callable[[str], Path]) -> None:
        """Download the file of a page.

        Args:
            page: its address.
            place_of: returns where the file is to be, by the name that the site gives it.
        """
        site = site_of(page)
        published = site.at(self._client(site), page)
        offered = published.file
        if offered is None:
            raise OnlineError("this page offers no safetensors file")
        if not offered.sha256:
            raise OnlineError("the site tells no SHA-256 of this file, so it cannot be checked; download it by hand")
        path = place_of(offered.name)
        self._refuse_known(path, offered)
        part = path.with_name(f".remora-{offered.sha256[:32]}.part")
        self._fetch(site, offered, part)
        with part.open("rb+") as stream:
            os.fsync(stream.fileno())
        Move(((part, path),)).carry_out()
        self._list(site, path, offered, published)

    def _refuse_known(self, path: Path, offered: SiteFile) -> None:
        catalog = self.session.catalog
        for row in catalog.index.rows():
            if row.sha256 == offered.sha256:
                raise OnlineError(f"you have this file already, as {catalog.names.name_of(row.file)}")
        if os.path.lexists(path):
            raise OnlineError(f"there is a file {path.name} already; choose another name")

    def _fetch(self, site: Site, offered: SiteFile, part: Path) -> None:
        self.there, self.size = 0, offered.size
        if part.exists() and hash_from(part, 0, self._stop.is_set) == offered.sha256:  # it was complete
            return
        free = shutil.disk_usage(part.parent).free
        if offered.size + _SPARE > free:
            raise OnlineError(f"the disk has {free >> 20:,} MB free, and the file has {offered.size >> 20:,} MB")
        most = offered.size or min(_MOST_BYTES, free - _SPARE)
        self._client(site).download(offered.address, part, most, self._progress)
        if hash_from(part, 0, self._stop.is_set) != offered.sha256:
            part.unlink()
            raise OnlineError("what was downloaded does not have the SHA-256 that the site tells; it was deleted")

    def _progress(self, there: int) -> None:
        self.there = there

    def _list(self, site: Site, path: Path, offered: SiteFile, published: Published) -> None:
        """List the new file, with what the site says of it."""
        catalog = self.session.catalog
        catalog.refresh([path.parent])
        found = catalog.all_found.get(path)
        if found is None:
            return
        self.file = found.file
        catalog.row(found.file)
        catalog.index.change(found.file, sha256=offered.sha256)
        try:
            self.note = self._keep(site, found.file, published)
        except (*_FAULTS, OSError) as error:  # the file is there
            self.note = str(error)


@dataclass
class Download(Downloading):
    """Downloads the file of a page into a folder."""

    page: str
    folder: str = ""
    name: str = ""
    """Of the file; empty for the site's."""
    kind = "download"

    def _work(self) -> None:
        self._download(self.page, lambda name: place(self.session, self.name or name, self.folder))


@dataclass
class DownloadNewer(OfFiles, Downloading):
    """Downloads the newer versions of files, each beside its file."""

    kind = "newer"

    def _one(self, file: CatalogFile) -> tuple[Found, str]:
        newer = (read_online(file) or {}).get("newer")
        if newer is None:
            return "unknown", ""
        self.file, self.note = None, ""
        self._download(newer["page"], lambda name: _free(file.path.parent, checked_name(name)))
        return "found", self.note


def _free(folder: Path, stem: str) -> Path:
    """Return a place in a folder that is free; a newer version often has the name of the older one."""
    names = islice(numbered(stem, "-", max(_LONGEST, len(stem))), _NUMBERED_AT_MOST)
    paths = (folder / f"{name}{READABLE}" for name in names)
    return next((path for path in paths if not os.path.lexists(path)), folder / f"{stem}{READABLE}")
