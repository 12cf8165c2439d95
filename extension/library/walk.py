"""The LoRA files below some folders and the files beside them, by names and stamps: no file is opened."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import TypeAlias

from lib_lora import COMPONENTS, component_files

logger = logging.getLogger(__name__)

Choice: TypeAlias = Callable[[Sequence[Path]], Path | None]
"""Returns which of several files of one name the host's own LoRA takes; None if it tells none."""

MOST_NAMES = 500_000
"""Files and folders that one scan reads the names of."""
_DEEPEST = 60  # folders inside each other
READABLE = ".safetensors"
_NAMED_BY_FOLDER = ("adapter_model", "pytorch_lora_weights")
"""File names that trainers give every LoRA, in a folder of its own."""
_PART = f"/{_NAMED_BY_FOLDER[0]}"
"""End of the path of a component's file, in a folder with the component's name."""
_SETTLED = 1.0  # seconds without a change, after which a file is taken to be whole
_PATIENCE = 15.0  # seconds that a picture waits for that
_LOOK = 0.1  # seconds between two looks
PICKLES = frozenset({".pt", ".ckpt", ".bin"})  # listed so that the error can say how to convert it
_NOTES = (".json", ".civitai.info", ".txt", ".description.txt")
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".avif", ".jxl")
_PICTURES = (
    *(f"{middle}{suffix}" for suffix in _SUFFIXES for middle in ("", ".preview")),  # in A1111's order
    *(f".thumb{suffix}" for suffix in _SUFFIXES),  # which SD.Next makes from the others
)
SIDECARS = (
    *_NOTES,
    *_PICTURES,
    # these are not read, but go with the file: Lora-Manager's data, texts and hashes of downloads, videos
    *(".metadata.json", ".info", ".sha256", ".yaml", ".html"),
    *(f"{middle}{suffix}" for suffix in (".mp4", ".webm") for middle in ("", ".preview")),
)
"""Ends of the names of files that belong to a LoRA of the same name."""
TRASH = ".remora-trash"
"""Folder of deleted files; it is not scanned."""


def id_of(path: Path) -> str:
    """Return the id of the file at a path, see `CatalogFile.id`."""
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


@dataclass(frozen=True)
class CatalogFile:
    """One LoRA file on disk."""

    path: Path
    relative: str
    """Path below its folder with `/`, without the suffix: `sub/name`; unique per suffix."""
    size: int
    """Of all its `files`; the time is that of the latest."""
    mtime_ns: int

    @property
    def name(self) -> str:
        """Return the file name without the suffix; the name of the folder where PEFT and diffusers name the file."""
        own = self.relative.rpartition("/")[2]
        return (own in _NAMED_BY_FOLDER and self.folder.rpartition("/")[2]) or own

    @property
    def folder(self) -> str:
        """Return the path of its folder below the scanned one; empty at the top."""
        own = self.relative.rpartition("/")[0]
        return own.rpartition("/")[0] if self.is_folder else own

    @property
    def is_folder(self) -> bool:
        """Return whether PEFT saved it component by component: this file, and those in the folders beside its own."""
        if not self.relative.endswith(_PART):
            return False
        above, _, component = self.relative.removesuffix(_PART).rpartition("/")
        return above != "" and component in COMPONENTS

    @property
    def source(self) -> Path:
        """Return what an entry of a stack names: the file, or the folder of all its components."""
        return self.path.parent.parent if self.is_folder else self.path

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files of its components, this one first; only this one unless it is a folder."""
        return (self.is_folder and tuple(component_files(self.source).values())) or (self.path,)

    @cached_property
    def readable(self) -> bool:
        """Return whether Remora can read it and a prompt can name it, by its path."""
        return self.path.suffix.lower() == READABLE and self.has_text_name

    @property
    def has_text_name(self) -> bool:
        """Return whether a prompt can name it: on Linux, a name may be no UTF-8."""
        return is_text(self.relative)

    @cached_property
    def id(self) -> str:
        """Return its id for programs: 16 hex digits, unchanged while the file stays."""
        return id_of(self.path)

    def is_current(self) -> bool:
        """Tell whether the file has not changed since."""
        try:
            stats = [path.stat() for path in self.files]
        except OSError:
            return False
        found = sum(stat.st_size for stat in stats), max(stat.st_mtime_ns for stat in stats)
        return found == (self.size, self.mtime_ns)


def is_settled(file: CatalogFile) -> bool:
    """Tell whether nobody has written into a LoRA for a while; one that is gone is settled."""
    try:
        age = time.time() - max(path.stat().st_mtime for path in file.files)
    except OSError:
        return True
    return not 0 <= age < _SETTLED  # a clock of another computer may be ahead


def wait_until_settled(file: CatalogFile) -> bool:
    """Wait some seconds until a LoRA is settled; tell whether it is."""
    until = time.monotonic() + _PATIENCE
    while not is_settled(file) and time.monotonic() < until:
        time.sleep(_LOOK)
    return is_settled(file)


@dataclass(frozen=True, slots=True)
class Found:
    """A LoRA file and the files beside it."""

    file: CatalogFile
    notes: tuple[Path, ...] = ()
    """Existing files of `name.json`, `name.civitai.info`, `name.txt`, `name.description.txt`."""
    picture: Path | None = None
    """The picture that hosts show for it."""
    stamp: str = ""
    """Changes with any of these files."""
    parts: tuple[Found, ...] = ()
    """The files of a LoRA that PEFT saved component by component, as they are by themselves."""


def is_text(name: str) -> bool:
    """Tell whether a part of a path is text; Python represents bytes that are no UTF-8 as surrogates."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class ScanStoppedError(Exception):
    """A scan was told to stop before its end."""


