"""The LoRA files on disk: an index by name, alias and hash. A name finds indexed files only, never a path."""

from __future__ import annotations

import difflib
import errno
import hashlib
import logging
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath, PureWindowsPath

from lib_lora import AdapterFile, LoraError

from . import CatalogFile, Facts, Found, Index, Progress, Row, Scanner

__all__ = ["Catalog", "CatalogError", "CatalogFile", "Lookup"]

logger = logging.getLogger(__name__)

_HASH = re.compile(r"[0-9a-fA-F]{8,64}")
_HASH_LENGTH = 12  # hex digits, as shown in "Lora hashes"
_SHORTEST_HASH = 8
_HASH_OF_NOTHING = hashlib.sha256().hexdigest()[:_HASH_LENGTH]  # what ai-toolkit stores in every file
_CHUNK = 1 << 20  # bytes
_READ_AT_MOST = 4 << 30  # bytes, to find a file by the hash of all of it
_COMPARED_AT_MOST = 2000  # names, to suggest one that is like another: it takes 25 microseconds for each
_TRIED_AGAIN = 300.0  # seconds after which a file that could not be read whole is tried again
_METADATA_AT_MOST = 32 << 20  # characters that are kept


class CatalogError(LoraError, LookupError):
    """A LoRA name that finds nothing, or too much.

    Attributes:
        name: as asked for.
        candidates: names that would do; similar ones where nothing was found.
        fits_several: there is such a file, and more than one.
    """

    def __init__(self, name: str, reason: str, candidates: Sequence[str] = (), *, fits_several: bool = False) -> None:
        super().__init__(f"LoRA {name!r:.120} {reason}")
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
        self._to_hash: set[CatalogFile] = set()
        """Files whose hash is being made, or is to be."""
        self._unreadable: dict[CatalogFile, float] = {}
        """Files that could not be read for their hash, and when that was."""
        self._names: _Names | None = None
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
            self._to_hash.clear()
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
            self.index.use(file, now)
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

    def find(self, name: str, *, suggest: bool = True) -> CatalogFile:
        """Return the file meant by a name: by file name, then `sub/name`, then alias, then hash as far as it is known.

        No file is read for its hash: of those whose hash is not known it is made beside other work.

        Args:
            name: the name.
            suggest: compare an unknown name with those there are, which takes a while.

        Raises:
            CatalogError: the name leaves the folders, is unknown, or fits several files.
        """
        wanted = _inside(name)
        names = self._names_now()
        for candidates in self._lookups(names, wanted):
            match candidates:
                case []:
                    continue
                case [file]:
                    return file
                case _:
                    shown = [_distinct(file, candidates) for file in candidates]
                    reason = f"fits several files: {', '.join(shown)}; write one of these"
                    raise CatalogError(name, reason, shown, fits_several=True)
        if _HASH.fullmatch(wanted) and (unknown := self._hash_unknown(names)):
            reason = f"is not in the LoRA folders; if it is a hash, try again later: {unknown} are being made"
            raise CatalogError(name, reason)
        known = names.written if suggest and len(names.written) < _COMPARED_AT_MOST else ()
        close = difflib.get_close_matches(wanted[:200], known, n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else f"; {names.readable} LoRA files are known"
        raise CatalogError(name, f"is not in the LoRA folders{hint}", close)

    def find_anew(self, name: str) -> CatalogFile:
        """Return the file meant by a name as `find` does, also where it came or changed since the last look.

        Whoever looks for several at once uses a `Lookup`.

        Raises:
            CatalogError: as `find`.
        """
        return Lookup(self).find(name)

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
        names = self._names_now()
        self._follow(names)
        unknown = [file for file in names.unhashed() if not self._is_unreadable(file)]
        read = [file for file in _worth_reading(unknown) if self._tried(self.known_hash, file).startswith(wanted)]
        return tuple(names.in_order([*names.of_hash(wanted), *read]))

    def with_sha256(self, digest: str, likely: CatalogFile | None = None) -> CatalogFile | None:
        """Return a readable file whose SHA-256 begins like `digest`, 8 hex digits or more; None where none was found.

        Files whose hash is known are looked at first, then the likely one, then others by size. They must be read
        whole, so after some gigabytes it is over.
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
                self._opened = Scanner(self._folders, Index(self._data_dir()))
            return self._opened

    def _found(self) -> Mapping[Path, Found]:
        found = self._scanner.found
        return self._scanner.look() if found is None else found

    def _facts(self, file: CatalogFile) -> Facts:
        facts = self.row(file).facts
        assert facts is not None, "a row that was read has facts"
        return facts

    def _names_now(self) -> _Names:
        """Return the names of the files that the latest look at the folders found."""
        found, names = self._found(), self._names
        if names is None or names.found is not found:
            names = self._names = _Names(found)
        return names

    def _lookups(self, names: _Names, wanted: str) -> Iterator[list[CatalogFile]]:
        """Yield the files that a name may mean, in the order of what counts."""
        yield from names.of_files(wanted)
        self._follow(names)
        yield from names.of_headers(wanted)

    def _follow(self, names: _Names) -> None:
        """Have names know what headers have, of all files."""
        if not names.all_read:  # once for each look
            for file in self.files:
                self.row(file)
            names.all_read = True
        names.follow(self.index)

    def _hash_unknown(self, names: _Names) -> int:
        """Have hashes made of the files without one, up to some gigabytes; return how many they are."""
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
        """Return a hash of a file; nothing where it cannot be read, as where it went meanwhile, which is said once."""
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
    """Finds files by their names for one request, for which the folders are looked at anew once at most.

    A look takes seconds where there are many files, and a request may have many names that are unknown.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._looked = False

    def find(self, name: str) -> CatalogFile:
        """Return the file meant by a name as `Catalog.find` does, also where it came or changed before the request.

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
    """The files of one look at the folders by their names, and by what was read of them."""

    def __init__(self, found: Mapping[Path, Found]) -> None:
        self.found = found
        self.all_read = False
        files = [one.file for one in found.values()]
        self.readable = sum(file.readable for file in files)
        self.written = sorted({name for file in files if file.readable for name in (file.name, file.relative)})
        """Names as prompts have them."""
        self._order = {path: position for position, path in enumerate(found)}
        self._relative = _table((file, {file.relative, file.relative + file.path.suffix}) for file in files)
        self._own = _table((file, {file.name, file.path.name}) for file in files)
        self._lock = threading.Lock()
        self._followed = 0
        self._told: dict[Path, tuple[str, str]] = {}
        """Alias and hash of each file, as far as known."""
        self._alias: defaultdict[str, set[Path]] = defaultdict(set)
        self._hash: defaultdict[str, set[Path]] = defaultdict(set)
        """By the first digits."""
        self._unhashed: set[Path] = set()

    def of_files(self, wanted: str) -> tuple[list[CatalogFile], ...]:
        """Return the files that have this name or path, first those that count first."""
        relative, own = _preferred(self._relative.get(wanted, ())), _preferred(self._own.get(wanted, ()))
        # a file at the top has no longer name than its file name, so there that one decides
        return (relative if len(relative) == 1 else own, relative)

    def of_headers(self, wanted: str) -> tuple[list[CatalogFile], ...]:
        """Return the files whose alias this is, and those whose known hash begins so."""
        digest = wanted.lower()[:_HASH_LENGTH]
        is_hash = _HASH.fullmatch(wanted) and not _HASH_OF_NOTHING.startswith(digest)
        with self._lock:
            aliased = self._readable(self._alias.get(wanted, set()))
        return (aliased, self.of_hash(digest) if is_hash else [])

    def of_hash(self, digest: str) -> list[CatalogFile]:
        """Return the files whose known hash begins with 8 to 12 hex digits."""
        with self._lock:
            paths = self._hash.get(digest[:_SHORTEST_HASH], set())
            return self._readable([path for path in paths if self._told[path][1].startswith(digest)])

    def unhashed(self) -> list[CatalogFile]:
        """Return the files whose hash is not known."""
        with self._lock:
            return self._readable(self._unhashed)

    def in_order(self, files: Iterable[CatalogFile]) -> list[CatalogFile]:
        """Return files in the order of the look, each once."""
        return self._readable({file.path for file in files})

    def follow(self, index: Index) -> None:
        """Take over what became known since the last time."""
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
    """Yield files to make hashes of: the likely one, then others by size, up to some gigabytes."""
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


def _inside(name: str) -> str:
    """Normalise a name to `sub/name`; refuse one that would lead out of the folders."""
    wanted = name.strip().replace("\\", "/")
    if PurePosixPath(wanted).is_absolute() or PureWindowsPath(wanted).drive or ".." in wanted.split("/"):
        raise CatalogError(name, "would leave the LoRA folders; write a name as the list of LoRAs shows it")
    return wanted


def _preferred(files: Sequence[CatalogFile]) -> list[CatalogFile]:
    """Leave out pickles where the same name is there as safetensors."""
    return [file for file in files if file.readable] or list(files)


def _distinct(file: CatalogFile, among: Sequence[CatalogFile]) -> str:
    same = [other for other in among if other.relative == file.relative]
    return file.relative if len(same) == 1 else file.relative + file.path.suffix


def _end_of_header(path: Path) -> int:
    """Return where a file's values begin.

    Raises:
        OSError: it cannot be read, or is damaged so that nothing comes behind the header.
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
