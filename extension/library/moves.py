"""LoRA files are moved with the files beside them: each whole or not at all, also where the process ends meanwhile.

A journal has what is to be moved. The next start moves what an earlier process did not: the folders tell which
files are left. To delete a file is to move it to a trash folder on its disk.
"""

from __future__ import annotations

import errno
import filecmp
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from lib_lora import COMPONENTS, is_denoiser

from ..store import LOCK_FILE, Store, json_bytes, locked
from .walk import PICKLES, READABLE, SIDECARS, TRASH, CatalogFile

_JOURNAL = "moves.json"
_MAX_BYTES = 64 << 20  # of the journal
DELETED = ".deleted"  # at the end of each name in a trash folder, so that no program takes it for a LoRA
_TIME = "%Y-%m-%d %H.%M.%S"
_CONFIG = "adapter_config.json"
_CONFIGURED = ("adapter_model", "pytorch_lora_weights", "adapters")
"""Ends of the names of files that `adapter_config.json` beside them belongs to: PEFT's, diffusers', mlx-lm's."""


@dataclass(frozen=True)
class Move:
    """One LoRA file and the files beside it, the LoRA first: where they are, and where they are to be."""

    pairs: tuple[tuple[Path, Path], ...]
    stamp: tuple[int, int] | None = None
    """Size and time of the LoRA: another program may have put another file in its place. None is any file."""

    @property
    def source(self) -> Path:
        """Return where the LoRA is."""
        return self.pairs[0][0]

    @property
    def target(self) -> Path:
        """Return where the LoRA is to be."""
        return self.pairs[0][1]

    @property
    def back(self) -> Move:
        """Return the move that takes this one back."""
        return replace(self, pairs=tuple((target, source) for source, target in self.pairs))

    def carry_out(self) -> None:
        """Move the files that are not moved yet; if one cannot be, all are where they were.

        Raises:
            OSError: nothing was moved.
        """
        self._check()  # or the lock would make its folder
        folders = {os.path.realpath(path.parent) for path in self.pairs[0] if TRASH not in path.parts}
        with ExitStack() as locks:  # as for the notes; in one order, or two moves would wait for each other
            for folder in sorted(folders):
                locks.enter_context(locked(Path(folder)))
            self._check()
            pairs = (*self.pairs, *self._later())
            try:
                for source, target in pairs:
                    if os.path.lexists(source):
                        _move(source, target)
            except OSError:
                for source, target in pairs:
                    if os.path.lexists(target) and not os.path.lexists(source):
                        _move(target, source)
                raise

    def _check(self) -> None:
        """Raise OSError if the LoRA is in neither place, or another file has its place."""
        if not any(map(os.path.lexists, self.pairs[0])):
            raise FileNotFoundError(errno.ENOENT, "it is gone", str(self.source))
        if self.stamp is not None and os.path.lexists(self.source):
            try:
                stat = self.source.stat()
            except FileNotFoundError as error:  # another program has moved it since the line above
                raise FileNotFoundError(errno.ENOENT, "it is gone", str(self.source)) from error
            if (stat.st_size, stat.st_mtime_ns) != self.stamp:
                raise FileNotFoundError(errno.ENOENT, "another file has its place now", str(self.source))

    def _later(self) -> list[tuple[Path, Path]]:
        """Return files that came beside the LoRA since the move was planned, as notes on it do, and their places."""
        known = {one for one, _ in self.pairs}
        if any(os.path.lexists(one) and one != self.source for one in _of_stem(self.source)):
            return []  # which have them, too
        later = []
        for end in SIDECARS:
            path = _renamed(self.source, end)
            of_longer = _of_stem(self.source, Path(end).stem) if end.count(".") > 1 else ()
            if path not in known and os.path.lexists(path) and not any(map(os.path.lexists, of_longer)):
                later.append((path, _renamed(self.target, end)))
        return later


@dataclass(frozen=True)
class Operation:
    """Moves that belong together."""

    moves: tuple[Move, ...]
    names: Mapping[str, Path]
    """Name that a kept stack has for one of the files -> where the file is to be."""