@dataclass
class Bounds:
    """How far a scan goes."""

    stopped: Callable[[], bool] = lambda: False
    """Tells whether it is to stop at once."""
    most: int = MOST_NAMES
    """Names that it reads."""
    problem: str = field(default="", init=False)
    """One sentence if there are more."""
    trashes: list[Path] = field(default_factory=list, init=False)
    """The folders of deleted files that it came upon."""
    entered: dict[str, str] = field(default_factory=dict, init=False)
    """Real path of a folder -> the path by which it came there; empty if there are several."""
    _read: int = field(default=0, init=False)

    def add(self, root: str, count: int) -> bool:
        """Add the names of one folder; tell whether the scan goes on.

        Raises:
            ScanStoppedError: it is to stop.
        """
        if self.stopped():
            raise ScanStoppedError
        self._read += count
        if self._read > self.most and not self.problem:
            self.problem = (
                f"the LoRA folders have more than {self.most:,} files and folders, so the list ends at {root}; remove "
                "a link that leads to other files, or choose a smaller folder"
            )
        return not self.problem


def walk(folders: Sequence[Path], bounds: Bounds | None = None) -> Iterator[Found]:
    """Yield the LoRA files, in the order of the folders, then by path; each file once.

    If an earlier folder has a file of the same name, `relative` starts with the folder.

    Raises:
        ScanStoppedError: as the bounds say.
    """
    bounds = Bounds() if bounds is None else bounds
    seen: set[Path] = set()
    taken: set[tuple[str, str]] = set()
    for folder in folders:
        inside: list[Found] = []
        for found in sorted(_below(folder, bounds), key=lambda one: one.file.path):
            if found.file.path in seen:
                continue
            seen.add(found.file.path)
            relative = _free(found.file, folder, taken)
            inside.append(replace(found, file=replace(found.file, relative=relative)))
        yield from _together(inside)


def walk_again(
    found: Mapping[Path, Found], folders: Sequence[Path], places: Collection[Path], entered: Mapping[str, str]
) -> Mapping[Path, Found] | None:
    """Return the files after some places have changed; None where only a walk tells.

    Args:
        found: the files of the latest walk, by path.
        folders: as in that walk.
        places: the folders below these in which files came, changed or went; no folder did.
        entered: of the bounds of that walk.
    """
    present: dict[str, list[Found]] = {}
    for one in found.values():
        for part in one.parts or (one,):
            present.setdefault(str(part.file.path).rpartition(os.sep)[0], []).append(part)  # quicker than `path.parent`
    before = [one.file.path for place in places for one in present.pop(str(place), ())]
    after = list[Path]()
    for place in places:
        again = _in_place(place, folders, entered)
        if again is None:
            return None
        after += [one.file.path for one in again]
        present[str(place)] = again
    if len(folders) > 1 and _share_names(before, after, found.keys() - set(before)):
        return None
    order = {str(place): folders.index(_top_of(Path(place), folders)) for place, files in present.items() if files}
    every = [(order[place], one.file.path, one) for place, files in present.items() for one in files]
    return {one.file.path: one for one in _together([one for *_, one in sorted(every, key=lambda one: one[:2])])}


