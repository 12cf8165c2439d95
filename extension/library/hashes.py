"""The hashes of the LoRA files: each file is read once, in the background where nobody has to wait for it."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Protocol, TypeAlias

from ..store import open_regular
from .index import Index, Row
from .walk import CatalogFile

logger = logging.getLogger(__name__)

HASH_LENGTH = 12
"""Hex digits of a hash, as shown in "Lora hashes"."""
_CHUNK = 1 << 20  # bytes
_READ_AT_MOST = 4 << 30  # bytes of the files that wait to be hashed
_TRIED_AGAIN = 300.0  # seconds after which a file that could not be read whole is tried again


class HashStopped(Exception):  # noqa: N818  # a way out, not an error
    """The work is to end before the file does."""


def _never() -> bool:
    return False


Stop: TypeAlias = Callable[[], bool]
HashOf: TypeAlias = Callable[[CatalogFile, Stop], str]
"""Returns a hash of a file; may raise once the other function says that it is to stop."""


class Rows(Protocol):
    """The data of the files."""

    @property
    def index(self) -> Index:
        """Return the index, which keeps the hashes."""

    def row(self, file: CatalogFile) -> Row:
        """Return the row of one of the files."""


class Hashes:
    """Hashes files, and keeps the results in the index."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._closing = threading.Event()
        self._waiting: dict[tuple[HashOf, CatalogFile], Future[str]] = {}
        """Files to hash, or being hashed."""
        self._unreadable: dict[CatalogFile, float] = {}
        """Files that could not be read for their hash, and the time of the attempt."""

    def short(self, file: CatalogFile, stop: Stop = _never) -> str:
        """Return 12 hex digits of the SHA-256 of everything after the header, as "Lora hashes" has it.

        Raises:
            OSError: the file cannot be read.
        """
        known = self._rows.row(file).shorthash
        if not known:
            known = hash_from(file.path, _end_of_header(file.path), stop)[:HASH_LENGTH]
            self._rows.index.change(file, shorthash=known)
        return known

    def known(self, file: CatalogFile, stop: Stop = _never) -> str:
        """Return the hash that the trainer stored if it is credible, else `short`.

        Raises:
            OSError: the file cannot be read.
        """
        facts = self._rows.row(file).facts
        return (facts is not None and facts.stored_hash) or self.short(file, stop)

    def sha256(self, file: CatalogFile, stop: Stop = _never) -> str:
        """Return the SHA-256 of the whole file, in hex digits.

        Raises:
            OSError: the file cannot be read.
        """
        known = self._rows.row(file).sha256
        if not known:
            known = hash_from(file.path, 0, stop)
            self._rows.index.change(file, sha256=known)
        return known

    def are_equal(self, files: Sequence[CatalogFile]) -> bool:
        """Tell whether files have the same bytes; files of one size are read whole, once."""
        if not all(file.readable for file in files) or len({file.size for file in files}) > 1:
            return False
        hashes = {self._tried(self.sha256, file, _never) for file in files}
        return len(hashes) == 1 and "" not in hashes

    # --- in the background, one file at a time ---

    def later(self, file: CatalogFile) -> None:
        """Hash a file as `known` does."""
        if not self._is_unreadable(file):
            self._submit(self.known, file)

    def some_later(self, files: Iterable[CatalogFile]) -> int:
        """Hash files, up to some gigabytes; return how many wait for it."""
        if waiting := len(self._waiting):  # a prompt may have many names that look like hashes
            return waiting
        worth = self._worth_reading(files)
        for file in worth:
            self._submit(self.known, file)
        return len(worth)

    def find(
        self,
        hash_of: HashOf,
        files: Iterable[CatalogFile],
        digest: str,
        seconds: float,
        likely: CatalogFile | None = None,
    ) -> CatalogFile | None:
        """Hash files, up to some gigabytes, until one has a hash that starts with `digest`, or the time is over.

        The thread goes on, so a later call finds what this one has no time for.
        """
        until = time.monotonic() + seconds
        jobs = {self._submit(hash_of, file): file for file in self._worth_reading(files, likely)}
        waiting = set(jobs)
        while waiting and (left := until - time.monotonic()) > 0:
            done, waiting = wait(waiting, left, FIRST_COMPLETED)
            for job in done:
                if not job.cancelled() and job.result().startswith(digest):
                    return jobs[job]
        return None

    @property
    def is_busy(self) -> bool:
        """Return whether files wait to be hashed."""
        return bool(self._waiting)

    def close(self) -> None:
        """Stop the thread, in the middle of a large file, too."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._closing.set()
            thread.shutdown(wait=True, cancel_futures=True)
            self._closing.clear()
        with self._lock:
            self._waiting.clear()

    def _submit(self, hash_of: HashOf, file: CatalogFile) -> Future[str]:
        with self._lock:
            known = self._waiting.get((hash_of, file))
            if known is not None:
                return known
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "remora-hash")
            job = self._waiting[hash_of, file] = self._thread.submit(self._in_thread, hash_of, file)
            return job

    def _in_thread(self, hash_of: HashOf, file: CatalogFile) -> str:
        try:
            return self._tried(hash_of, file, self._closing.is_set)
        except HashStopped:
            return ""
        finally:
            with self._lock:
                self._waiting.pop((hash_of, file), None)

    def _worth_reading(self, files: Iterable[CatalogFile], likely: CatalogFile | None = None) -> list[CatalogFile]:
        """Return files to hash: the likely one, then others by size, up to some gigabytes."""
        left, worth = _READ_AT_MOST, []
        for file in sorted(files, key=lambda one: (one != likely, one.size)):
            if self._is_unreadable(file):
                continue
            left -= file.size
            if left < 0 and file != likely:
                break
            worth.append(file)
        return worth

    def _tried(self, hash_of: HashOf, file: CatalogFile, stop: Stop) -> str:
        """Return a hash of a file, or an empty text if it cannot be read, which is logged once."""
        try:
            found = hash_of(file, stop)
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


def _end_of_header(path: Path) -> int:
    """Return the offset of a file's tensors.

    Raises:
        OSError: the file cannot be read, or nothing follows its header.
    """
    with open_regular(path) as stream:
        end = 8 + int.from_bytes(stream.read(8), "little")
        if end > os.fstat(stream.fileno()).st_size:
            raise OSError(errno.EINVAL, "it is shorter than its header says that the header is", str(path))
    return end


def hash_from(path: Path, start: int, stop: Stop = _never) -> str:
    """Return the SHA-256 of a file from some byte on, in hex digits.

    Raises:
        OSError: the file cannot be read.
        HashStopped: `stop` said so.
    """
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        stream.seek(start)
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            if len(chunk) == _CHUNK and stop():
                raise HashStopped
    return digest.hexdigest()
