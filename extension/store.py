"""Files that several threads and programs read and change, and that people edit: locked, bounded, replaced at once.

A change reads the file anew, so it never undoes what another one did. Nothing is written over a file that could not be
read: a damaged one gets another name first, with a number of its own, and stays. A reader finds the old file or the new
one, and reads no more than its bound.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

logger = logging.getLogger(__name__)


if sys.platform == "win32":
    import hashlib
    import msvcrt
    import tempfile
else:
    import fcntl


_T = TypeVar("_T")
_Stamp: TypeAlias = tuple[int, ...]
_PATIENCE = 10.0  # seconds that another thread or program may take for its change
_PAUSE = 0.002  # seconds between two attempts to lock


@dataclass(frozen=True)
class _State(Generic[_T]):
    """A file as it was last read."""

    stamp: _Stamp | None
    value: _T
    error: Exception | None = None


class FileValue(Generic[_T]):
    """A value that is read from a file, and again when the file has changed.

    Args:
        path: of the file; asked when it is needed. None is no file at all.
        what: the file holds, for messages.
        empty: the value where there is no file, or one that is damaged or was never read.
        read: makes the value of the file's content; raises ValueError or RecursionError where it is damaged.
        at_most: bytes that the file may have.
    """

    def __init__(
        self, path: Callable[[], Path | None], what: str, empty: _T, read: Callable[[bytes], _T], at_most: int
    ) -> None:
        self._path = path
        self._what = what
        self._read = read
        self._at_most = at_most
        self._empty = empty
        self._state = _State(None, empty)
        self._logged = ""

    @property
    def value(self) -> _T:
        """The value as the file has it now; other threads have the same object, so it must not be changed.

        A file that cannot be read is said in the log.
        """
        state = self._look()
        text = "" if state.error is None else self._sentence(state.error)
        if text and text != self._logged:
            logger.warning("remora: %s", text)
        self._logged = text
        return state.value

    @property
    def problem(self) -> str:
        """Why the file cannot be read and what to do, as one sentence; nothing where it can."""
        error = self._look().error
        return "" if error is None else self._sentence(error)

    def _sentence(self, error: Exception) -> str:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        return f"{self._path()} cannot be read as {self._what} ({why}); {self._advice(error)}"

    def _advice(self, error: Exception) -> str:
        return "mend it or move it away"

    def _look(self, *, anew: bool = False) -> _State[_T]:
        """Return the file's state; it is read where it has changed, or in any case."""
        path = self._path()
        if path is None:
            return self._state
        try:
            stamp = _stamp_of(path)
        except FileNotFoundError:
            self._state = state = _State(None, self._empty)
            return state
        except OSError as error:
            return self._failed(None, error)
        state = self._state
        if anew or stamp != state.stamp:
            try:
                self._state = state = _State(stamp, self._read(read_bytes(path, self._at_most)))
            except FileNotFoundError:  # it went since
                self._state = state = _State(None, self._empty)
            except OSError as error:
                return self._failed(None, error)  # it may do better next time
            except (ValueError, RecursionError) as error:
                return self._failed(stamp, error)
        return state

    def _failed(self, stamp: _Stamp | None, error: Exception) -> _State[_T]:
        # a drive that does not answer has not lost what was read from it
        value = self._state.value if isinstance(error, OSError) else self._empty
        self._state = state = _State(stamp, value, error)
        return state


class Store(FileValue[_T]):
    """A value that is kept in a file, and changed by several threads and programs.

    Args:
        path: of the file; asked when it is needed. None keeps the value only as long as the program runs.
        what: is kept, for messages.
        empty: the value where there is no file, or one that is damaged or was never read.
        read: makes the value of the file's content; raises ValueError or RecursionError where it is damaged.
        write: makes the content of the value.
        at_most: bytes that the file may have.
        shared: other programs keep things of their own in the file. Where it is damaged, it is left to the user.
        refusal: is raised where a new value could not be read back.
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
        """Excludes other threads where there is no file."""

    def lock(self) -> AbstractContextManager[object]:
        """Keep other threads and programs from changing the file in a `with` statement.

        Raises:
            OSError: another one has it for long, or the folder cannot be made.
        """
        path = self._path()
        return self._alone if path is None else locked(Path(os.path.realpath(path)).parent)

    def change(self, make: Callable[[_T], _T]) -> _T:
        """Keep another value, made of the one that the file has now.

        Args:
            make: returns the new value. Where it raises, nothing is changed.

        Raises:
            OSError: the file cannot be read or written; it is as before.
            ValueError: the file is shared and damaged; it is as before.
            ValueError: the new value could not be read back, so all is as before; it is of the type `refusal`.
        """
        with self.lock():
            state = self._look(anew=True)
            if isinstance(state.error, OSError) or (state.error is not None and self._shared):
                raise state.error  # nothing is written over what could not be read
            value = make(state.value)
            path = self._path()
            if path is None:
                self._state = _State(None, value)
                return value
            content = self._content(path, value)
            if state.error is not None:
                aside = set_aside(path)
                logger.warning("remora: %s is kept as %s", path, aside.name)
            write_bytes(path, content)
            self._state = _State(None, value)  # without a stamp it is read again, should others have written since
            return value

    def _content(self, path: Path, value: _T) -> bytes:
        """Return what the file gets; a content that the next look would call damaged is never written."""
        try:
            content = self._write(value)
            if len(content) > self._at_most:
                raise _too_large(path, self._at_most)
            self._read(content)
        except (ValueError, RecursionError) as error:
            why = f"{self._what} cannot be kept, as {path.name} could not be read again"
            raise self._refusal(f"{why} ({error}); all is as before") from error
        return content

    def _advice(self, error: Exception) -> str:
        if isinstance(error, OSError):
            return "nothing is kept there until it can be read"
        if self._shared:
            return super()._advice(error)
        path = self._path()
        assert path is not None, "what is kept in no file is not damaged"
        return f"the next change keeps it as {_free_name(Path(os.path.realpath(path))).name} and begins anew"


def set_aside(path: Path) -> Path:
    """Give a damaged file the first free name of `NAME.damaged-1`, `NAME.damaged-2`, ..., and return that.

    Raises:
        OSError: it cannot be renamed.
    """
    real = Path(os.path.realpath(path))  # a link stays, and gets a new file
    with locked(real.parent):
        return real.rename(_free_name(real))


def one_problem(problems: Iterable[str]) -> str:
    """Return the problems of several files as one sentence: the first, and how many more files have one."""
    first, *more = [*filter(None, problems)] or [""]
    files = "1 more file has a problem" if len(more) == 1 else f"{len(more)} more files have problems"
    return f"{first}; {files}" if more else first


def json_bytes(data: Any, indent: int) -> bytes:
    """Write JSON as UTF-8; a text with half a character (a lone surrogate), which has no UTF-8, as JSON's escapes."""
    try:
        return json.dumps(data, ensure_ascii=False, indent=indent).encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(data, indent=indent).encode("ascii")