def _together(found: Sequence[Found]) -> Iterator[Found]:
    """Yield files in their order, and one file for each LoRA that PEFT saved component by component."""
    parts: dict[Path, list[Found]] = {}
    for one in found:
        if one.file.is_folder:
            parts.setdefault(one.file.source, []).append(one)
    if not parts:
        yield from found
        return
    main = {source: next(iter(component_files(source).values()), None) for source in parts}
    for one in found:
        first = main.get(one.file.source) if one.file.is_folder else None
        if first == one.file.path:
            own = [part for part in parts[one.file.source] if part.file.path in one.file.files]
            size, mtime_ns = sum(part.file.size for part in own), max(part.file.mtime_ns for part in own)
            yield replace(one, file=replace(one.file, size=size, mtime_ns=mtime_ns), parts=tuple(own))
        elif first is None:
            yield one


def _share_names(before: Iterable[Path], after: Iterable[Path], others: Iterable[Path]) -> bool:
    """Tell whether files of one name are told apart by all their folders: changed ones, or one of them and another."""
    names = [path.name.lower() for path in after]
    changed = {*names, *(path.name.lower() for path in before)}
    return len(set(names)) < len(names) or any(path.name.lower() in changed for path in others)


def _in_place(place: Path, folders: Sequence[Path], entered: Mapping[str, str]) -> list[Found] | None:
    """Return the files of a folder, without the ones inside it; None if another path may lead there, or none."""
    top = _top_of(place, folders)
    around = [str(one) for one in (place, *place.parents) if top is not None and one.is_relative_to(top)]
    if top is None or any(entered.get(os.path.realpath(one), one) != one for one in around):
        return None
    taken: set[tuple[str, str]] = set()
    try:
        with os.scandir(place) as inside:
            names = frozenset(one.name for one in inside if not one.is_dir())
        found = sorted(_in(place, top, names), key=lambda one: one.file.path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError:
        return None
    return [replace(one, file=replace(one.file, relative=_free(one.file, top, taken))) for one in found]


def _top_of(place: Path, folders: Sequence[Path]) -> Path | None:
    return next((top for top in folders if place.is_relative_to(top)), None)


def _free(file: CatalogFile, folder: Path, taken: set[tuple[str, str]]) -> str:
    """Return the shortest path that is not taken, and take it: below the folder, or with its parents."""
    parts, suffix = folder.absolute().parts[1:], file.path.suffix.lower()
    paths = (file.relative, *("/".join((*parts[-count:], file.relative)) for count in range(1, len(parts) + 1)))
    relative = next((path for path in paths if (path, suffix) not in taken), file.relative)
    taken.add((relative, suffix))
    return relative


def beside(file: CatalogFile) -> Found:
    """Look again for the files beside one file."""
    names = {}
    for suffix in (*_NOTES, *_PICTURES):
        path = file.path.with_name(file.path.stem + suffix)
        if (stamp := _stamp(path)) is not None:
            names[path.name] = stamp
    return _found(file, names)


def _below(folder: Path, bounds: Bounds) -> Iterator[Found]:
    """Yield the files below a folder; follows links, as users keep files on other disks."""
    entered: set[str] = set()
    disks: dict[str, int | None] = {}
    for root, folders, names in os.walk(folder, onerror=_closed, followlinks=True):
        real, disk = os.path.realpath(root), disks.pop(root, None)
        if real in entered or not bounds.add(root, len(folders) + len(names)):  # a link back up, or the end
            folders.clear()
            continue
        entered.add(real)
        if bounds.entered.setdefault(real, root) != root:
            bounds.entered[real] = ""  # from another LoRA folder, too
        if TRASH in folders:
            folders.remove(TRASH)
            bounds.trashes.append(Path(root, TRASH))
        for name in list(folders):
            path = Path(root, name)
            if name.lower().endswith(READABLE):
                _leave_out(path, "it is a folder")
            try:
                disks[str(path)] = _disk_behind(path, folder, disk)
            except OSError as error:
                _leave_out(path, str(error.strerror))
                folders.remove(name)
        yield from _in(Path(root), folder, frozenset(names))


def _disk_behind(path: Path, top: Path, disk: int | None) -> int | None:
    """Return the disk that a scan stays on below a folder; None if the folder is not behind a link.

    Disks and links in the LoRA folder itself are where the user put them. Behind a link, others are not followed: such
    a link may lead to a folder that has all disks of the machine below it.

    Args:
        path: of the folder.
        top: the LoRA folder.
        disk: the one that the scan stays on now.

    Raises:
        OSError: the folder is left out; `strerror` says why.
    """
    own = path.stat().st_dev
    if len(path.relative_to(top).parts) > _DEEPEST:
        raise OSError(errno.ELOOP, f"it is more than {_DEEPEST} folders deep")
    if disk is not None and own != disk:
        raise OSError(errno.EXDEV, "it is on another disk than the folder that a link leads to; link to it directly")
    if not path.is_symlink():
        return disk
    if Path(os.path.realpath(path)) in Path(os.path.realpath(top)).parents:
        raise OSError(errno.ELOOP, "it is a link to a folder that contains the LoRA folder")
    if not _has_files(path):
        raise OSError(errno.EXDEV, "it is a link to a folder of the system, which has no files of its own")
    return own


def _has_files(path: Path) -> bool:
    """Tell whether a folder is on a disk, as far as the system tells; `/proc` and `/sys` have no blocks."""
    return not hasattr(os, "statvfs") or os.statvfs(path).f_blocks > 0


def _in(root: Path, folder: Path, names: frozenset[str]) -> Iterator[Found]:
    for name in names:
        path = root / name
        if path.suffix.lower() != READABLE and path.suffix.lower() not in PICKLES:
            continue
        try:
            stat = path.stat()
        except OSError as error:  # a link to nothing
            _leave_out(path, str(error.strerror))
            continue
        if not S_ISREG(stat.st_mode):
            _leave_out(path, "it is a pipe, a socket or a device, not a regular file")
            continue
        relative = path.relative_to(folder).with_suffix("").as_posix()
        file = CatalogFile(path, relative, stat.st_size, stat.st_mtime_ns)
        stem = path.stem
        present = [other for end in (*_NOTES, *_PICTURES) if (other := stem + end) in names]
        stamps = {other: stamp for other in present if (stamp := _stamp(root / other)) is not None}
        yield _found(file, stamps)


def _closed(error: OSError) -> None:
    """Log which folder cannot be scanned, unless it is a missing top folder, which is usual."""
    if not isinstance(error, FileNotFoundError):
        _leave_out(Path(error.filename), str(error.strerror))


@lru_cache(maxsize=1000)
def _leave_out(path: Path, why: str) -> None:
    """Log it once, as the folders are scanned again and again."""
    logger.warning("remora: %s is left out: %s", path, why)


def _found(file: CatalogFile, stamps: Mapping[str, str]) -> Found:
    """Make an item from the stamps of the files beside it, by name."""
    stem = file.path.stem
    notes = tuple(file.path.with_name(stem + end) for end in _NOTES if stem + end in stamps)
    picture = next((file.path.with_name(stem + end) for end in _PICTURES if stem + end in stamps), None)
    return Found(file, notes, picture, "|".join(f"{name}:{stamps[name]}" for name in sorted(stamps)))


def _stamp(path: Path) -> str | None:
    """Return a stamp that changes with the content; None if there is no file that may be shown."""
    try:
        stat = path.stat()
        if S_ISREG(stat.st_mode) and leads_away(path):
            _leave_out(path, "it is a link to a file of another name in another folder")
            return None
    except OSError:
        return None
    return f"{stat.st_size}:{stat.st_mtime_ns}"


def leads_away(path: Path) -> bool:
    """Tell whether a file beside a LoRA is a link to a file of another name in another folder."""
    return path.is_symlink() and not _stays(path)


def _stays(link: Path) -> bool:
    """Tell whether a link beside a LoRA points to a file of its name or into its folder; pages show the file."""
    target = Path(os.path.realpath(link))
    return target.name == link.name or Path(os.path.realpath(link.parent)) in target.parents
