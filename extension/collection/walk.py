"""The adapter files below some folders and what lies beside them, by names and stamps alone: no file is opened."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

logger = logging.getLogger(__name__)

READABLE = ".safetensors"
_PICKLES = frozenset({".pt", ".ckpt", ".bin"})  # listed so that asking for one says how to convert it
_NOTES = (".json", ".civitai.info", ".txt", ".description.txt")
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".avif", ".jxl")
_PICTURES = (
    *(f"{middle}{suffix}" for suffix in _SUFFIXES for middle in ("", ".preview")),  # in A1111's order
    *(f".thumb{suffix}" for suffix in _SUFFIXES),  # which SD.Next makes of the others, and smaller
)


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

    @property
    def folder(self) -> str:
        """Path of its folder below the one that was looked through; empty at the top."""
        return self.relative.rpartition("/")[0]

    @property
    def readable(self) -> bool:
        """Whether it can be read, by its suffix."""
        return self.path.suffix.lower() == READABLE

    @cached_property
    def id(self) -> str:
        """What names it to programs, whatever other files are called: 16 hex digits, the same as long as it stays."""
        return hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]

    def is_current(self) -> bool:
        """Tell whether the file is still as it was found."""
        try:
            stat = self.path.stat()
        except OSError:
            return False
        return (stat.st_size, stat.st_mtime_ns) == (self.size, self.mtime_ns)


@dataclass(frozen=True, slots=True)
class Found:
    """A file and what lies beside it."""

    file: CatalogFile
    notes: tuple[Path, ...] = ()
    """Files with notes that are there, of `name.json`, `name.civitai.info`, `name.txt`, `name.description.txt`."""
    picture: Path | None = None
    """The picture that hosts show for it."""
    stamp: str = ""
    """Changes with any of those."""


def walk(folders: Sequence[Path]) -> Iterator[Found]:
    """Yield the adapter files, in the order of the folders and then by path; a file in several only once."""
    seen: set[Path] = set()
    for folder in folders:
        for found in sorted(_below(folder), key=lambda one: one.file.path):
            if found.file.path not in seen:
                seen.add(found.file.path)
                yield found


def beside(file: CatalogFile) -> Found:
    """Look anew at what lies beside one file."""
    names = {}
    for suffix in (*_NOTES, *_PICTURES):
        path = file.path.with_name(file.path.stem + suffix)
        if (stamp := _stamp(path)) is not None:
            names[path.name] = stamp
    return _found(file, names)


def _below(folder: Path) -> Iterator[Found]:
    """Linked folders are entered, as users keep collections on other disks."""
    entered: set[str] = set()
    for root, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(root)
        if real in entered:  # a link back up
            folders.clear()
            continue
        entered.add(real)
        yield from _in(Path(root), folder, frozenset(names))


def _in(root: Path, folder: Path, names: frozenset[str]) -> Iterator[Found]:
    for name in names:
        path = root / name
        if path.suffix.lower() != READABLE and path.suffix.lower() not in _PICKLES:
            continue
        try:
            stat = path.stat()
        except OSError as error:  # a link to nothing
            logger.warning("remora: %s is left out: %s", path, error.strerror)
            continue
        relative = path.relative_to(folder).with_suffix("").as_posix()
        file = CatalogFile(path, relative, stat.st_size, stat.st_mtime_ns)
        stem = path.stem
        present = [other for end in (*_NOTES, *_PICTURES) if (other := stem + end) in names]
        stamps = {other: stamp for other in present if (stamp := _stamp(root / other)) is not None}
        yield _found(file, stamps)


def _found(file: CatalogFile, stamps: Mapping[str, str]) -> Found:
    """From the stamps of what lies beside it, by name."""
    stem = file.path.stem
    notes = tuple(file.path.with_name(stem + end) for end in _NOTES if stem + end in stamps)
    picture = next((file.path.with_name(stem + end) for end in _PICTURES if stem + end in stamps), None)
    return Found(file, notes, picture, "|".join(f"{name}:{stamps[name]}" for name in sorted(stamps)))


def _stamp(path: Path) -> str | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return f"{stat.st_size}:{stat.st_mtime_ns}"
