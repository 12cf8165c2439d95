"""The LoRA files on disk, and what is known of each."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from lib_lora import AdapterFile, LoraError

from .checks import Checks
from .copies import CopyFinder
from .facts import Facts
from .hashes import Hashes
from .index import Index, Row
from .names import CatalogError, Names
from .scan import Progress, Scanner
from .walk import CatalogFile, Choice, Found, is_settled, wait_until_settled

__all__ = ["Catalog", "CatalogError", "CatalogFile", "Lookup"]

logger = logging.getLogger(__name__)

_SUGGESTED_AT_MOST = 10  # unknown names of a request that are compared
_FEW = 50  # files that a list reads itself
_METADATA_AT_MOST = 32 << 20  # characters that are kept


class Catalog:
    """An index of the LoRA files below some folders; a file's data are kept until it changes.

    Args:
        folders: returns the folders; called at every scan.
        data_dir: returns the folder of the index, which saves a later start from reading; None keeps it in memory.
        choice: returns which of several files of one name the host's own LoRA takes; None if it tells none.
        busy: tells whether a picture is made, during which work for later rests.
    """

    def __init__(
        self,
        folders: Callable[[], Sequence[Path]],
        data_dir: Callable[[], Path | None] = lambda: None,
        choice: Choice = lambda paths: None,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._folders = folders
        self._choice = choice
        self._data_dir = data_dir
        self._made = threading.Lock()
        self._opened: Scanner | None = None
        self.hashes = Hashes(self)
        self.checks = Checks()
        self.copies = CopyFinder(self, busy)
        self.names = Names(self, self.hashes, choice)
        self._metadata: dict[CatalogFile, Mapping[str, str]] = {}
        self._metadata_size = 0

    @property
    def files(self) -> tuple[CatalogFile, ...]:
        """Return the readable files, in the order of the folders, then by name."""
        return tuple(file for file in self.every if file.readable)

    @property
    def every(self) -> tuple[CatalogFile, ...]:
        """Return all files; pickles are included, and refused when a tag names them."""
        return tuple(found.file for found in self.all_found.values())

    @property
    def index(self) -> Index:
        """Return the index."""
        return self._scanner.index

    @property
    def problem_of_list(self) -> str:
        """Return one sentence if the list is not complete, or if nothing can be stored; empty otherwise."""
        return self._scanner.problem or self.index.problem

    @property
    def progress(self) -> Progress:
        """Return the progress of the scan."""
        return self._scanner.progress

    @property
    def trashes(self) -> Sequence[Path]:
        """Return the folders of deleted files that the latest scan came upon."""
        return self._scanner.trashes

    def start(self) -> None:
        """Read all files in the background, and watch the folders."""
        self._scanner.start()
        self.copies.resume()

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` until all files are read; tell whether they are."""
        return self._scanner.wait(seconds)

    def close(self) -> None:
        """Stop the background threads; data already read are kept."""
        self.copies.close()
        self.checks.close()
        self.hashes.close()
        if self._opened is not None:
            self._opened.stop()
            self._opened.index.save()

    def scan_often(self) -> None:
        """Scan the folders often for a while: a client shows the files."""
        self._scanner.scan_often()

    def refresh(self, places: Collection[Path] | None = None) -> None:
        """Scan the folders again, or only some of them, in which files came or went; not the ones inside these."""
        self._scanner.scan(places)

    def read_for(self, seconds: float) -> None:
        """Let the thread read unread files for at most `seconds`, then read the rest, if it is small.

        Known files are not waited for. Many unread files are left to the thread: two readers of the first file would
        wait for each other's imports.
        """
        if self._scanner.found is None and len(self.index):
            return
        self._scanner.hurry(seconds)
        found = (self._scanner.found or {}).values()
        unread = [one for one in found if (row := self.index.get(one.file)) is None or not row.complete]
        for one in unread if len(unread) <= _FEW else ():
            self._scanner.read(one)

    def found(self, file: CatalogFile) -> Found:
        """Return the files beside one of the files."""
        found = self.all_found.get(file.path)
        return found if found is not None and found.file == file else Found(file)

    def row(self, file: CatalogFile) -> Row:
        """Return the row of one of the files; unread data are read. A file that is gone raises CatalogError."""
        row = self.index.get(file)
        if row is None or not row.complete:
            self._scanner.read(self.found(file))
            row = self.index.get(file)
            if row is None:
                raise CatalogError(file.path.stem, "is gone: its file was removed")
        return row

    def reread(self, found: Found, *more: Found) -> Row:
        """Read the files beside some files again, after a change; return the row of the first."""
        for one in (found, *more):
            self._scanner.read(one)
        self.index.save()
        return self.row(found.file)

    def used(self, files: Collection[CatalogFile]) -> None:
        """Record that pictures are made with these files."""
        now = time.time()
        for file in files:
            self.index.use(file, now)
        if files:
            self._scanner.ask()  # which saves it

    def with_id(self, wanted: str) -> CatalogFile:
        """Return the file with an id.

        Raises:
            CatalogError: there is none, or no longer.
        """
        if self._scanner.found is None:
            self.refresh()
        row = self.index.with_id(wanted)
        if row is None:
            raise CatalogError(wanted, "is not a file in the LoRA folders any more; reload the list")
        return row.file

    def find(self, name: str, *, suggest: bool = True) -> CatalogFile:
        """Return the file that a name means, see `Names.find`.

        Raises:
            CatalogError: the name leaves the folders, is unknown, or matches several files.
        """
        return self.names.find(name, suggest=suggest)

    def named(self, name: str) -> CatalogFile | None:
        """Return the file that a name means; None if it means none, or several."""
        try:
            return self.find(name, suggest=False)
        except CatalogError:
            return None

    def metadata(self, file: CatalogFile) -> Mapping[str, str]:
        """Return the file's metadata; empty, with a warning, if its header cannot be read."""
        if (known := self._metadata.get(file)) is not None:
            return known
        try:
            found = AdapterFile.open(file.path).metadata
        except LoraError as error:
            logger.warning("remora: %s", error)
            return {}
        self._metadata_size += sum(map(len, found.values()))
        if self._metadata_size <= _METADATA_AT_MOST:  # the rest is read again each time
            self._metadata[file] = found
        return found

    def problem(self, file: CatalogFile) -> str:
        """Return why the file cannot be used, as one sentence, or an empty text."""
        return self._facts(file).problem

    def alias(self, file: CatalogFile) -> str:
        """Return the name its trainer gave the file (`ss_output_name`), or the file name."""
        return self._facts(file).alias or file.name

    @property
    def _scanner(self) -> Scanner:
        with self._made:
            if self._opened is None:
                self._opened = Scanner(self._folders, Index(self._data_dir()), self._choice)
            return self._opened

    @property
    def all_found(self) -> Mapping[Path, Found]:
        """Return the files with what is beside them, by path; another object after each scan."""
        found = self._scanner.found
        return self._scanner.scan() if found is None else found

    def _facts(self, file: CatalogFile) -> Facts:
        facts = self.row(file).facts
        assert facts is not None, "a row that was read has facts"
        return facts


