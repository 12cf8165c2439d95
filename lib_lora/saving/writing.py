"""A safetensors file written beside its place, and put there once it is whole and was read back."""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..errors import FileError
from ..files.file import DTYPES

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_OPEN = Path("/proc/self/fd")
"""Where Linux has the files that are open by number, also those without a name."""
SUFFIX = ".safetensors"
_SPARE = 1 << 20  # bytes of the disk that are left


OpenFile: TypeAlias = Callable[[Path], tuple[BinaryIO, Path]]
"""Opens a file by its place, and returns it and a path to read it by."""


class PlannedTensor(NamedTuple):
    """A tensor that is to be written."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def header_of(tensors: Mapping[str, PlannedTensor], metadata: Mapping[str, str]) -> bytes:
    """Return what a safetensors file has before its tensors, which follow in this order without gaps."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for key, one in tensors.items():
        start, end = end, end + one.nbytes
        header[key] = {"dtype": _NAMES[one.dtype], "shape": list(one.shape), "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def size_of(header: bytes, tensors: Mapping[str, PlannedTensor]) -> int:
    """Return the bytes of a file."""
    return len(header) + sum([one.nbytes for one in tensors.values()])


def write_tensors(stream: BinaryIO, header: bytes, tensors: Iterable[Tensor]) -> None:
    """Write a file up to its end, and wait until the disk has it."""
    stream.write(header)
    for tensor in tensors:
        stream.write(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    stream.flush()
    os.fsync(stream.fileno())


def check_place(path: Path, *, replace: bool) -> Path:
    """Return the absolute path of a file that may be written.

    Raises:
        FileError: the name is taken, the folder is not there, or the name is none of a safetensors file.
    """
    path = path.absolute()
    if path.suffix.lower() != SUFFIX:
        raise FileError(path, "the name of a file that is written ends in .safetensors")
    if os.path.lexists(path) and (not replace or path.is_dir()):
        raise FileError(path, "there is a file of that name; give another one, or say that it is to be replaced")
    if not path.parent.is_dir():
        raise FileError(path, f"there is no folder {path.parent}; make it first")
    check_room(path, 0)
    return path.resolve() if path.is_symlink() else path


def free_folder(path: Path) -> Path:
    """Return the absolute path of a folder that may be made.

    Raises:
        FileError: the name is taken, or the folder that it is to be in is not there.
    """
    path = path.absolute()
    if os.path.lexists(path):
        raise FileError(path, "there is something of that name, and a folder is never replaced; give another name")
    if not path.parent.is_dir():
        raise FileError(path, f"there is no folder {path.parent}; make it first")
    return path


def check_room(path: Path, nbytes: int, remedy: str = "choose a smaller size or dtype") -> None:
    """Raise FileError where the disk has no room for a file, or for a folder."""
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError:  # some network drives do not tell
        return
    if nbytes + _SPARE > free:
        raise FileError(path, f"it takes at least {nbytes:,} bytes, and the disk has {free:,} left; {remedy}")


@contextmanager
def unfinished(path: Path, *, replace: bool) -> Iterator[tuple[BinaryIO, Path]]:
    """Yield an open file and a path to read it by; behind the `with` block it is at `path`, and after an error gone.

    On Linux the file has no name before, so that nothing remains even if the process is killed. Where it replaces
    another file, it has a name of its own for a moment, as no system gives a file the name of another one at once.

    Raises:
        FileError: the file cannot be written, or the name was taken meanwhile.
    """
    part = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}.part")
    stream: BinaryIO | None = None
    try:
        try:
            stream, is_named = _opened(path.parent, part)
            yield stream, part if is_named else _OPEN / str(stream.fileno())
            replaces = replace and os.path.lexists(path)
            if not is_named:
                _give_name(stream.fileno(), part if replaces else path)
            stream.close()
            if replaces:
                part.replace(path)
            elif is_named:
                _rename(part, path)
        finally:
            if stream is not None:
                stream.close()
            with suppress(OSError):
                part.unlink(missing_ok=True)
    except FileExistsError as error:
        raise FileError(path, "another program has made a file of that name meanwhile; nothing was written") from error
    except OSError as error:
        raise FileError(path, f"it cannot be written, and nothing was: {error.strerror or error}") from error
    _flush_folder(path.parent)


@contextmanager
def unfinished_files(path: Path, *, is_folder: bool, replace: bool) -> Iterator[OpenFile]:
    """Yield a function that opens a file of a new folder by its place there, or the only file for any place.

    See `unfinished` and `unfinished_folder`.
    """
    if is_folder:
        with unfinished_folder(path) as open_file:
            yield open_file
    else:
        with unfinished(path, replace=replace) as opened:
            yield lambda _: opened


@contextmanager
def unfinished_folder(path: Path) -> Iterator[OpenFile]:
    """Yield a function that opens a file by its place in a new folder, and returns it and a path to read it by.

    Behind the `with` block the folder is at `path`, and after an error gone. On Linux its files have no names before.

    Raises:
        FileError: a file cannot be written, or the name was taken meanwhile.
    """
    part = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}.part")
    opened: dict[Path, tuple[BinaryIO, bool]] = {}

    def open_file(place: Path) -> tuple[BinaryIO, Path]:
        stream, is_named = opened[place] = _opened(path.parent, part / place)
        return stream, part / place if is_named else _OPEN / str(stream.fileno())

    try:
        try:
            yield open_file
            for place, (stream, is_named) in opened.items():
                (part / place).parent.mkdir(parents=True, exist_ok=True)
                if not is_named:
                    _give_name(stream.fileno(), part / place)
                stream.close()
                _flush_folder((part / place).parent)
            if os.path.lexists(path):
                raise FileExistsError(str(path))
            part.rename(path)
        finally:
            for stream, _ in opened.values():
                stream.close()
            shutil.rmtree(part, ignore_errors=True)
    except FileExistsError as error:
        raise FileError(path, "another program has made it meanwhile; nothing was written") from error
    except OSError as error:
        raise FileError(path, f"it cannot be written, and nothing was: {error.strerror or error}") from error
    _flush_folder(path.parent)


def _opened(folder: Path, part: Path) -> tuple[BinaryIO, bool]:
    """Open a file in a folder, without a name where the system can; else with the one of `part`."""
    if hasattr(os, "O_TMPFILE") and _OPEN.is_dir():
        with suppress(OSError):  # of file systems without it
            return os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666), "w+b"), False
    part.parent.mkdir(parents=True, exist_ok=True)
    return part.open("x+b"), True


def _give_name(descriptor: int, path: Path) -> None:
    """Give an open file a name, which must be free."""
    folder = os.open(_OPEN, os.O_RDONLY)
    try:  # Python follows the link to the file only where a folder is given by its number
        os.link(str(descriptor), path, src_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _rename(part: Path, path: Path) -> None:
    """Rename a file to a name that must be free."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # of file systems without links
        if os.path.lexists(path):
            raise FileExistsError(str(path)) from None
        part.rename(path)


def _flush_folder(folder: Path) -> None:
    """Wait until the disk has the name of a file, where the system can tell."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
