"""Which file a name means: by its file name, path, alias or hash. A name finds files of the scan only, never a path."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import threading
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Protocol

from lib_lora import LoraError

from .hashes import HASH_LENGTH, Hashes, Rows
from .index import Index, Row
from .walk import CatalogFile, Choice, Found

_SEPARATORS = dict.fromkeys(map(ord, "\\¥₩\uff0f\uff3c"), "/")
"""What separates the names in a path: also as a Japanese and a Korean Windows show it, and in full width."""
_QUOTES = " \"'“”"
"""What stands around a path where Windows copies it."""
_HASH = re.compile(r"[0-9a-fA-F]{8,64}")
_SHORTEST_HASH = 8
_HASH_OF_NOTHING = hashlib.sha256().hexdigest()[:HASH_LENGTH]  # what ai-toolkit stores in every file
_COMPARED_AT_MOST = 2000  # names to compare for a suggestion: 25 microseconds each
_FOLDED_AT_MOST = 512  # characters of a name in another spelling: marks that combine are sorted in quadratic time


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


class FoundRows(Rows, Protocol):
    """The files of the latest scan, and their data."""

    @property
    def all_found(self) -> Mapping[Path, Found]:
        """Return the files with what is beside them, by path; another object after each scan."""


class Names:
    """Finds files by name.

    Args:
        files: to find.
        hashes: of the files.
        choice: returns which of several files of one name the host's own LoRA takes; None if it tells none.
    """

    def __init__(self, files: FoundRows, hashes: Hashes, choice: Choice) -> None:
        self._files = files
        self._hashes = hashes
        self._choice = choice
        self._latest: NameTables | None = None

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
        return self._find(self._tables, name, suggest=suggest)[0]

    def _find(self, names: NameTables, name: str, *, suggest: bool) -> tuple[CatalogFile, str]:
        """Return the file that a name means, and one sentence if several files fit it; see `find`."""
        wanted = name.strip().replace("\\", "/")
        if candidates := names.at(wanted):
            return self._one_of(name, candidates)
        if not names.are_of_files(wanted) and _is_outside(wanted):  # a name may begin as a drive does: `a: b`
            close = self._similar(names, wanted) if suggest else []
            hint = f"did you mean {' or '.join(close)}?" if close else "write a name from the list of LoRA"
            raise CatalogError(name, f"is outside the LoRA folders; {hint}", close)
        for candidates in self._lookups(names, wanted):
            if candidates:
                return self._one_of(name, candidates)
        if candidates := names.folded(wanted):
            return self._one_of(name, candidates, exact=False)
        if _HASH.fullmatch(wanted) and (unknown := self._hashes.some_later(names.unhashed())):
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
            return self._find(self._tables, name, suggest=False)[1]
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
        if self._hashes.are_equal(candidates):
            return taken or candidates[0], ""
        if taken is None:
            reason = f"fits several files: {', '.join(shown)}; write one of these"
            raise CatalogError(name, reason, shown, fits_several=True)
        return taken, (
            f"{name} fits several files, {', '.join(shown)}: {_distinct(taken, candidates)} is applied, which the web "
            "UI's own LoRA takes; to choose, write the folder, too"
        )

    def _similar(self, names: NameTables, wanted: str) -> list[str]:
        """Return up to three names for an unknown one: in other folders, then similar ones."""
        last = wanted.translate(_SEPARATORS).rpartition("/")[2].strip(_QUOTES)
        own = last.rpartition(".")[0] or last
        files = [file for name in dict.fromkeys((last, own)) if name != wanted for file in names.folded(name)]
        if names.readable < _COMPARED_AT_MOST and len(written := names.written) < _COMPARED_AT_MOST:
            written = set(map(_fold, written))
            for sought in dict.fromkeys((wanted, last, own)):
                for one in difflib.get_close_matches(_fold(sought[:200]), written, n=3):
                    files += names.folded(one)
        return list(dict.fromkeys(map(self.name_of, files)))[:3]

    def all(self) -> list[str]:
        """Return for each readable file the shortest unique name that `find` finds it by."""
        return [self.name_of(found.file) for found in self._files.all_found.values() if found.file.readable]

    def name_of(self, file: CatalogFile) -> str:
        """Return the name of one file as in `all`."""
        row = self._files.index.get(file)
        return file.relative if row is None else row.name

    def with_hash(self, digest: str, seconds: float, likely: CatalogFile | None = None) -> CatalogFile | None:
        """Return a readable file whose short hash starts with `digest`, of at least 8 hex digits, or None.

        The hash of empty content, which some trainers write into every file, matches none. The likely file comes first.
        Files without a known hash are read whole in the background, and waited for at most `seconds`.
        """
        wanted = digest.lower()[:HASH_LENGTH]
        if not _HASH.fullmatch(digest) or _HASH_OF_NOTHING.startswith(wanted):
            return None
        names = self._tables
        self._follow(names)
        known, unknown = names.of_hash(wanted), names.unhashed()
        if likely in known:
            return likely
        if known:
            unknown = [file for file in unknown if file == likely]
        return self._hashes.find(self._hashes.known, unknown, wanted, seconds, likely) or next(iter(known), None)

    def with_sha256(self, digest: str, seconds: float, likely: CatalogFile | None = None) -> CatalogFile | None:
        """Return a readable file whose SHA-256 starts with `digest`, of at least 8 hex digits, or None.

        Files with a known hash come first, then the likely one, then others by size. They are read whole in the
        background, and waited for at most `seconds`.
        """
        if not _HASH.fullmatch(digest):
            return None
        wanted, unknown, known = digest.lower(), [], []
        for file in (found.file for found in self._files.all_found.values() if found.file.readable):
            whole = self._files.row(file).sha256
            if whole.startswith(wanted):
                known.append(file)
            elif not whole:
                unknown.append(file)
        if known:
            return likely if likely in known else min(known, key=lambda file: file.size)
        return self._hashes.find(self._hashes.sha256, unknown, wanted, seconds, likely)

    @property
    def _tables(self) -> NameTables:
        """Return the names of the files of the latest scan."""
        found, tables = self._files.all_found, self._latest
        if tables is None or tables.found is not found:
            tables = self._latest = NameTables(found)
        return tables

    def _lookups(self, names: NameTables, wanted: str) -> Iterator[list[CatalogFile]]:
        """Yield the files that a name may mean, in order of priority."""
        yield from names.of_files(wanted, self._choice)
        self._follow(names)
        yield from names.of_headers(wanted)

    def _follow(self, names: NameTables) -> None:
        """Add the data of all headers to the names."""
        if not names.all_read:  # once for each use
            for file in (found.file for found in names.found.values() if found.file.readable):
                self._files.row(file)
            names.all_read = True
        names.follow(self._files.index)


class NameTables:
    """The files of one scan by name, and by the data of their headers."""

    def __init__(self, found: Mapping[Path, Found]) -> None:
        self.found = found
        self.all_read = False
        files = [one.file for one in found.values()]
        self.readable = sum(file.readable for file in files)
        self._order = {path: position for position, path in enumerate(found)}
        self._relative, self._own, self._by_folder = _Table(), _Table(), _Table()
        for file in files:
            relative, own, full = file.relative, file.name, _file_name(file)
            stem = relative.rpartition("/")[2]
            self._relative.add(file, (relative, relative + full[len(stem) :]))
            self._own.add(file, (stem, full) if own == stem else (own, stem, full))
            if own != stem:
                self._by_folder.add(file, (file.folder,))
        self._folded: _Table | None = None
        """The files by their names, where those are compared most loosely; made when a name is not found otherwise."""
        self._paths: _Table | None = None
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
        relative = _preferred(self._relative.of(wanted) or self._by_folder.of(wanted))
        own = _preferred(self._own.of(wanted))
        # the only name of a file at the top is its file name, so it has priority, unless the host takes another one
        is_shared = len(own) > 1 and own[0].name == wanted and choice([file.path for file in own]) is not None
        return (own, relative) if is_shared or len(relative) != 1 else (relative,)

    @property
    def written(self) -> set[str]:
        """Return the names as in prompts."""
        files = [one.file for one in self.found.values() if one.file.readable]
        return {name for file in files for name in (file.name, file.relative)}

    def at(self, wanted: str) -> list[CatalogFile]:
        """Return the files at an absolute path, whose suffix may be missing; no other file is looked at."""
        if not wanted.startswith("/"):
            return []
        if self._paths is None:
            paths = [(one.file, one.file.path.as_posix()) for one in self.found.values()]
            self._paths = _Table((file, {path, path.removesuffix(file.path.suffix)}) for file, path in paths)
        return _preferred(self._paths.of(wanted))

    def are_of_files(self, wanted: str) -> bool:
        """Tell whether a name is exactly a file's name or path."""
        return any(table.of(wanted) for table in (self._own, self._relative, self._by_folder))

    def folded(self, wanted: str) -> list[CatalogFile]:
        """Return the files with this name or path in another spelling, by how much it differs."""
        if len(wanted) > _FOLDED_AT_MOST:
            return []
        if self._folded is None:
            files = [one.file for one in self.found.values() if one.file.readable]
            self._folded = _Table((one, set(map(_as_sdnext, _spellings(one)))) for one in files)
        same = self._folded.of(_as_sdnext(wanted))
        for fold in _FOLDS:
            sought = fold(wanted)
            if files := [one for one in same if sought in map(fold, _spellings(one))]:
                return files
        return []

    def of_headers(self, wanted: str) -> tuple[list[CatalogFile], ...]:
        """Return the files with this alias, and files whose known hash starts with it."""
        digest = wanted.lower()[:HASH_LENGTH]
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


