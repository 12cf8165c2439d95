"""The LoRA files on disk: an index by name, alias and hash. A name finds indexed files only, never a path."""

from __future__ import annotations

import difflib
import hashlib
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from lib_lora import AdapterFile, LoraError

logger = logging.getLogger(__name__)

_READABLE = ".safetensors"
_PICKLES = frozenset({".pt", ".ckpt", ".bin"})  # indexed so that asking for one says how to convert it
_NO_ALIAS = frozenset({"", "none", "Addams"})  # trainers' defaults that thousands of files share
_HASH = re.compile(r"[0-9a-fA-F]{8,64}")
_HASH_LENGTH = 12  # hex digits, as shown in "Lora hashes"
_HASH_OF_NOTHING = hashlib.sha256().hexdigest()[:_HASH_LENGTH]  # what ai-toolkit stores in every file
_CHUNK = 1 << 20  # bytes
_READ_AT_MOST = 4 << 30  # bytes, to find a file by the hash of all of it


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


@dataclass(frozen=True)
class CatalogFile:
    """One adapter file as found on disk."""

    path: Path
    relative: str
    """Path below its folder with `/`, without the suffix: `sub/name`."""
    size: int
    mtime_ns: int

    @property
    def name(self) -> str:
        """File name without the suffix."""
        return self.relative.rpartition("/")[2]

    def is_current(self) -> bool:
        """Tell whether the file is still as it was found."""
        try:
            stat = self.path.stat()
        except OSError:
            return False
        return (stat.st_size, stat.st_mtime_ns) == (self.size, self.mtime_ns)

    @property
    def readable(self) -> bool:
        return self.path.suffix.lower() == _READABLE