class Journal:
    """Keeps the operations that are not finished in `moves.json` of a folder.

    Args:
        folder: returns the folder; called on every access. None keeps them in memory only.
    """

    def __init__(self, folder: Callable[[], Path | None]) -> None:
        def path() -> Path | None:
            found = folder()
            return None if found is None else found / _JOURNAL

        self._store: Store[Mapping[str, Operation]] = Store(path, "moves", {}, _read, _write, _MAX_BYTES)

    @property
    def unfinished(self) -> Mapping[str, Operation]:
        """Return the operations that are not finished, by key."""
        return self._store.value

    @contextmanager
    def kept(self, operation: Operation) -> Iterator[None]:
        """Keep an operation until the `with` statement ends; where it ends by an error, until it is finished.

        Raises:
            OSError: it cannot be written.
        """
        key = secrets.token_hex(8)
        self._store.change(lambda kept: {**kept, key: operation})
        yield
        self.finish(key)

    def finish(self, key: str) -> None:
        """Forget an operation."""
        self._store.change(lambda kept: {one: operation for one, operation in kept.items() if one != key})


class Neighbours:
    """Tells which files belong to a LoRA, among all LoRA of its folder."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._names: dict[Path, set[str]] = {}
        """Names of the files in a folder."""
        self._stems: dict[Path, dict[str, list[Path]]] = {}
        for path in files:
            self._stems.setdefault(path.parent, {}).setdefault(path.stem, []).append(path)

    def sharing(self, path: Path) -> list[Path]:
        """Return the other LoRA files of the same name, which have the same files beside them."""
        return [one for one in self._stems.get(path.parent, {}).get(path.stem, ()) if one != path]

    def beside(self, path: Path) -> list[Path]:
        """Return the files that belong to a LoRA; none of a LoRA with a longer name, such as `a.v2` beside `a`."""
        begin = f"{path.stem}."
        longer = tuple(f"{one}." for one in self._stems.get(path.parent, {}) if one.startswith(begin))
        there = self._there(path.parent)
        return [path.with_name(one) for one in _beside(path.stem) if one in there and not one.startswith(longer)]

    def _there(self, folder: Path) -> set[str]:
        if folder not in self._names:
            self._names[folder] = set()
            with suppress(FileNotFoundError), os.scandir(folder) as found:
                self._names[folder] = {one.name for one in found if one.is_symlink() or one.is_file()}
        return self._names[folder]


def _of_stem(path: Path, more: str = "") -> list[Path]:
    """Return the names that LoRA of the same name without suffix have, or of that name and some more."""
    return [_renamed(path, more + suffix) for suffix in (READABLE, *PICKLES)]


def _renamed(path: Path, end: str) -> Path:
    """Return the path of a LoRA, which may be in the trash, with another end than its suffix."""
    deleted = DELETED if path.name.endswith(DELETED) else ""
    return path.with_name(f"{Path(path.name.removesuffix(deleted)).stem}{end}{deleted}")


def _beside(stem: str) -> list[str]:
    """Return the names that files beside a LoRA may have."""
    return [*(stem + end for end in SIDECARS), *([_CONFIG] if stem.endswith(_CONFIGURED) else [])]


def is_configured(path: Path) -> bool:
    """Tell whether `adapter_config.json` in its folder belongs to a file."""
    return path.stem.endswith(_CONFIGURED) and path.with_name(_CONFIG).is_file()


def moved(path: Path, beside: Iterable[Path], folder: Path, stem: str) -> Move:
    """Return the move of a LoRA to a folder, under a name without suffix."""
    names = {one: one.name if one.name == _CONFIG else stem + one.name[len(path.stem) :] for one in (path, *beside)}
    return Move(tuple((one, folder / name) for one, name in names.items()))


def moved_folder(file: CatalogFile, folder: Path, name: str) -> Move:
    """Return the move of a LoRA that PEFT saved component by component to a folder, under a name.

    All files in the folders of its components go with it, but other LoRA.
    """
    files = [file.path]
    for own in file.files:
        files += [one for one in sorted(own.parent.iterdir()) if one != file.path and _goes_along(one)]
    return Move(tuple((one, folder / name / one.relative_to(file.source)) for one in files))


def _goes_along(path: Path) -> bool:
    """Tell whether a file in the folder of a component belongs to it."""
    is_other = path.suffix.lower() in (READABLE, *PICKLES) and path.stem != _CONFIGURED[0]
    return not is_other and path.name != LOCK_FILE and (path.is_symlink() or path.is_file())


def leave(move: Move) -> None:
    """Remove the folders that a LoRA of several components has left, as far as they are empty."""
    if move.source.stem != _CONFIGURED[0] or move.source.parent.name not in COMPONENTS:
        return
    for folder in sorted({source.parent for source, _ in move.pairs}):
        with suppress(OSError):  # there is something else in it, or another program has removed it
            if {one.name for one in folder.iterdir()} <= {LOCK_FILE}:
                (folder / LOCK_FILE).unlink(missing_ok=True)
                folder.rmdir()
                folder.parent.rmdir()


def taken(move: Move) -> Path | None:
    """Return the first of its places that another file has, or None."""
    return next((to for one, to in move.pairs if os.path.lexists(to) and not is_other_case(one, to)), None)


# --- the trash folders ---


@dataclass(frozen=True)
class Deleted:
    """One LoRA in a trash folder."""

    file: CatalogFile
    """Its path is in the trash; `relative` is the one it had, below the folder that has the trash folder."""
    restored: Move
    time: float
    """When it was deleted, in seconds since 1970."""

    def delete(self) -> None:
        """Delete it for good.

        Raises:
            OSError: it, or a file beside it, cannot be deleted.
        """
        for path, _ in reversed(self.restored.pairs):
            path.unlink(missing_ok=True)
            prune(path.parent)


def trashed(path: Path, beside: Iterable[Path], tops: Collection[Path], when: str) -> Move:
    """Return the move of a LoRA to the trash: in the highest folder around it that is on its disk.

    Args:
        path: of the LoRA.
        beside: the files that belong to it.
        tops: the LoRA folders, above which it does not go.
        when: from `trash_time`.
    """
    top = path.parent
    while top not in tops and not top.is_symlink() and top.parent != top and _is_one_disk(top, top.parent):
        top = top.parent
    folder = top / TRASH / when
    return Move(tuple((one, folder / f"{one.relative_to(top)}{DELETED}") for one in (path, *beside)))


def trash_time() -> str:
    """Return the name of a folder for files that are deleted now."""
    return f"{time.strftime(_TIME)} {secrets.token_hex(2)}"


def in_trash(trashes: Sequence[Path]) -> Iterator[Deleted]:
    """Yield the LoRA in some trash folders."""
    for trash in trashes:
        folders: list[Path] = []
        with suppress(FileNotFoundError):
            folders = [] if trash.is_symlink() else sorted(trash.iterdir())
        for folder in folders:
            with suppress(ValueError):  # a folder that Remora did not make
                when = time.mktime(time.strptime(folder.name.rpartition(" ")[0], _TIME))
                yield from _together(list(_deleted_in(folder, trash.parent, when)))


def _deleted_in(folder: Path, top: Path, when: float) -> Iterator[Deleted]:
    for root, _, names in os.walk(folder):
        there = {name.removesuffix(DELETED) for name in names if name.endswith(DELETED)}
        place = top / Path(root).relative_to(folder)
        for name in sorted(there):
            stem, suffix = Path(name).stem, Path(name).suffix
            path = Path(root, name + DELETED)
            if suffix.lower() not in (READABLE, *PICKLES) or not os.path.lexists(path):
                continue
            stat = path.lstat()
            beside = [one for one in _beside(stem) if one in there]
            pairs = tuple((Path(root, one + DELETED), place / one) for one in (name, *beside))
            relative = (place / stem).relative_to(top).as_posix()
            yield Deleted(CatalogFile(path, relative, stat.st_size, stat.st_mtime_ns), Move(pairs), when)


def _together(deleted: Sequence[Deleted]) -> Iterator[Deleted]:
    """Yield deleted LoRA, the files of one that PEFT saved component by component as one."""
    parts: dict[Path, list[Deleted]] = {}
    for one in deleted:
        place = one.restored.target
        is_part = replace(one.file, path=place).is_folder
        parts.setdefault(place.parent.parent if is_part else place, []).append(one)
    for own in parts.values():
        own.sort(
            key=lambda one: (one.restored.target.suffix != READABLE, not is_denoiser(one.restored.target.parent.name))
        )
        pairs = [pair for one in own for pair in one.restored.pairs]
        for one in own if own[0].restored.target.parent.name in COMPONENTS else ():  # what its trainer wrote beside it
            known = {source for source, _ in pairs}
            for path in sorted(one.file.path.parent.iterdir()):
                if path.name.endswith(DELETED) and path not in known:
                    pairs.append((path, one.restored.target.with_name(path.name.removesuffix(DELETED))))
        size = sum(one.file.size for one in own)
        yield replace(own[0], file=replace(own[0].file, size=size), restored=Move(tuple(pairs)))


def prune(folder: Path) -> None:
    """Remove a folder of the trash, and the ones around it, as far as they are empty."""
    while TRASH in folder.parts:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


# --- one file ---


def _move(source: Path, target: Path) -> None:
    """Move one file, never over another one; go on where an earlier try ended at any point.

    Raises:
        OSError: it is where it was.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        _move_link(source, target)
    elif is_other_case(source, target):
        source.rename(target)
    elif _is_copied(source, target):
        source.unlink()
    else:
        _claim(target)
        try:
            _replace(source, target)
        except OSError:
            if os.path.lexists(source):
                target.unlink(missing_ok=True)
            raise


