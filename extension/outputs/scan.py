"""Fills the index of pictures in the background, and follows new, changed and deleted files."""

from __future__ import annotations

import logging
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..library.scan import Progress
from ..library.walk import ScanStoppedError, is_text
from .embedded import SUFFIXES, DamagedError, Embedded, read_embedded
from .index import PictureFile, PictureIndex
from .uses import Uses, read_uses

logger = logging.getLogger(__name__)

MOST = 500_000
"""Pictures and folders that one scan goes through."""
_TOGETHER = 200  # pictures that are stored at once
_LATER = 10.0  # seconds after a start, in which the web UI loads its model
_SETTLED = 2.0  # seconds after which nobody writes into a file any more; also how coarse the times of a folder may be
_OFTEN = 5.0  # seconds between two scans while pages ask
_RETRY = 30.0  # seconds after a scan that failed
_REST = 0.5  # seconds of rest for each second of work
_SLICE = 0.05  # seconds of work between two rests
_PATIENCE = 10.0  # seconds that the thread has to stop
_NAMED = 1000  # files that the log names


@dataclass(frozen=True)
class _Folder:
    """One folder as a scan found it."""

    path: str
    mtime_ns: int
    below: tuple[str, ...]
    """The folders in it."""
    count: int
    """Pictures in it."""


@dataclass
class _Walk:
    """What one scan found."""

    folders: set[str] = field(default_factory=set)
    changed: list[_Folder] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    """Folders that cannot be read now: their drive may be away."""
    seen: int = 0
    problem: str = ""