class Catalog:
    """Index of the adapter files below some folders; what is read from a file is kept until the file changes."""

    def __init__(self, folders: Callable[[], Sequence[Path]]) -> None:
        self._folders = folders
        self._files: tuple[CatalogFile, ...] | None = None
        self._metadata: dict[CatalogFile, Mapping[str, str]] = {}
        self._problems: dict[CatalogFile, str] = {}
        self._hashes: dict[CatalogFile, str] = {}
        self._whole_hashes: dict[CatalogFile, str] = {}

    @property
    def files(self) -> tuple[CatalogFile, ...]:
        """Readable files, in the order of the folders and then by name."""
        return tuple(file for file in self._all() if file.readable)

    @property
    def every(self) -> tuple[CatalogFile, ...]:
        """The same with the pickles, which are refused when they are asked for."""
        return self._all()

    def refresh(self) -> None:
        """Look at the folders again."""
        self._files = tuple(_scan(self._folders()))
        known = set(self._files)
        self._metadata = {file: value for file, value in self._metadata.items() if file in known}
        self._problems = {file: value for file, value in self._problems.items() if file in known}
        self._hashes = {file: value for file, value in self._hashes.items() if file in known}
        self._whole_hashes = {file: value for file, value in self._whole_hashes.items() if file in known}

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
        shared = Counter(file.name for file in self.files)
        return [file.name if shared[file.name] == 1 else file.relative for file in self.files]

    def name_of(self, file: CatalogFile) -> str:
        """Return the name of one readable file as in `names`."""
        return self.names()[self.files.index(file)]

    def with_hash(self, digest: str) -> tuple[CatalogFile, ...]:
        """Return the readable files whose short hash begins like `digest`, 8 hex digits or more; none for any other.

        The hash of nothing, which some trainers write into every file, is nobody's. Files whose hash has to be made are
        read whole, so after some gigabytes it is over.
        """
        wanted = digest.lower()[:_HASH_LENGTH]
        if not _HASH.fullmatch(digest) or _HASH_OF_NOTHING.startswith(wanted):
            return ()
        known = {file for file in self.files if file in self._hashes or self._stored_hash(file)}
        found = {file for file in self._worth_reading(known) if wanted == self._short(file)[: len(wanted)]}
        return tuple(file for file in self.files if file in found)

    def with_sha256(self, digest: str, likely: CatalogFile | None = None) -> CatalogFile | None:
        """Return a readable file whose SHA-256 begins like `digest`, 8 hex digits or more; None where none was found.

        Files whose hash is known are looked at first, then the likely one, then others by size. They must be read
        whole, so after some gigabytes it is over.
        """
        if not _HASH.fullmatch(digest):
            return None
        for file in self._worth_reading(set(self._whole_hashes), likely):
            try:
                if self.sha256(file).startswith(digest.lower()):
                    return file
            except OSError as error:  # it went since the folders were looked at
                logger.warning("remora: %s cannot be read: %s", file.path, error.strerror)
        return None

    def metadata(self, file: CatalogFile) -> Mapping[str, str]:
        """Return the file's metadata; empty, with a warning, where its header cannot be read."""
        if file not in self._metadata:
            try:
                self._metadata[file] = AdapterFile.open(file.path).metadata
            except LoraError as error:
                logger.warning("remora: %s", error)
                self._metadata[file] = {}
                self._problems[file] = str(error)
        return self._metadata[file]

    def problem(self, file: CatalogFile) -> str:
        """Return why the file's header cannot be read, as one sentence; nothing where it can."""
        self.metadata(file)
        return self._problems.get(file, "")

    def alias(self, file: CatalogFile) -> str:
        """Return the name its trainer gave the file (`ss_output_name`), or the file name."""
        alias = self.metadata(file).get("ss_output_name", "")
        return file.name if alias in _NO_ALIAS else alias

    def shorthash(self, file: CatalogFile) -> str:
        """Return 12 hex digits of the SHA-256 of everything after the header, as "Lora hashes" has it.

        Raises:
            OSError: the file cannot be read.
        """
        if file not in self._hashes:
            self._hashes[file] = _hash_from(file.path, _end_of_header(file.path))[:_HASH_LENGTH]
        return self._hashes[file]

    def known_hash(self, file: CatalogFile) -> str:
        """Return what `shorthash` does, as its trainer wrote it down where that is credible.

        Raises:
            OSError: the file cannot be read.
        """
        return self._stored_hash(file) or self.shorthash(file)

    def sha256(self, file: CatalogFile) -> str:
        """Return the SHA-256 of the whole file, in hex digits.

        Raises:
            OSError: the file cannot be read.
        """
        if file not in self._whole_hashes:
            self._whole_hashes[file] = _hash_from(file.path, 0)
        return self._whole_hashes[file]

    def _stored_hash(self, file: CatalogFile) -> str:
        """What its trainer wrote down, where that is credible; reading it spares reading the whole file."""
        stored = self.metadata(file).get("sshs_model_hash", "").lower()
        credible = _HASH.fullmatch(stored) and len(stored) >= _HASH_LENGTH and not stored.startswith(_HASH_OF_NOTHING)
        return stored[:_HASH_LENGTH] if credible else ""

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

    def _all(self) -> tuple[CatalogFile, ...]:
        if self._files is None:
            self.refresh()
        assert self._files is not None
        return self._files

    def _lookups(self, wanted: str) -> Iterator[list[CatalogFile]]:
        relative = _preferred(
            file for file in self._all() if wanted in (file.relative, file.relative + file.path.suffix)
        )
        by_name = _preferred(file for file in self._all() if wanted in (file.name, file.path.name))
        # a file at the top has no longer name than its file name, so there that one decides
        yield relative if len(relative) == 1 else by_name
        yield relative
        yield [file for file in self.files if self.alias(file) == wanted]
        if _HASH.fullmatch(wanted):
            yield list(self.with_hash(wanted))


def _scan(folders: Sequence[Path]) -> Iterator[CatalogFile]:
    seen: set[Path] = set()
    for folder in folders:
        for path in sorted(_walk(folder)):
            if path.suffix.lower() != _READABLE and path.suffix.lower() not in _PICKLES:
                continue
            try:
                stat = path.stat()
            except OSError as error:  # a link to nothing
                logger.warning("remora: %s is left out: %s", path, error.strerror)
                continue
            if path not in seen:
                seen.add(path)
                relative = path.relative_to(folder).with_suffix("").as_posix()
                yield CatalogFile(path, relative, stat.st_size, stat.st_mtime_ns)


def _walk(folder: Path) -> Iterator[Path]:
    """Yield files below a folder; linked folders are entered, as users keep collections on other disks."""
    entered: set[str] = set()
    for root, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(root)
        if real in entered:  # a link back up
            folders.clear()
            continue
        entered.add(real)
        yield from (Path(root, file) for file in files)


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
