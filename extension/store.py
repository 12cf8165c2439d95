"""Files that several threads and programs read and change, and that people edit: locked, bounded, replaced at once.

A change reads the file again, so it never undoes another change. A file that cannot be read is never overwritten: a
damaged file is renamed first and stays. A reader sees the old file or the new one, and reads no more than its bound.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from filelock import FileLock, Timeout

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_Stamp: TypeAlias = tuple[int, ...]
_PATIENCE = 10.0  # seconds that another thread or program may take for its change
_PAUSE = 0.002  # seconds between two attempts to lock
LOCK_FILE = ".remora.lock"
"""In each folder where something was changed; empty."""
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF, errno.EISDIR})
"""Errors of file systems without locks, such as some network drives."""


@dataclass(frozen=True)
class _LastRead(Generic[_T]):
    """A file as it was last read."""

    stamp: _Stamp | None
    value: _T
    error: Exception | None = None


class FileValue(Generic[_T]):
    """A value read from a file, and read again when the file changes.

    Args:
        path: returns the path; called on every access. None is no file.
        what: the content, for messages.
        empty: the value if there is no file, or if it is damaged or was never read.
        read: makes the value from the file's content; raises ValueError or RecursionError if it is damaged.
        at_most: bytes of the file.
    """

    def __init__(
        self, path: Callable[[], Path | None], what: str, empty: _T, read: Callable[[bytes], _T], at_most: int
    ) -> None:
        self._path = path
        self._what = what
        self._read = read
        self._at_most = at_most
        self._empty = empty
        self._state = _LastRead(None, empty)
        self._logged = ""

    @property
    def value(self) -> _T:
        """Return the present value of the file; threads share the object, so it must not be changed.

        A file that cannot be read is logged.
        """
        state = self._look()
        text = "" if state.error is None else self._sentence(state.error)
        if text and text != self._logged:
            logger.warning("remora: %s", text)
        self._logged = text
        return state.value

    @property
    def problem(self) -> str:
        """Return one sentence if the file cannot be read: why, and what to do."""
        error = self._look().error
        return "" if error is None else self._sentence(error)

    def _sentence(self, error: Exception) -> str:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        return f"{self._path()} cannot be read as {self._what} ({why}); {self._advice(error)}"

    def _advice(self, error: Exception) -> str:
        return "repair it or move it away"

    def _look(self, *, again: bool = False) -> _LastRead[_T]:
        """Return the state of the file; read it if it has changed, or if `again`."""
        path = self._path()
        if path is None:
            return self._state
        try:
            stamp = _stamp_of(path)
        except FileNotFoundError:
            self._state = state = _LastRead(None, self._empty)
            return state
        except OSError as error:
            return self._failed(None, error)
        state = self._state
        if again or stamp != state.stamp:
            try:
                self._state = state = _LastRead(stamp, self._read(read_bytes(path, self._at_most)))
            except FileNotFoundError:  # it went since
                self._state = state = _LastRead(None, self._empty)
            except OSError as error:
                return self._failed(None, error)  # it may do better next time
            except (ValueError, RecursionError) as error:
                return self._failed(stamp, error)
        return state

    def _failed(self, stamp: _Stamp | None, error: Exception) -> _LastRead[_T]:
        # a drive that does not answer has not lost what was read from it
        value = self._state.value if isinstance(error, OSError) else self._empty
        self._state = state = _LastRead(stamp, value, error)
        return state


class Store(FileValue[_T]):
    """A value kept in a file and changed by several threads and programs.

    Args:
        path: returns the path; called on every access. None keeps the value in memory only.
        what: the content, for messages.
        empty: the value if there is no file, or if it is damaged or was never read.
        read: makes the value from the file's content; raises ValueError or RecursionError if it is damaged.
        write: makes the content from the value.
        at_most: bytes of the file.
        shared: other programs store data of their own in the file, so a damaged file is left to the user.
        refusal: raised if a new value could not be read back.
    """

    def __init__(
        self,
        path: Callable[[], Path | None],
        what: str,
        empty: _T,
        read: Callable[[bytes], _T],
        write: Callable[[_T], bytes],
        at_most: int,
        *,
        shared: bool = False,
        refusal: type[ValueError] = ValueError,
    ) -> None:
        super().__init__(path, what, empty, read, at_most)
        self._write = write
        self._shared = shared
        self._refusal = refusal
        self._alone = threading.RLock()
        """Excludes other threads if there is no file."""

    def lock(self) -> AbstractContextManager[object]:
        """Exclude changes by other threads and programs in a `with` statement.

        Raises:
            OSError: another holds the lock for long, or the folder cannot be made.
        """
        path = self._path()
        return self._alone if path is None else locked(Path(os.path.realpath(path)).parent)

    def change(self, make: Callable[[_T], _T]) -> _T:
        """Replace the value by one made from the present content of the file.

        Args:
            make: returns the new value. If it raises, nothing has changed.

        Raises:
            OSError: the file cannot be read or written; it has not changed.
            ValueError: the file is shared and damaged; it has not changed.
            ValueError: of type `refusal`: the new value could not be read back; nothing has changed.
        """
        with self.lock():
            state = self._look(again=True)
            if isinstance(state.error, OSError) or (state.error is not None and self._shared):
                raise state.error  # nothing is written over what could not be read
            value = make(state.value)
            path = self._path()
            if path is None:
                self._state = _LastRead(None, value)
                return value
            content = self._content(path, value)
            if state.error is not None:
                aside = set_aside(path)
                logger.warning("remora: %s is kept as %s", path, aside.name)
            write_bytes(path, content)
            self._state = _LastRead(None, value)  # without a stamp it is read again, should others have written since
            return value

    def _content(self, path: Path, value: _T) -> bytes:
        """Return the new content; content that could not be read back is never written."""
        try:
            content = self._write(value)
            if len(content) > self._at_most:
                raise _too_large(path, self._at_most)
            self._read(content)
        except (ValueError, RecursionError) as error:
            why = f"{self._what} cannot be saved, as {path.name} could not be read again"
            raise self._refusal(f"{why} ({error}); nothing was changed") from error
        return content

    def _advice(self, error: Exception) -> str:
        if isinstance(error, OSError):
            return "nothing is saved there until it can be read"
        if self._shared:
            return super()._advice(error)
        path = self._path()
        assert path is not None, "a store without a file is not damaged"
        return f"the next change renames it to {_free_name(Path(os.path.realpath(path))).name} and starts an empty file"


def set_aside(path: Path) -> Path:
    """Rename a damaged file to the first free name of `NAME.damaged-1`, `NAME.damaged-2`, ...; return it.

    Raises:
        OSError: the file cannot be renamed.
    """
    real = Path(os.path.realpath(path))  # a link stays, and gets a new file
    with locked(real.parent):
        return real.rename(_free_name(real))


def one_problem(problems: Iterable[str]) -> str:
    """Return the problems of several files as one sentence: the first, and the number of others."""
    first, *more = [*filter(None, problems)] or [""]
    files = "1 more file has a problem" if len(more) == 1 else f"{len(more)} more files have problems"
    return f"{first}; {files}" if more else first


def json_bytes(data: Any, indent: int) -> bytes:
    """Write JSON as UTF-8; a text with a lone surrogate is written with escapes."""
    try:
        return json.dumps(data, ensure_ascii=False, indent=indent).encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(data, indent=indent).encode("ascii")


def locked(folder: Path) -> AbstractContextManager[object]:
    """Exclude changes in a folder by other threads, and by programs that lock it too; reentrant.

    Raises:
        OSError: another holds the lock for long, or the folder cannot be made.
    """
    return _LOCKS.setdefault(folder, _FolderLock(folder))


class _FolderLock:
    """The lock of one folder: filelock's, which excludes programs, and one for the threads of this program."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._threads = threading.RLock()  # of their own: old versions of filelock let every thread in after the first
        self._programs = FileLock(str(folder / LOCK_FILE), mode=0o666)
        self._has_no_locks = False

    def __enter__(self) -> None:
        if not self._threads.acquire(timeout=_PATIENCE):
            raise _busy(self._folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock_programs_out()
        except BaseException:
            self._threads.release()
            raise

    def _lock_programs_out(self) -> None:
        if self._has_no_locks:
            return
        try:
            self._acquire()
        except Timeout as error:
            raise _busy(self._folder) from error
        except (OSError, NotImplementedError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
                raise
            self._has_no_locks = True
            logger.info("remora: %s cannot be locked against other programs: %s", self._folder, error)

    def _acquire(self) -> None:
        try:
            self._programs.acquire(timeout=0)
        except Timeout:
            _try_to_share(self._folder / LOCK_FILE)  # old versions of filelock wait where a drive has no locks
            self._programs.acquire(timeout=_PATIENCE, poll_interval=_PAUSE)

    def __exit__(self, *_: object) -> None:
        self._programs.release()  # does nothing where the file system has no locks
        self._threads.release()


_LOCKS: dict[Path, _FolderLock] = {}


def _try_to_share(path: Path) -> None:
    """Try to lock a file for reading, and release it again; do nothing if another holds it, or on Windows.

    Raises:
        OSError: it cannot be locked.
    """
    if os.name == "nt":
        return
    import fcntl

    with path.open("rb") as stream, suppress(BlockingIOError):
        fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _busy(folder: Path) -> OSError:
    return TimeoutError(errno.ETIMEDOUT, "another program has been changing it for long; try again", str(folder))


def _stamp_of(path: Path) -> _Stamp:
    """Return a stamp that differs between two states of a file; each replacement is another file."""
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in count(1))
    return next(name for name in names if not os.path.lexists(name))


_CHUNK = 1 << 20  # bytes


def write_text(path: Path, text: str) -> None:
    """Replace a file, and make its folder if needed; a lone surrogate becomes `?`.

    Raises:
        OSError: the file cannot be written; the previous one stays.
    """
    write_bytes(path, text.encode("utf-8", "replace"))


def write_bytes(path: Path, content: bytes, *, lasting: bool = True) -> None:
    """Replace a file, and make its folder if needed. If the path is a link, the file it points to is replaced.

    Args:
        path: of the file.
        content: all of it.
        lasting: wait until the content would survive a power cut.

    Raises:
        OSError: the file cannot be written; the previous one stays.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = _mode_of(path)
    new = path.with_name(f".remora-{secrets.token_hex(8)}.tmp")  # short, as the file's own name may be of full length

    def made(name: str, flags: int) -> int:
        # a new file has the mode that the system gives to any; a copy of a private one is private from the beginning
        return os.open(name, flags, 0o666 if mode is None else 0o600)

    try:
        with open(new, "xb", opener=made) as stream:  # Path.open takes no opener
            stream.write(content)
            if lasting:
                stream.flush()
                os.fsync(stream.fileno())
        if mode is not None and os.name != "nt":
            new.chmod(mode)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def read_bytes(path: Path, at_most: int) -> bytes:
    """Read a regular file. A pipe would block for ever, and a device may have no end.

    Args:
        path: of the file, or of a link to it.
        at_most: bytes; hardly more are read, whatever size the file claims.

    Raises:
        OSError: the file cannot be read, or is no regular file.
        ValueError: the file has more bytes.
    """
    content = bytearray()
    with open_regular(path) as stream:
        while chunk := stream.read(_CHUNK):
            content += chunk
            if len(content) > at_most:
                raise _too_large(path, at_most)
    return bytes(content)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file without waiting: another program may put a pipe in its place at any time.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    if stat.S_ISREG(path.stat().st_mode):
        stream = open(path, "rb", opener=_without_waiting)  # noqa: SIM115  # it is returned
        if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            return stream
        stream.close()
    raise _irregular(path)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _too_large(path: Path, at_most: int) -> ValueError:
    return ValueError(f"{path.name} has more than the {at_most:,} bytes that such a file may have")


def _mode_of(path: Path) -> int | None:
    """Return the permissions of a file, or None if there is no file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise _irregular(path)
    return stat.S_IMODE(mode) & 0o777


def _irregular(path: Path) -> OSError:
    return OSError(errno.EINVAL, "it is a folder, a pipe or a device, not a regular file", str(path))