def locked(folder: Path) -> AbstractContextManager[object]:
    """Exclude other threads, and programs that do the same, from changes in a folder; a thread may do so repeatedly.

    Raises:
        OSError: another one has it for long, or the folder cannot be made.
    """
    return _LOCKS.setdefault(folder, _FolderLock(folder))


class _FolderLock:
    """The lock of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._threads = threading.RLock()
        self._depth = 0
        self._handle: int | None = None

    def __enter__(self) -> None:
        if not self._threads.acquire(timeout=_PATIENCE):
            raise _busy(self._folder)
        try:
            if not self._depth:
                self._handle = _lock_programs_out(self._folder)
        except BaseException:
            self._threads.release()
            raise
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth and self._handle is not None:
            os.close(self._handle)  # which releases it, as the end of the process does
            self._handle = None
        self._threads.release()


_LOCKS: dict[Path, _FolderLock] = {}


def _lock_programs_out(folder: Path) -> int | None:
    """Return the handle that holds the lock; None on a file system that knows no locks."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = _opened(folder)
    until = time.monotonic() + _PATIENCE
    try:
        while not _try_lock(handle):
            if time.monotonic() > until:
                raise _busy(folder)
            time.sleep(_PAUSE)
    except OSError as error:
        os.close(handle)
        if error.errno not in _NO_LOCKS:
            raise
        logger.info("remora: %s cannot be locked against other programs: %s", folder, error.strerror)
        return None
    return handle


def _busy(folder: Path) -> OSError:
    return TimeoutError(errno.ETIMEDOUT, "another program has been changing it for long; try again", str(folder))


_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF, errno.EISDIR})
"""Errors of file systems without locks, as those of some network drives."""

if sys.platform == "win32":  # folders cannot be opened there

    def _opened(folder: Path) -> int:
        name = hashlib.sha256(os.path.normcase(folder).encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return os.open(Path(tempfile.gettempdir()) / f"remora-{name}.lock", os.O_RDWR | os.O_CREAT)

    def _try_lock(handle: int) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:  # the folder itself, so that nothing is left lying in it

    def _opened(folder: Path) -> int:
        return os.open(folder, os.O_RDONLY)

    def _try_lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _stamp_of(path: Path) -> _Stamp:
    """What differs between two states of a file. Each replacement is another file, whatever its time and size."""
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in count(1))
    return next(name for name in names if not os.path.lexists(name))


_CHUNK = 1 << 20  # bytes


def write_text(path: Path, text: str) -> None:
    """Replace a file, and make its folder where there is none; half a character (a lone surrogate) becomes `?`.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    write_bytes(path, text.encode("utf-8", "replace"))


def write_bytes(path: Path, content: bytes, *, lasting: bool = True) -> None:
    """Replace a file, and make its folder where there is none. A link stays, and the file that it names is replaced.

    Args:
        path: of the file.
        content: all of it.
        lasting: wait until it would outlive a power cut, too.

    Raises:
        OSError: it cannot be written; what was there stays.
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
        path: of the file; may be a link to one.
        at_most: bytes. Hardly more are read, whatever size the file claims to have.

    Raises:
        OSError: it cannot be read, or it is no regular file.
        ValueError: it has more bytes.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise _irregular(path)
    content = bytearray()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            content += chunk
            if len(content) > at_most:
                raise _too_large(path, at_most)
    return bytes(content)


def _too_large(path: Path, at_most: int) -> ValueError:
    return ValueError(f"{path.name} has more than the {at_most:,} bytes that such a file may have")


def _mode_of(path: Path) -> int | None:
    """Who may read and write it; None where there is no file."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise _irregular(path)
    return stat.S_IMODE(mode) & 0o777


def _irregular(path: Path) -> OSError:
    return OSError(errno.EINVAL, "it is a folder, a pipe or a device, and no regular file", str(path))