class Lookup:
    """Finds files by name for one request, with at most one scan of the folders.

    A scan takes seconds if there are many files, and a request may have many unknown names.

    Args:
        catalog: the files.
        waits: wait for a file that came or changed until it is whole: a training saves its latest state under one name.
    """

    def __init__(self, catalog: Catalog, *, waits: bool = False) -> None:
        self._catalog = catalog
        self._waits = waits
        self._looked = False
        self._compared = 0
        """How many unknown names were compared with all names."""

    def find(self, name: str) -> CatalogFile:
        """Return the file that a name means as `Catalog.find` does, including files that came or changed.

        Raises:
            CatalogError: as `Catalog.find`, or a program goes on to write the file.
        """
        if self._looked:
            return self._find_whole(name)
        try:
            file = self._catalog.find(name, suggest=False)
            if file.is_current():
                return file
        except CatalogError as error:
            if error.fits_several:
                raise
        self._looked = True
        self._catalog.refresh()
        return self._find_whole(name)

    def _find_whole(self, name: str) -> CatalogFile:
        """Return the file that a name means, once no program writes into it."""
        file = self._find_now(name)
        if not self._waits or is_settled(file):
            return file
        if not wait_until_settled(file):
            raise CatalogError(name, "is being written by another program; use it when that is done")
        self._catalog.refresh()
        return self._find_now(name)

    def _find_now(self, name: str) -> CatalogFile:
        try:
            return self._catalog.find(name, suggest=self._compared < _SUGGESTED_AT_MOST)
        except CatalogError:
            self._compared += 1
            raise
