"""The LoRA files on disk: an index by name, alias and hash. A name finds indexed files only, never a path."""

from __future__ import annotations

import difflib
import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath, PureWindowsPath

from lib_lora import AdapterFile, LoraError

from .collection import CatalogFile, Facts, Found, Index, Progress, Row, Scanner

__all__ = ["Catalog", "CatalogError", "CatalogFile"]

logger = logging.getLogger(__name__)

_HASH = re.compile(r"[0-9a-fA-F]{8,64}")
_HASH_LENGTH = 12  # hex digits, as shown in "Lora hashes"
_HASH_OF_NOTHING = hashlib.sha256().hexdigest()[:_HASH_LENGTH]  # what ai-toolkit stores in every file
_CHUNK = 1 << 20  # bytes
_READ_AT_MOST = 4 << 30  # bytes, to find a file by the hash of all of it
_METADATA_AT_MOST = 32 << 20  # characters that are kept


class CatalogError(LoraError, LookupError):
    """A LoRA name that finds nothing, or too much.

    Attributes:
        name: as asked for.
        candidates: names that would do; similar ones where nothing was found.
        fits_several: there is such a file, and more than one.
    """

    def __init__(self, name: str, reason: str, candidates: Sequence[str] = (), *, fits_several: bool = False) -> None:
        super().__init__(f"LoRA {name!r} {reason}")
        self.name = name
        self.candidates = tuple(candidates)
        self.fits_several = fits_several