def _claim(target: Path) -> None:
    """Make an empty file where there is none: a rename would replace the file of a program that was quicker."""
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError as error:
        if target.is_symlink() or not target.is_file() or target.stat().st_size:  # not claimed by an earlier try
            raise FileExistsError(errno.EEXIST, f"there is a file {target.name} already", str(target)) from error


def _replace(source: Path, target: Path) -> None:
    try:
        source.replace(target)
        return
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    # its name is the same at each try, so that none is left over
    new = target.with_name(f".remora-{hashlib.sha256(os.fsencode(target)).hexdigest()[:16]}.tmp")
    try:
        shutil.copy2(source, new)
        with new.open("rb+") as stream:
            os.fsync(stream.fileno())
        new.replace(target)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    source.unlink()


def _is_copied(source: Path, target: Path) -> bool:
    """Tell whether an earlier try has copied a file to another disk, and ended before it deleted the source."""
    if target.is_symlink() or not target.is_file() or not target.stat().st_size or target.samefile(source):
        return False
    return filecmp.cmp(source, target, shallow=False)


def _move_link(source: Path, target: Path) -> None:
    """Make a link to the same file, and remove the former one."""
    to = source.readlink()
    if not to.is_absolute():
        to = Path(os.path.relpath(os.path.realpath(source.parent) / to, os.path.realpath(target.parent)))
    try:
        target.symlink_to(to)
    except FileExistsError as error:
        if not target.is_symlink() or target.readlink() != to:
            raise FileExistsError(errno.EEXIST, f"there is a file {target.name} already", str(target)) from error
    source.unlink()


def is_other_case(source: Path, target: Path) -> bool:
    """Tell whether two paths are one file on a disk that ignores case."""
    same = source != target and str(source).casefold() == str(target).casefold()
    return same and os.path.lexists(target) and source.samefile(target)


def _is_one_disk(one: Path, other: Path) -> bool:
    return one.stat().st_dev == other.stat().st_dev


def _write(kept: Mapping[str, Operation]) -> bytes:
    """Write operations with escapes: a path may be no text."""
    data = {
        key: {
            "moves": [[[str(source), str(target)] for source, target in move.pairs] for move in one.moves],
            "names": {name: str(path) for name, path in one.names.items()},
        }
        for key, one in kept.items()
    }
    return json_bytes(data, indent=0)


def _read(content: bytes) -> Mapping[str, Operation]:
    data = json.loads(content)
    try:
        return {
            key: Operation(
                tuple(Move(tuple((Path(one), Path(to)) for one, to in move)) for move in operation["moves"]),
                {name: Path(path) for name, path in operation["names"].items()},
            )
            for key, operation in data.items()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(repr(error)) from error
