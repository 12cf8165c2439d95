"""The LoRA files on disk, indexed by name, alias and hash. A name finds indexed files only, never a path."""

from __future__ import annotations

import difflib
import errno
import hashlib
import logging
import os
import re
import threading
import time
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath, PureWindowsPath

from lib_lora import AdapterFile, LoraError

from . import CatalogFile, Choice, Facts, Found, Index, Progress, Row, Scanner

__all__ = ["Catalog", "CatalogError", "CatalogFile", "Lookup"]

logger = logging.getLogger(__name__)

_HASH = re.compile(r"[0-9a-fA-F]{8,64}")
_HASH_LENGTH = 12  # hex digits, as shown in "Lora hashes"
_SHORTEST_HASH = 8
_HASH_OF_NOTHING = hashlib.sha256().hexdigest()[:_HASH_LENGTH]  # what ai-toolkit stores in every file
_CHUNK = 1 << 20  # bytes
_READ_AT_MOST = 4 << 30  # bytes, to find a file by the hash of all of it
_COMPARED_AT_MOST = 2000  # names to compare for a suggestion: 25 microseconds each
_TRIED_AGAIN = 300.0  # seconds after which a file that could not be read whole is tried again
_FEW = 50  # files that a list reads itself
_METADATA_AT_MOST = 32 << 20  # characters that are kept


class CatalogError(LoraError, LookupError):
    """A LoRA name matches no file, or several.

    Attributes:
        name: as in the tag.
        reason: what is wrong, without the name.
        candidates: names that match; similar names if none does.
        fits_several: more than one file matches.
    """

    def __init__(self, name: str, reason: str, candidates: Sequence[str] = (), *, fits_several: bool = False) -> None:
        super().__init__(f"LoRA {name!r:.120} {reason}")
        self.name, self.reason = name, reason
        self.candidates = tuple(candidates)
        self.fits_several = fits_several