class Catalog:
    """Index of the adapter files below some folders; what is read from a file is kept until the file changes.

    Args:
        folders: asked whenever they are looked through.
        data_dir: where the index is kept, so that a later start need not read; None keeps it in memory alone.
    """

    def __init__(
        self, folders: Callable[[], Sequence[Path]], data_dir: Callable[[], Path | None] = lambda: None
    ) -> None:
        self._folders = folders
        self._data_dir = data_dir
        self._made = threading.Lock()
        self._opened: Scanner | None = None
        self._hasher: ThreadPoolExecutor | None = None
        self._metadata: dict[CatalogFile, Mapping[str, str]] = {}
        self._metadata_size = 0

    @property
    def files(self) -> tuple[CatalogFile, ...]:
        """Readable files, in the order of the folders and then by name."""
        return tuple(file for file in self.every if file.readable)

    @property
    def every(self) -> tuple[CatalogFile, ...]:
        """The same with the pickles, which are refused when they are asked for."""
        return tuple(found.file for found in self._found().values())

    @property
    def index(self) -> Index:
        """What is known of each file."""
        return self._scanner.index

    @property
    def progress(self) -> Progress:
        """How far reading them all is."""
        return self._scanner.progress

    def start(self) -> None:
        """Read all files in the background, and follow what happens in their folders."""
        self._scanner.start()

    def wait(self, seconds: float) -> bool:
        """Wait until all files there are have been read, but no longer than this; tell whether they have."""
        return self._scanner.wait(seconds)

    def close(self) -> None:
        """Stop that; what was read is kept."""
        with self._made:
            hasher, self._hasher = self._hasher, None
        if hasher is not None:
            hasher.shutdown(wait=True, cancel_futures=True)
        if self._opened is not None:
            self._opened.stop()
            self._opened.index.save()

    def somebody_looks(self) -> None:
        """Say that somebody looks at a list of the files, and wants to see changes soon."""
        self._scanner.somebody_looks()

    def refresh(self) -> None:
        """Look at the folders again."""
        self._scanner.look()

    def read_for(self, seconds: float) -> None:
        """Read what is not known yet, but for no longer than this."""
        until = time.monotonic() + seconds
        if self._scanner.found is None and (len(self.index) or self._scanner.comes(seconds) is None):
            return  # what is known from before is listed at once, and what the thread finds later
        for found in self._found().values():
            if time.monotonic() > until:
                return
            row = self.index.get(found.file)
            if row is None or not row.complete:
                self._scanner.read(found)

    def found(self, file: CatalogFile) -> Found:
        """Return what lies beside one of the files."""
        found = self._found().get(file.path)
        return found if found is not None and found.file == file else Found(file)

    def row(self, file: CatalogFile) -> Row:
        """Return all that is known of one of the files; what is not known is read."""
        row = self.index.get(file)
        if row is None or not row.complete:
            self._scanner.read(self.found(file))
            row = self.index.get(file)
            assert row is not None, "a file that was read has a row"
        return row

    def reread(self, found: Found) -> Row:
        """Read again what lies beside a file, after a change."""
        self._scanner.read(found)
        self.index.save()
        return self.row(found.file)

    def used(self, files: Collection[CatalogFile]) -> None:
        """Note that pictures are made with these."""
        now = time.time()
        for file in files:
            row = self.index.get(file)
            self.index.change(file, used=now, uses=1 if row is None else row.uses + 1)
        if files:
            self._scanner.ask()  # which saves it

    def with_id(self, wanted: str) -> CatalogFile:
        """Return the file with an id.

        Raises:
            CatalogError: there is none, or none any more.
        """
        self._found()
        row = self.index.with_id(wanted)
        if row is None:
            raise CatalogError(wanted, "is no file in the LoRA folders (any more); look at the list again")
        return row.file

    def find(self, name: str) -> CatalogFile:
        """Return the file meant by a name: by file name, then `sub/name`, then alias, then hash.

        Raises:
            CatalogError: the name leaves the folders, is unknown, or fits several files.
        """
        wanted = _inside(name)
        for candidates in self._lookups(wanted):
            match candidates:
                case []:
                    continue
                case [file]:
                    return file
                case _:
                    shown = [_distinct(file, candidates) for file in candidates]
                    reason = f"fits several files: {', '.join(shown)}; write one of these"
                    raise CatalogError(name, reason, shown, fits_several=True)
        names = sorted({known for file in self.files for known in (file.name, file.relative)})
        close = difflib.get_close_matches(wanted, names, n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else f"; {len(self.files)} LoRA files are known"
        raise CatalogError(name, f"is not in the LoRA folders{hint}", close)

    def find_anew(self, name: str) -> CatalogFile:
        """Return the file meant by a name as `find` does, also where it came or changed since the last look.

        Raises:
            CatalogError: as `find`.
        """
        try:
            file = self.find(name)
            if file.is_current():
                return file
        except CatalogError as error:
            if error.fits_several:
                raise
        self.refresh()
        return self.find(name)

    def names(self) -> list[str]:
        """Return a name for each readable file that `find` leads back to it: the shortest that is its own."""
        return [self.name_of(file) for file in self.files]

    def name_of(self, file: CatalogFile) -> str:
        """Return the name of one file as in `names`."""
        row = self.index.get(file)
        return file.relative if row is None else row.name

    def with_hash(self, digest: str) -> tuple[CatalogFile, ...]:
        """Return the readable files whose short hash begins like `digest`, 8 hex digits or more; none for any other.

        The hash of nothing, which some trainers write into every file, is nobody's. Files whose hash has to be made are
        read whole, so after some gigabytes it is over.
        """
        wanted = digest.lower()[:_HASH_LENGTH]
        if not _HASH.fullmatch(digest) or _HASH_OF_NOTHING.startswith(wanted):
            return ()
        known = {file for file in self.files if self.row(file).shorthash or self._facts(file).stored_hash}
        found = {file for file in self._worth_reading(known) if wanted == self._short(file)[: len(wanted)]}
        return tuple(file for file in self.files if file in found)

    def with_sha256(self, digest: str, likely: CatalogFile | None = None) -> CatalogFile | None:
        """Return a readable file whose SHA-256 begins like `digest`, 8 hex digits or more; None where none was found.

        Files whose hash is known are looked at first, then the likely one, then others by size. They must be read
        whole, so after some gigabytes it is over.
        """
        if not _HASH.fullmatch(digest):
            return None
        known = {file for file in self.files if self.row(file).sha256}
        for file in self._worth_reading(known, likely):
            try:
                if self.sha256(file).startswith(digest.lower()):
                    return file
            except OSError as error:  # it went since the folders were looked at
                logger.warning("remora: %s cannot be read: %s", file.path, error.strerror)
        return None

    def metadata(self, file: CatalogFile) -> Mapping[str, str]:
        """Return the file's metadata; empty, with a warning, where its header cannot be read."""
        if (known := self._metadata.get(file)) is not None:
            return known
        try:
            found = AdapterFile.open(file.path).metadata
        except LoraError as error:
            logger.warning("remora: %s", error)
            return {}
        self._metadata_size += sum(map(len, found.values()))
        if self._metadata_size <= _METADATA_AT_MOST:  # those that come later are read again each time
            self._metadata[file] = found
        return found

    def problem(self, file: CatalogFile) -> str:
        """Return why the file cannot be used, as one sentence; nothing where it can."""
        return self._facts(file).problem

    def alias(self, file: CatalogFile) -> str:
        """Return the name its trainer gave the file (`ss_output_name`), or the file name."""
        return self._facts(file).alias or file.name

    def shorthash(self, file: CatalogFile) -> str:
        """Return 12 hex digits of the SHA-256 of everything after the header, as "Lora hashes" has it.

        Raises:
            OSError: the file cannot be read.
        """
        known = self.row(file).shorthash
        if not known:
            known = _hash_from(file.path, _end_of_header(file.path))[:_HASH_LENGTH]
            self.index.change(file, shorthash=known)
        return known

    def known_hash(self, file: CatalogFile) -> str:
        """Return what `shorthash` does, as its trainer wrote it down where that is credible.

        Raises:
            OSError: the file cannot be read.
        """
        return self._facts(file).stored_hash or self.shorthash(file)

    def hash_later(self, file: CatalogFile) -> None:
        """Have the hash of a file made beside other work, one file at a time, and kept."""
        with self._made:
            if self._hasher is None:
                self._hasher = ThreadPoolExecutor(1, "remora-hash")
            self._hasher.submit(self._short, file)

    def sha256(self, file: CatalogFile) -> str:
        """Return the SHA-256 of the whole file, in hex digits.

        Raises:
            OSError: the file cannot be read.
        """
        known = self.row(file).sha256
        if not known:
            known = _hash_from(file.path, 0)
            self.index.change(file, sha256=known)
        return known

    @property
    def _scanner(self) -> Scanner:
        with self._made:
            if self._opened is None:
                self._opened = Scanner(self._folders, Index(self._data_dir()))
            return self._opened

    def _found(self) -> Mapping[Path, Found]:
        found = self._scanner.found
        return self._scanner.look() if found is None else found

    def _facts(self, file: CatalogFile) -> Facts:
        facts = self.row(file).facts
        assert facts is not None, "a row that was read has facts"
        return facts

    def _worth_reading(
        self, known: Collection[CatalogFile], likely: CatalogFile | None = None
    ) -> Iterator[CatalogFile]:
        """Yield files to compare by hash: the known ones, the likely one, then others by size, up to some gigabytes."""
        left = _READ_AT_MOST
        for file in sorted(self.files, key=lambda one: (one not in known, one != likely, one.size)):
            if file not in known:
                left -= file.size
                if left < 0 and file != likely:
                    return
            yield file

    def _short(self, file: CatalogFile) -> str:
        try:
            return self.known_hash(file)
        except OSError as error:  # it went since the folders were looked at
            logger.warning("remora: %s cannot be read: %s", file.path, error.strerror)
            return ""

    def _lookups(self, wanted: str) -> Iterator[list[CatalogFile]]:
        relative = _preferred(
            file for file in self.every if wanted in (file.relative, file.relative + file.path.suffix)
        )
        by_name = _preferred(file for file in self.every if wanted in (file.name, file.path.name))
        # a file at the top has no longer name than its file name, so there that one decides
        yield relative if len(relative) == 1 else by_name
        yield relative
        yield [file for file in self.files if self.alias(file) == wanted]
        if _HASH.fullmatch(wanted):
            yield list(self.with_hash(wanted))


def _inside(name: str) -> str:
    """Normalise a name to `sub/name`; refuse one that would lead out of the folders."""
    wanted = name.strip().replace("\\", "/")
    if PurePosixPath(wanted).is_absolute() or PureWindowsPath(wanted).drive or ".." in wanted.split("/"):
        raise CatalogError(name, "would leave the LoRA folders; write a name as the list of LoRAs shows it")
    return wanted


def _preferred(files: Iterator[CatalogFile]) -> list[CatalogFile]:
    """Leave out pickles where the same name is there as safetensors."""
    found = list(files)
    return [file for file in found if file.readable] or found


def _distinct(file: CatalogFile, among: Sequence[CatalogFile]) -> str:
    same = [other for other in among if other.relative == file.relative]
    return file.relative if len(same) == 1 else str(file.path)


def _end_of_header(path: Path) -> int:
    with path.open("rb") as stream:
        return 8 + int.from_bytes(stream.read(8), "little")


def _hash_from(path: Path, start: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        stream.seek(start)
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
