"""What is known of each file, kept in a database beside the host's settings: a later start reads no header again.

It is a cache, but for when a file was first seen and last used: what people note is kept beside the files.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .facts import Facts
from .notes import Notes
from .walk import CatalogFile

logger = logging.getLogger(__name__)

_VERSION = 1  # of the table
_NAME = "catalog.sqlite3"
_TABLE = """
CREATE TABLE file (
    path TEXT PRIMARY KEY, relative TEXT NOT NULL, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, name TEXT NOT NULL,
    facts TEXT, beside TEXT NOT NULL, notes TEXT, picture TEXT,
    shorthash TEXT NOT NULL, sha256 TEXT NOT NULL, added REAL NOT NULL, used REAL NOT NULL, uses INTEGER NOT NULL
) WITHOUT ROWID
"""
_COLUMNS = [
    *("path", "relative", "size", "mtime_ns", "name", "facts", "beside", "notes", "picture"),
    *("shorthash", "sha256", "added", "used", "uses"),
]
_PUT = f"INSERT OR REPLACE INTO file ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_TIMEOUT = 30  # seconds that another process may hold the database


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one file."""

    file: CatalogFile
    name: str = ""
    """By which tags find it: the shortest that is its own."""
    facts: Facts | None = None
    """None until its header was read."""
    beside: str = ""
    """`walk.Found.stamp` when the notes were read."""
    notes: Notes | None = None
    picture: Path | None = None
    shorthash: str = ""
    sha256: str = ""
    added: float = 0.0
    """When it was first seen, in seconds since 1970."""
    used: float = 0.0
    """When a picture was last made with it; 0 is never."""
    uses: int = 0
    revision: int = 0
    """Of the index, when this row was last changed."""

    @property
    def complete(self) -> bool:
        """Whether everything that a list shows was read."""
        return self.facts is not None and self.notes is not None