class Catalog:
    """An index of the LoRA files below some folders; a file's data are kept until it changes.

    Args:
        folders: returns the folders; called at every scan.
        data_dir: returns the folder of the index, which saves a later start from reading; None keeps it in memory.
        choice: returns which of several files of one name the host's own LoRA takes; None if it tells none.
    """

    def __init__(
        self,
        folders: Callable[[], Sequence[Path]],
        data_dir: Callable[[], Path | None] = lambda: None,
        choice: Choice = lambda paths: None,
    ) -> None:
        self._folders = folders
        self._choice = choice
        self._data_dir = data_dir
        self._made = threading.Lock()
        self._opened: Scanner | None = None
        self._hasher: ThreadPoolExecutor | None = None
        self._to_hash: set[CatalogFile] = set()
        """Files to hash, or being hashed."""
        self._unreadable: dict[CatalogFile, float] = {}
        """Files that could not be read for their hash, and the time of the attempt."""
        self._names: _Names | None = None
        self._metadata: dict[CatalogFile, Mapping[str, str]] = {}
        self._metadata_size = 0

    @property
    def files(self) -> tuple[CatalogFile, ...]:
        """Return the readable files, in the order of the folders, then by name."""
        return tuple(file for file in self.every if file.readable)

    @property
    def every(self) -> tuple[CatalogFile, ...]:
        """Return all files; pickles are included, and refused when a tag names them."""
        return tuple(found.file for found in self._found().values())

    @property
    def index(self) -> Index:
        """Return the index."""
        return self._scanner.index

    @property
    def progress(self) -> Progress:
        """Return the progress of the scan."""
        return self._scanner.progress

    def start(self) -> None:
        """Read all files in the background, and watch the folders."""
        self._scanner.start()

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` until all files are read; tell whether they are."""
        return self._scanner.wait(seconds)

    def close(self) -> None:
        """Stop the background thread; data already read are kept."""
        with self._made:
            hasher, self._hasher = self._hasher, None
            self._to_hash.clear()
        if hasher is not None:
            hasher.shutdown(wait=True, cancel_futures=True)
        if self._opened is not None:
            self._opened.stop()
            self._opened.index.save()

    def scan_often(self) -> None:
        """Scan the folders often for a while: a client shows the files."""
        self._scanner.scan_often()

    def refresh(self) -> None:
        """Scan the folders again."""
        self._scanner.scan()

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
        found = self._found().get(file.path)
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

    def reread(self, found: Found) -> Row:
        """Read the files beside a file again, after a change."""
        self._scanner.read(found)
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
        self._found()
        row = self.index.with_id(wanted)
        if row is None:
            raise CatalogError(wanted, "is not a file in the LoRA folders any more; reload the list")
        return row.file

    def find(self, name: str, *, suggest: bool = True) -> CatalogFile:
        """Return the file that a name means: by absolute path, file name, `sub/name`, alias, known hash.

        If none of these is exact, letters may differ in case and in how accents are encoded, and `_` may be a dot, as
        in SD.Next. Of several files of one name, it is the one that the host's own LoRA takes, or any if all have the
        same bytes. Otherwise, no file is read to hash it; unknown hashes are computed in the background.

        Args:
            name: the name.
            suggest: compare an unknown name with all names, which takes a while.

        Raises:
            CatalogError: the name leaves the folders, is unknown, or matches several files.
        """
        return self._find(self._names_now(), name, suggest=suggest)[0]

    def _find(self, names: _Names, name: str, *, suggest: bool) -> tuple[CatalogFile, str]:
        """Return the file that a name means, and one sentence if several files fit it; see `find`."""
        wanted = name.strip().replace("\\", "/")
        if candidates := names.at(wanted):
            return self._one_of(name, candidates)
        if not names.are_of_files(wanted):  # a name may begin as a drive does: `a: b`
            _check_inside(name, wanted)
        for candidates in self._lookups(names, wanted):
            if candidates:
                return self._one_of(name, candidates)
        if candidates := names.folded(wanted):
            return self._one_of(name, candidates, exact=False)
        if _HASH.fullmatch(wanted) and (unknown := self._hash_unknown(names)):
            reason = (
                f"is not in the LoRA folders; if it is a hash, try again later: {unknown} hashes are being computed"
            )
            raise CatalogError(name, reason)
        close = self._similar(names, wanted) if suggest else []
        hint = f"; did you mean {' or '.join(close)}?" if close else f"; {names.readable} LoRA files are known"
        raise CatalogError(name, f"is not in the LoRA folders{hint}", close)

    def note_on(self, name: str) -> str:
        """Return one sentence if several files fit a name that finds one; empty otherwise."""
        try:
            return self._find(self._names_now(), name, suggest=False)[1]
        except CatalogError:
            return ""

    def _one_of(self, name: str, candidates: Sequence[CatalogFile], *, exact: bool = True) -> tuple[CatalogFile, str]:
        """Return the file that is meant of those that fit, and one sentence if it is one of several.

        Raises:
            CatalogError: they differ, and the host tells none.
        """
        if len(candidates) == 1:
            return candidates[0], ""
        chosen = self._choice([file.path for file in candidates]) if exact else None
        taken = next((file for file in candidates if file.path == chosen), None)
        shown = [_distinct(file, candidates) for file in candidates]
        if self._are_alike(candidates):
            return taken or candidates[0], ""
        if taken is None:
            reason = f"fits several files: {', '.join(shown)}; write one of these"
            raise CatalogError(name, reason, shown, fits_several=True)
        return taken, (
            f"{name} fits several files, {', '.join(shown)}: {_distinct(taken, candidates)} is applied, which the web "
            "UI's own LoRA takes; to choose, write the folder, too"
        )

    def _are_alike(self, files: Sequence[CatalogFile]) -> bool:
        """Tell whether files have the same bytes; files of one size are read whole, once."""
        if not all(file.readable for file in files) or len({file.size for file in files}) > 1:
            return False
        hashes = {self._tried(self.sha256, file) for file in files}
        return len(hashes) == 1 and "" not in hashes

    def _similar(self, names: _Names, wanted: str) -> list[str]:
        """Return up to three names for an unknown one: in other folders, then similar ones."""
        own = wanted.rpartition("/")[2]
        files = names.folded(own) if own != wanted else []
        if len(names.written) < _COMPARED_AT_MOST:
            written = {_fold(one) for one in names.written}
            for sought in dict.fromkeys((wanted, own)):
                for one in difflib.get_close_matches(_fold(sought)[:200], written, n=3):
                    files += names.folded(one)
        return list(dict.fromkeys(map(self.name_of, files)))[:3]

    def find_again(self, name: str) -> CatalogFile:
        """Return the file that a name means as `find` does, after another scan if needed.

        For several names, use a `Lookup`.

        Raises:
            CatalogError: as `find`.
        """
        return Lookup(self).find(name)

    def names(self) -> list[str]:
        """Return for each readable file the shortest unique name that `find` finds it by."""
        return [self.name_of(file) for file in self.files]

    def name_of(self, file: CatalogFile) -> str:
        """Return the name of one file as in `names`."""
        row = self.index.get(file)
        return file.relative if row is None else row.name

    def with_hash(self, digest: str) -> tuple[CatalogFile, ...]:
        """Return the readable files whose short hash starts with `digest`, of at least 8 hex digits.

        The hash of empty content, which some trainers write into every file, matches none. Unhashed files are read
        whole, up to some gigabytes.
        """
        wanted = digest.lower()[:_HASH_LENGTH]
        if not _HASH.fullmatch(digest) or _HASH_OF_NOTHING.startswith(wanted):
            return ()
        names = self._names_now()
        self._follow(names)
        unknown = [file for file in names.unhashed() if not self._is_unreadable(file)]
        read = [file for file in _worth_reading(unknown) if self._tried(self.known_hash, file).startswith(wanted)]
        return tuple(names.in_order([*names.of_hash(wanted), *read]))

    def with_sha256(self, digest: str, likely: CatalogFile | None = None) -> CatalogFile | None:
        """Return a readable file whose SHA-256 starts with `digest`, of at least 8 hex digits, or None.

        Files with a known hash come first, then the likely one, then others by size. They are read whole, up to some
        gigabytes.
        """
        if not _HASH.fullmatch(digest):
            return None
        known: list[CatalogFile] = []
        unknown: list[CatalogFile] = []
        for file in self.files:
            (known if self.row(file).sha256 else unknown).append(file)
        known.sort(key=lambda one: (one != likely, one.size))
        unknown = [file for file in unknown if not self._is_unreadable(file)]
        for file in (*known, *_worth_reading(unknown, likely)):
            if self._tried(self.sha256, file).startswith(digest.lower()):
                return file
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
        """Return the hash that the trainer stored if it is credible, else `shorthash`.

        Raises:
            OSError: the file cannot be read.
        """
        return self._facts(file).stored_hash or self.shorthash(file)

    def hash_later(self, file: CatalogFile) -> None:
        """Hash a file in the background, one file at a time."""
        with self._made:
            if file in self._to_hash or self._is_unreadable(file):
                return
            if self._hasher is None:
                self._hasher = ThreadPoolExecutor(1, "remora-hash")
            self._to_hash.add(file)
            self._hasher.submit(self._hash, file)

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
                self._opened = Scanner(self._folders, Index(self._data_dir()), self._choice)
            return self._opened

    def _found(self) -> Mapping[Path, Found]:
        found = self._scanner.found
        return self._scanner.scan() if found is None else found

    def _facts(self, file: CatalogFile) -> Facts:
        facts = self.row(file).facts
        assert facts is not None, "a row that was read has facts"
        return facts

    def _names_now(self) -> _Names:
        """Return the names of the files of the latest scan."""
        found, names = self._found(), self._names
        if names is None or names.found is not found:
            names = self._names = _Names(found)
        return names

    def _lookups(self, names: _Names, wanted: str) -> Iterator[list[CatalogFile]]:
        """Yield the files that a name may mean, in order of priority."""
        yield from names.of_files(wanted, self._choice)
        self._follow(names)
        yield from names.of_headers(wanted)

    def _follow(self, names: _Names) -> None:
        """Add the data of all headers to the names."""
        if not names.all_read:  # once for each use
            for file in self.files:
                self.row(file)
            names.all_read = True
        names.follow(self.index)

    def _hash_unknown(self, names: _Names) -> int:
        """Hash unhashed files in the background, up to some gigabytes; return their number."""
        unknown = list(_worth_reading(file for file in names.unhashed() if not self._is_unreadable(file)))
        for file in unknown:
            self.hash_later(file)
        return len(unknown)

    def _hash(self, file: CatalogFile) -> None:
        try:
            self._tried(self.known_hash, file)
        finally:
            with self._made:
                self._to_hash.discard(file)

    def _tried(self, hash_of: Callable[[CatalogFile], str], file: CatalogFile) -> str:
        """Return a hash of a file, or an empty text if it cannot be read, which is logged once."""
        try:
            found = hash_of(file)
        except (OSError, ValueError, OverflowError) as error:
            if file not in self._unreadable:
                why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
                logger.warning("remora: no hash can be made of %s: %s", file.path, why)
            self._unreadable[file] = time.monotonic()
            return ""
        self._unreadable.pop(file, None)
        return found

    def _is_unreadable(self, file: CatalogFile) -> bool:
        failed = self._unreadable.get(file)
        return failed is not None and time.monotonic() - failed < _TRIED_AGAIN


class Lookup:
    """Finds files by name for one request, with at most one scan of the folders.

    A scan takes seconds if there are many files, and a request may have many unknown names.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._looked = False

    def find(self, name: str) -> CatalogFile:
        """Return the file that a name means as `Catalog.find` does, including files that came or changed.

        Raises:
            CatalogError: as `Catalog.find`.
        """
        if self._looked:
            return self._catalog.find(name)
        try:
            file = self._catalog.find(name, suggest=False)
            if file.is_current():
                return file
        except CatalogError as error:
            if error.fits_several:
                raise
        self._looked = True
        self._catalog.refresh()
        return self._catalog.find(name)


class _Names:
    """The files of one scan by name, and by the data of their headers."""

    def __init__(self, found: Mapping[Path, Found]) -> None:
        self.found = found
        self.all_read = False
        files = [one.file for one in found.values()]
        self.readable = sum(file.readable for file in files)
        self.written = sorted({name for file in files if file.readable for name in (file.name, file.relative)})
        """Names as in prompts."""
        self._order = {path: position for position, path in enumerate(found)}
        self._relative = _table((file, {file.relative, file.relative + file.path.suffix}) for file in files)
        self._own = _table((file, {file.name, file.path.name}) for file in files)
        self._folded: dict[Callable[[str], str], dict[str, list[CatalogFile]]] = {}
        """For each way to compare names, the files by their names; made when a name is not found otherwise."""
        self._paths: dict[str, list[CatalogFile]] | None = None
        """The files by their absolute paths; made when a name is one."""
        self._lock = threading.Lock()
        self._followed = 0
        self._told: dict[Path, tuple[str, str]] = {}
        """Known alias and hash of each file."""
        self._alias: defaultdict[str, set[Path]] = defaultdict(set)
        self._hash: defaultdict[str, set[Path]] = defaultdict(set)
        """By the first digits."""
        self._unhashed: set[Path] = set()

    def of_files(self, wanted: str, choice: Choice) -> tuple[list[CatalogFile], ...]:
        """Return the files with this name or path, by priority."""
        relative, own = _preferred(self._relative.get(wanted, ())), _preferred(self._own.get(wanted, ()))
        # the only name of a file at the top is its file name, so it has priority, unless the host takes another one
        is_shared = len(own) > 1 and own[0].name == wanted and choice([file.path for file in own]) is not None
        return (own, relative) if is_shared or len(relative) != 1 else (relative,)

    def at(self, wanted: str) -> list[CatalogFile]:
        """Return the files at an absolute path, whose suffix may be missing; no other file is looked at."""
        if not wanted.startswith("/"):
            return []
        if self._paths is None:
            paths = [(one.file, one.file.path.as_posix()) for one in self.found.values()]
            self._paths = _table((file, {path, path.removesuffix(file.path.suffix)}) for file, path in paths)
        return _preferred(self._paths.get(wanted, ()))

    def are_of_files(self, wanted: str) -> bool:
        """Tell whether a name is exactly a file's name or path."""
        return wanted in self._own or wanted in self._relative

    def folded(self, wanted: str) -> list[CatalogFile]:
        """Return the files with this name or path in another spelling, by how much it differs."""
        for fold in _FOLDS:
            table = self._folded.get(fold)
            if table is None:  # whole before it is stored: other threads find names meanwhile
                files = [one.file for one in self.found.values() if one.file.readable]
                table = _table((one, set(map(fold, (one.name, one.path.name, one.relative)))) for one in files)
                self._folded[fold] = table
            if files := list(table.get(fold(wanted), ())):
                return files
        return []

    def of_headers(self, wanted: str) -> tuple[list[CatalogFile], ...]:
        """Return the files with this alias, and files whose known hash starts with it."""
        digest = wanted.lower()[:_HASH_LENGTH]
        is_hash = _HASH.fullmatch(wanted) and not _HASH_OF_NOTHING.startswith(digest)
        with self._lock:
            aliased = self._readable(self._alias.get(wanted, set()))
        return (aliased, self.of_hash(digest) if is_hash else [])

    def of_hash(self, digest: str) -> list[CatalogFile]:
        """Return the files whose known hash starts with 8 to 12 hex digits."""
        with self._lock:
            paths = self._hash.get(digest[:_SHORTEST_HASH], set())
            return self._readable([path for path in paths if self._told[path][1].startswith(digest)])

    def unhashed(self) -> list[CatalogFile]:
        """Return the files without a known hash."""
        with self._lock:
            return self._readable(self._unhashed)

    def in_order(self, files: Iterable[CatalogFile]) -> list[CatalogFile]:
        """Return files in the order of the scan, each once."""
        return self._readable({file.path for file in files})

    def follow(self, index: Index) -> None:
        """Add the data that became known since the last call."""
        with self._lock:
            since, self._followed = self._followed, index.revision
            if since != self._followed:
                for row in index.since(since)[0]:
                    self._take(row)

    def _take(self, row: Row) -> None:
        path, facts = row.file.path, row.facts
        told = ("", "") if facts is None else (facts.alias, facts.stored_hash or row.shorthash)
        former = self._told.get(path, ("", ""))
        self._told[path] = told
        (self._unhashed.discard if told[1] else self._unhashed.add)(path)
        for table, old, new in (
            (self._alias, former[0], told[0]),
            (self._hash, former[1][:_SHORTEST_HASH], told[1][:_SHORTEST_HASH]),
        ):
            table[old].discard(path)
            if new:
                table[new].add(path)

    def _readable(self, paths: Collection[Path]) -> list[CatalogFile]:
        present = sorted((path for path in paths if path in self._order), key=self._order.__getitem__)
        return [file for path in present if (file := self.found[path].file).readable]


def _worth_reading(files: Iterable[CatalogFile], likely: CatalogFile | None = None) -> Iterator[CatalogFile]:
    """Yield files to hash: the likely one, then others by size, up to some gigabytes."""
    left = _READ_AT_MOST
    for file in sorted(files, key=lambda one: (one != likely, one.size)):
        left -= file.size
        if left < 0 and file != likely:
            return
        yield file


def _table(named: Iterable[tuple[CatalogFile, Collection[str]]]) -> dict[str, list[CatalogFile]]:
    """Return the files by each of their names."""
    table: dict[str, list[CatalogFile]] = {}
    for file, names in named:
        for name in names:
            table.setdefault(name, []).append(file)
    return table


def _check_inside(name: str, wanted: str) -> None:
    """Reject a name that leaves the folders."""
    if PurePosixPath(wanted).is_absolute() or PureWindowsPath(wanted).drive or ".." in wanted.split("/"):
        raise CatalogError(name, "is outside the LoRA folders; write a name from the list of LoRA")


def _same_text(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _fold(name: str) -> str:
    return _same_text(_same_text(name).casefold())


def _as_sdnext(name: str) -> str:
    return _fold(name).replace(".", "_")


_FOLDS = (_same_text, _fold, _as_sdnext)
"""Ways to compare names: accents in either encoding, any case, and SD.Next's `_` for a dot."""


def _preferred(files: Sequence[CatalogFile]) -> list[CatalogFile]:
    """Leave out pickles whose name also exists as safetensors."""
    return [file for file in files if file.readable] or list(files)


def _distinct(file: CatalogFile, among: Sequence[CatalogFile]) -> str:
    same = [other for other in among if other.relative == file.relative]
    return file.relative if len(same) == 1 else file.relative + file.path.suffix


def _end_of_header(path: Path) -> int:
    """Return the offset of a file's tensors.

    Raises:
        OSError: the file cannot be read, or nothing follows its header.
    """
    with path.open("rb") as stream:
        end = 8 + int.from_bytes(stream.read(8), "little")
        if end > os.fstat(stream.fileno()).st_size:
            raise OSError(errno.EINVAL, "it is shorter than its header says that the header is", str(path))
    return end


def _hash_from(path: Path, start: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        stream.seek(start)
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