class Outputs:
    """Keeps an index up to date with the pictures below some folders, on its own thread.

    It follows no link, and stays on the disk of each folder. It rests while a picture is made.

    Args:
        folders: returns the folders; called at every scan.
        data_dir: returns the folder of the index; None keeps none, and reads nothing.
        is_busy: tells whether a picture is being made.
    """

    def __init__(
        self,
        folders: Callable[[], Sequence[Path]],
        data_dir: Callable[[], Path | None],
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._folders = folders
        self._data_dir = data_dir
        self._is_busy = is_busy
        self._made = threading.Lock()
        self._index: PictureIndex | None = None
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._asked = threading.Event()
        self._idle = threading.Event()
        """Set while the index is up to date."""
        self._due = math.inf
        """When the next scan begins."""
        self._last_due = 0.0
        self._scanned = -math.inf
        self._rested = 0.0
        self._remembered: dict[str, _Folder] = {}
        """Folders that did not change since they were read."""
        self._told: set[Path] = set()
        self._progress = Progress()
        self.problem = ""
        """One sentence if there are more pictures than a scan goes through."""

    @property
    def progress(self) -> Progress:
        """Return how far the pictures are read; it is running, too, while a scan is due."""
        is_behind = self._thread is not None and not self._idle.is_set()
        return replace(self._progress, running=self._progress.running or is_behind)

    @property
    def index(self) -> PictureIndex | None:
        """Return the index; None without a folder for it."""
        with self._made:
            if self._index is None and (folder := self._data_dir()) is not None:
                self._index = PictureIndex(folder)
            return self._index

    def tops(self) -> list[str]:
        """Return the folders, without links, and none of them within another."""
        found = dict.fromkeys(os.path.realpath(one) for one in self._folders())
        return [one for one in found if not any(_is_below(one, other) for other in found if other != one)]

    def start(self) -> None:
        """Start the thread, unless it is running or there is no index."""
        if self._thread is None and self.index is not None:
            self._stopped.clear()
            self._thread = threading.Thread(target=self._run, name="remora-pictures", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop the thread, and wait for it; a drive that does not answer is not waited for."""
        self._stopped.set()
        self._asked.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE)
            self._thread = None

    def ask(self, seconds: float = 0.0) -> None:
        """Look through the folders in some seconds: there may be new pictures."""
        due = time.monotonic() + seconds
        with self._made:
            self._idle.clear()
            self._due = min(self._due, due)
            self._last_due = max(self._last_due, due)
        self._asked.set()

    def look(self) -> None:
        """Look through the folders, unless that was done lately: a client shows the pictures."""
        if time.monotonic() - self._scanned > _OFTEN:
            self.ask()

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` until all pictures are read; tell whether they are."""
        return self._idle.wait(seconds)

    def present(self, picture: PictureFile) -> bool:
        """Tell whether a picture is still the file that was read, below one of the folders and behind no link."""
        path = str(picture.path)
        try:
            stat = picture.path.stat(follow_symlinks=False)
        except OSError:
            return False
        same = (stat.st_size, stat.st_mtime_ns) == (picture.size, picture.mtime_ns)
        return same and os.path.realpath(path) == path and any(_is_below(path, top) for top in self.tops())

    def shown(self, picture: PictureFile) -> str:
        """Return the path of a picture below its output folder."""
        for top in self.tops():
            with suppress(ValueError):
                return picture.path.relative_to(top).as_posix()
        return picture.name

    def _run(self) -> None:
        self.ask(_LATER)
        while not self._stopped.is_set():
            self._asked.clear()
            left = self._due - time.monotonic()
            if left <= 0:
                self._scan_or_say()
            else:
                self._asked.wait(min(left, threading.TIMEOUT_MAX))

    def _scan_or_say(self) -> None:
        """Scan; ask for another scan if that is needed."""
        with self._made:  # files that come from now on are not due
            self._due = self._last_due if self._last_due > time.monotonic() else math.inf
        try:
            if self.scan():
                self.ask(_SETTLED)
        except ScanStoppedError:
            return
        except (OSError, sqlite3.Error) as error:
            logger.info("remora: the output folders are looked through again later: %s", error)
            self.ask(_RETRY)
        except Exception:  # the next scan may succeed
            logger.exception("remora: the output folders could not be looked through")
        finally:
            self._progress = Progress()
            self._scanned = time.monotonic()
        with self._made:
            if self._due == math.inf:
                self._idle.set()

    def scan(self) -> bool:
        """Look through the folders now; tell whether some files are too new to be read.

        Raises:
            ScanStoppedError: it was stopped; what was read is stored.
            OSError: the index cannot be written.
            sqlite3.Error: likewise.
        """
        index = self.index
        if index is None:
            return False
        self._rested = time.monotonic()
        if not index.count():  # it may have begun again
            self._remembered.clear()
        walked = self._walk()
        if walked.problem and walked.problem != self.problem:
            logger.warning("remora: %s", walked.problem)
        self.problem = walked.problem
        again = self._read_all(index, walked.changed)
        if not walked.problem:  # or what is there would be forgotten
            for folder in index.folders():
                if folder not in walked.folders and not any(_is_below(folder, one) for one in walked.closed):
                    index.forget_folder(folder)
                    self._rest()
        return again

    def _read_all(self, index: PictureIndex, changed: Sequence[_Folder]) -> bool:
        """Read the changed folders, the latest first; tell whether some files are too new."""
        total, done, again = sum(folder.count for folder in changed), 0, False
        for folder in sorted(changed, key=lambda one: one.mtime_ns, reverse=True):
            self._progress = Progress(True, done, total)
            is_settled = self._read_folder(index, folder, done, total)
            done += folder.count
            again |= not is_settled
            if is_settled:
                self._remembered[folder.path] = folder
            else:
                self._remembered.pop(folder.path, None)
        return again

    def _walk(self) -> _Walk:
        """Find the folders, and those that changed."""
        found, own = _Walk(), self._data_dir()
        left_out = None if own is None else os.path.realpath(own)
        waiting: list[tuple[str, int | None]] = [(top, None) for top in reversed(self.tops())]
        while waiting and not found.problem:
            path, disk = waiting.pop()
            self._rest()
            try:
                stat = Path(path).stat(follow_symlinks=False)
                if path == left_out or (disk is not None and stat.st_dev != disk):
                    continue
                folder = self._remembered.get(path)
                if folder is None or folder.mtime_ns != stat.st_mtime_ns:
                    folder = _listed(path, stat.st_mtime_ns)
                    found.changed.append(folder)
            except OSError as error:
                if not isinstance(error, FileNotFoundError):  # a web UI makes its folders with the first picture
                    self._leave_out(Path(path), error.strerror or str(error))
                found.closed.append(path)
                continue
            found.folders.add(path)
            found.seen += 1 + folder.count
            waiting += [(str(Path(path, name)), stat.st_dev) for name in folder.below]
            if found.seen > MOST:
                found.problem = (
                    f"the output folders have more than {MOST:,} pictures and folders, so the pictures in {path} and "
                    "others are left out; move some of them elsewhere"
                )
        return found

    def _read_folder(self, index: PictureIndex, folder: _Folder, done: int, total: int) -> bool:
        """Read the new pictures of one folder, the latest first; tell whether all of its files are settled."""
        known = index.known(folder.path)
        now = time.time()
        is_settled = not 0 <= now - folder.mtime_ns / 1e9 < _SETTLED
        new = []
        for name, size, mtime_ns in _files(folder.path):
            self._rest()
            former = known.pop(name, None)
            if former is not None and former[:2] == (size, mtime_ns):
                done += 1
            elif 0 <= now - mtime_ns / 1e9 < _SETTLED:
                is_settled = False
            else:
                new.append((mtime_ns, name, size))
        new.sort(reverse=True)
        index.change((), [number for *_, number in known.values()])
        for begin in range(0, len(new), _TOGETHER):
            some = new[begin : begin + _TOGETHER]
            try:
                pictures = [self._read(folder.path, *one) for one in some]
            finally:
                self._progress = Progress(True, done + begin, total)
            index.change(pictures, ())
        return is_settled

    def _read(self, folder: str, mtime_ns: int, name: str, size: int) -> PictureFile:
        """Read one picture; a damaged one has no LoRA."""
        self._rest()
        found, uses, path = Embedded(), Uses(), Path(folder, name)
        try:
            found = read_embedded(path)
            uses = read_uses(found.text)
        except DamagedError as error:
            self._leave_out(path, str(error))
        except OSError as error:
            self._leave_out(path, error.strerror or str(error))
        except Exception as error:  # one bad file must not stop the scan
            logger.exception("remora: the parameters of a picture cannot be read")
            self._leave_out(path, repr(error)[:300])
        return PictureFile(folder, name, size, mtime_ns, found.width, found.height, uses)

    def _leave_out(self, path: Path, why: str) -> None:
        """Log it once, as the folders are looked through again and again."""
        if path not in self._told and len(self._told) < _NAMED:
            self._told.add(path)
            logger.warning("remora: the LoRA of %s are not known: %s", path, why)

    def _rest(self) -> None:
        """Leave the computer to others: a while after each slice of work, and all of it while a picture is made.

        Raises:
            ScanStoppedError: the thread is to stop.
        """
        if self._stopped.is_set():
            raise ScanStoppedError
        worked = time.monotonic() - self._rested
        if worked < _SLICE:
            return
        self._stopped.wait(worked * _REST)
        while self._is_busy() and not self._stopped.is_set():
            self._stopped.wait(0.5)
        self._rested = time.monotonic()


def _listed(path: str, mtime_ns: int) -> _Folder:
    """List one folder."""
    below, count = [], 0
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_symlink() or not is_text(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.name)
            elif _is_picture(entry.name):
                count += 1
    return _Folder(path, mtime_ns, tuple(sorted(below)), count)


def _files(path: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, size and time of each picture of one folder."""
    with os.scandir(path) as entries:
        for entry in entries:
            if _is_picture(entry.name) and entry.is_file(follow_symlinks=False) and is_text(entry.name):
                try:
                    stat = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # deleted meanwhile
                    continue
                yield entry.name, stat.st_size, stat.st_mtime_ns


def _is_picture(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _is_below(path: str, folder: str) -> bool:
    """Tell whether a path is a folder, or anything in it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