class Index:
    """Rows by path; may be used by several threads.

    Args:
        folder: where the database is kept, which need not be there; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / _NAME
        self._lock = threading.RLock()
        self._rows: dict[Path, Row] = {}
        self._by_id: dict[str, Path] = {}
        self._gone: dict[str, int] = {}
        """Ids of files that went, and the revision at which they did."""
        self._unsaved: set[Path] = set()
        self.revision = 0
        """Grows with every change."""
        self.problem = ""
        """One sentence where nothing can be kept."""
        self._load()

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> list[Row]:
        """Return all rows."""
        with self._lock:
            return list(self._rows.values())

    def get(self, file: CatalogFile) -> Row | None:
        """Return the row of a file as it is on disk now; None where it is another than was read."""
        row = self._rows.get(file.path)
        return row if row is not None and _same(row.file, file) else None

    def with_id(self, wanted: str) -> Row | None:
        """Return the row of the file with an id; None where there is none."""
        path = self._by_id.get(wanted)
        return None if path is None else self._rows.get(path)

    def since(self, revision: int) -> tuple[list[Row], list[str]]:
        """Return the rows that were changed after a revision, and the ids of the files that went."""
        with self._lock:
            rows = [row for row in self._rows.values() if row.revision > revision]
            return rows, [one for one, at in self._gone.items() if at > revision]

    def change(self, file: CatalogFile, **values: Any) -> Row:
        """Set fields of a file's row; a file that is another than before keeps when it was added and used."""
        with self._lock:
            former = self._rows.get(file.path)
            if former is None:
                row = Row(file, added=time.time())
            elif _same(former.file, file):
                row = replace(former, file=file)
            else:
                row = Row(file, former.name, added=former.added, used=former.used, uses=former.uses)
            return self._put(replace(row, **values))

    def keep_only(self, files: Iterable[CatalogFile]) -> None:
        """Forget files that are no longer there; one that has only moved is known at its new place."""
        with self._lock:
            present = {file.path: file for file in files}
            gone = {path: row for path, row in self._rows.items() if path not in present}
            by_look = {_look(row.file): row for row in gone.values()}
            for path, file in present.items():
                if path not in self._rows and (moved := by_look.get(_look(file))) is not None:
                    self._put(replace(moved, file=file, beside="", notes=None))
            self.revision += bool(gone)
            for path, row in gone.items():
                del self._rows[path]
                self._by_id.pop(row.file.id, None)
                self._unsaved.add(path)
                self._gone[row.file.id] = self.revision

    def save(self) -> None:
        """Write what changed since the last time."""
        with self._lock:
            unsaved, self._unsaved = self._unsaved, set()
            if self._path is None or not unsaved:
                return
            rows = [_to_columns(row) for path in unsaved if (row := self._rows.get(path)) is not None]
            gone = [(str(path),) for path in unsaved if path not in self._rows]
        try:
            with self._opened() as database:
                database.executemany(_PUT, rows)
                database.executemany("DELETE FROM file WHERE path = ?", gone)
            self.problem = ""
        except (sqlite3.Error, OSError, UnicodeEncodeError) as error:
            self._complain(f"what is known of the LoRA files cannot be kept in {self._path}: {error}")

    def _put(self, row: Row) -> Row:
        self.revision += 1
        row = replace(row, revision=self.revision)
        self._rows[row.file.path] = row
        self._by_id[row.file.id] = row.file.path
        self._gone.pop(row.file.id, None)
        self._unsaved.add(row.file.path)
        return row

    def _load(self) -> None:
        if self._path is None or not self._path.is_file():
            return
        try:
            with self._opened() as database:
                for values in database.execute(f"SELECT {', '.join(_COLUMNS)} FROM file"):
                    row = _from_columns(dict(zip(_COLUMNS, values, strict=True)))
                    self._rows[row.file.path] = row
            self.revision = 1
            self._rows = {path: replace(row, revision=1) for path, row in self._rows.items()}
            self._by_id = {row.file.id: path for path, row in self._rows.items()}
        except (sqlite3.Error, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self._rows = {}
            self._complain(f"{self._path} cannot be read ({error}), so all LoRA files are read again")
            self._start_anew()

    def _opened(self) -> _Database:
        assert self._path is not None
        return _Database(self._path)

    def _start_anew(self) -> None:
        assert self._path is not None
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            self._complain(f"{self._path} is damaged and cannot be removed: {error.strerror or error}")

    def _complain(self, text: str) -> None:
        if text != self.problem:
            logger.warning("remora: %s", text)
        self.problem = text


class _Database:
    """The database for one piece of work, which is done whole or not at all."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(path, timeout=_TIMEOUT)

    def __enter__(self) -> sqlite3.Connection:
        database = self._connection
        try:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version != _VERSION:
                database.execute("DROP TABLE IF EXISTS file")
                database.execute(_TABLE)
                database.execute(f"PRAGMA user_version = {_VERSION}")
        except BaseException:
            database.close()
            raise
        return database

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._connection.commit()
        finally:
            self._connection.close()


def _same(one: CatalogFile, other: CatalogFile) -> bool:
    return (one.size, one.mtime_ns) == (other.size, other.mtime_ns)


def _look(file: CatalogFile) -> tuple[str, int, int]:
    """What stays when a file is moved to another folder."""
    return file.path.name, file.size, file.mtime_ns


def _to_columns(row: Row) -> tuple[Any, ...]:
    file = row.file
    return (
        str(file.path),
        file.relative,
        file.size,
        file.mtime_ns,
        row.name,
        None if row.facts is None else json.dumps(row.facts.to_json()),
        row.beside,
        None if row.notes is None else json.dumps(row.notes.to_json()),
        None if row.picture is None else str(row.picture),
        row.shorthash,
        row.sha256,
        row.added,
        row.used,
        row.uses,
    )


def _from_columns(values: Mapping[str, Any]) -> Row:
    facts, notes, picture = values["facts"], values["notes"], values["picture"]
    return Row(
        CatalogFile(Path(values["path"]), values["relative"], values["size"], values["mtime_ns"]),
        values["name"],
        None if facts is None else Facts.from_json(json.loads(facts)),
        values["beside"],
        None if notes is None else Notes.from_json(json.loads(notes)),
        None if picture is None else Path(picture),
        values["shorthash"],
        values["sha256"],
        values["added"],
        values["used"],
        values["uses"],
    )