class _Table:
    """Files by each of their names.

    Most names are of one file. A list for each of them would keep Python's collector of memory busy for a second.
    """

    def __init__(self, named: Iterable[tuple[CatalogFile, Iterable[str]]] = ()) -> None:
        self._first: dict[str, CatalogFile] = {}
        self._all: dict[str, list[CatalogFile]] = {}
        """Of names that several files have."""
        for file, names in named:
            self.add(file, names)

    def add(self, file: CatalogFile, names: Iterable[str]) -> None:
        """Add a file by names that differ."""
        for name in names:
            first = self._first.setdefault(name, file)
            if first is not file:
                self._all.setdefault(name, [first]).append(file)

    def of(self, name: str) -> list[CatalogFile]:
        """Return the files of a name."""
        first = self._first.get(name)
        return [] if first is None else list(self._all.get(name, (first,)))


def _is_outside(wanted: str) -> bool:
    """Tell whether a name leaves the folders."""
    return PurePosixPath(wanted).is_absolute() or bool(PureWindowsPath(wanted).drive) or ".." in wanted.split("/")


def _same_text(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _fold(name: str) -> str:
    if name.isascii():
        return name.lower()  # the same, in a fifth of the time
    return _same_text(_same_text(name).casefold())


def _as_sdnext(name: str) -> str:
    return _fold(name).replace(".", "_")


def _file_name(file: CatalogFile) -> str:
    return str(file.path).rpartition(os.sep)[2]  # `path.name` takes five times as long


def _spellings(file: CatalogFile) -> tuple[str, str, str]:
    return file.name, _file_name(file), file.relative


_FOLDS = (_same_text, _fold, _as_sdnext)
"""Ways to compare names, each looser: accents in either encoding, any case, and SD.Next's `_` for a dot."""


def _preferred(files: Sequence[CatalogFile]) -> list[CatalogFile]:
    """Leave out pickles whose name also exists as safetensors."""
    return [file for file in files if file.readable] or list(files)


def _distinct(file: CatalogFile, among: Sequence[CatalogFile]) -> str:
    same = [other for other in among if other.relative == file.relative]
    return file.relative if len(same) == 1 else file.relative + file.path.suffix
