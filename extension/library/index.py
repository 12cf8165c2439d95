"""The data of all files, in a database beside the host's settings, so that a later start reads no header again.

It is a cache, except for when a file was first seen and last used: notes are kept beside the files.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from .database import is_damaged, opened, set_damaged_aside
from .facts import Facts
from .notes import Notes
from .plain import are_texts, demand, read_json
from .walk import TRASH, CatalogFile, is_text

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_VERSION = 1  # of the table; a table of another version is copied into one of this
_NAME = "catalog.sqlite3"
_COLUMNS: Mapping[str, str] = {
    "path": "TEXT PRIMARY KEY",
    "relative": "TEXT NOT NULL",
    "size": "INTEGER NOT NULL",
    "mtime_ns": "INTEGER NOT NULL",
    "name": "TEXT NOT NULL DEFAULT ''",
    "facts": "TEXT",
    "beside": "TEXT NOT NULL DEFAULT ''",
    "notes": "TEXT",
    "picture": "TEXT",
    "shorthash": "TEXT NOT NULL DEFAULT ''",
    "sha256": "TEXT NOT NULL DEFAULT ''",
    "sketch": "BLOB NOT NULL DEFAULT x''",
    "figures": "TEXT NOT NULL DEFAULT ''",
    "added": "REAL NOT NULL DEFAULT 0",
    "used": "REAL NOT NULL DEFAULT 0",
    "uses": "INTEGER NOT NULL DEFAULT 0",
}
"""Column -> declaration. A new column needs a default, for rows of older tables."""
_TABLE = f"CREATE TABLE file ({', '.join(f'{name} {kind}' for name, kind in _COLUMNS.items())}) WITHOUT ROWID"
_PUT = f"INSERT OR REPLACE INTO file ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_HISTORY = (
    f"SELECT {', '.join('NULL' if name in ('facts', 'notes') else name for name in _COLUMNS)} FROM file WHERE path = ?"
)
_MOST = 2**63  # of a whole number, as SQLite has it
_NOT_STORED = sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError
"""Errors of SQLite about one value."""
_LATEST = 1e11  # seconds since 1970


@dataclass(frozen=True, slots=True)
class Row:
    """The data of one file."""

    file: CatalogFile
    name: str = ""
    """The shortest unique name that tags find it by."""
    facts: Facts | None = None
    """None until its header is read."""
    beside: str = ""
    """`walk.Found.stamp` when the notes were read."""
    notes: Notes | None = None
    picture: Path | None = None
    shorthash: str = ""
    sha256: str = ""
    sketch: bytes = b""
    """What tells whether it is a copy, see `copies.CopyFinder`; empty until it is made."""
    figures: str = ""
    """For the doctor: their version, and JSON of them; empty until they are made, with the sketch."""
    added: float = 0.0
    """When it was first seen, in seconds since 1970."""
    used: float = 0.0
    """When it was last used for a picture; 0 is never."""
    uses: int = 0
    revision: int = 0
    """Revision of the index that last changed this row."""

    @property
    def complete(self) -> bool:
        """Return whether everything that a list shows is read."""
        return self.facts is not None and self.notes is not None


class Index:
    """Rows by path; thread-safe.

    Args:
        folder: of the database, which need not exist; None stores nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / _NAME
        self._lock = threading.RLock()
        self._saving = threading.Lock()
        self._rows: dict[Path, Row] = {}
        self._by_id: dict[str, Path] = {}
        self._gone: dict[str, int] = {}
        """Ids of files that disappeared, with the revision."""
        self._away: dict[Path, Row] = {}
        """Rows of files in folders that are not scanned now; kept, as the folders may come back."""
        self._unsaved: set[Path] = set()
        self._deleted: set[Path] = set()
        """Rows that the next save deletes."""
        self._uses: Counter[Path] = Counter()
        """Uses since the last save, which adds them to the database, as other processes do."""
        self.revision = 0
        """Increases with every change."""
        self.problem = ""
        """One sentence if nothing can be stored."""
        self.loaded = False
        """Whether the database was read; delayed while another process locks it."""
        self._load()

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> list[Row]:
        """Return all rows."""
        with self._lock:
            return list(self._rows.values())

    def get(self, file: CatalogFile) -> Row | None:
        """Return the row of a file as it is on disk now, or None if it has changed."""
        row = self._rows.get(file.path)
        return row if row is not None and _same(row.file, file) else None

    def with_id(self, wanted: str) -> Row | None:
        """Return the row of the file with an id, or None."""
        path = self._by_id.get(wanted)
        return None if path is None else self._rows.get(path)

    def since(self, revision: int) -> tuple[list[Row], list[str]]:
        """Return the rows changed after a revision, and the ids of files that disappeared."""
        with self._lock:
            rows = [row for row in self._rows.values() if row.revision > revision]
            return rows, [one for one, at in self._gone.items() if at > revision]

    def change(self, file: CatalogFile, **values: Any) -> Row:
        """Set fields of a file's row; a file that has changed keeps when it was added and used."""
        with self._lock:
            former = self._rows.get(file.path)
            if former is None:
                row = Row(file, added=time.time())
            elif _same(former.file, file):
                row = replace(former, file=file)
            else:
                row = Row(file, former.name, added=former.added, used=former.used, uses=former.uses)
            return self._put(replace(row, **values))

    def keep_quietly(self, file: CatalogFile, **values: Any) -> None:
        """Set fields that no list shows, unless the file has changed: the revision stays."""
        with self._lock:
            row = self.get(file)
            if row is not None:
                self._rows[file.path] = replace(row, **values)
                self._unsaved.add(file.path)

    def use(self, file: CatalogFile, now: float) -> Row:
        """Record that a picture is made with a file."""
        with self._lock:
            former = self._rows.get(file.path)
            self._uses[file.path] += 1
            return self.change(file, used=now, uses=1 if former is None else former.uses + 1)

    def keep_only(self, files: Iterable[CatalogFile], folders: Sequence[Path]) -> None:
        """Forget files that no longer exist; a moved file keeps its data.

        Rows of files elsewhere are kept, and rows of a folder without any file: its drive may be disconnected.

        Args:
            files: the files found.
            folders: the folders scanned.
        """
        with self._lock:
            present = {file.path: file for file in files}
            for path in present.keys() & self._away.keys():
                self._put(self._away.pop(path))
            lost = {path: row for path, row in self._rows.items() if path not in present}
            by_look = {_look(row.file): row for row in (*self._away.values(), *lost.values())}
            for path, file in present.items():
                if path not in self._rows and (moved := by_look.get(_look(file))) is not None:
                    self._put(replace(moved, file=file, beside="", notes=None))
            filled = [one for one in folders if lost and any(path.is_relative_to(one) for path in present)]
            seen = {folder: _was_seen(folder, filled) for folder in {path.parent for path in lost}}
            self._hide(lost)
            for path in (one for one in lost if seen[one.parent] and TRASH not in one.parts):
                del self._away[path], self._uses[path]
                self._unsaved.discard(path)
                self._deleted.add(path)

    def leave_out(self, folders: Sequence[Path]) -> None:
        """Hide deleted files, and files outside these folders until the next scan."""
        with self._lock:
            rows = self._rows.items()
            away = {p: row for p, row in rows if TRASH in p.parts or not any(map(p.is_relative_to, folders))}
            self._hide(away)

    def move(self, former: Path, path: Path | None) -> None:
        """Keep what is known of a file that was moved until a scan finds it; forget it where it has no new path."""
        with self._lock:
            if former in self._rows:
                self._hide({former: self._rows[former]})
            row = self._away.pop(former, None)
            if row is None:
                return
            self._uses.pop(former, None)
            self._unsaved.discard(former)
            self._deleted.add(former)
            if path is not None:
                self._away[path] = replace(row, file=replace(row.file, path=path), beside="", notes=None)
                self._unsaved.add(path)
                self._deleted.discard(path)

    def _hide(self, rows: Mapping[Path, Row]) -> None:
        self.revision += bool(rows)
        for path, row in rows.items():
            self._away[path] = self._rows.pop(path)
            self._by_id.pop(row.file.id, None)
            self._gone[row.file.id] = self.revision

    def save(self) -> None:
        """Write the changes since the last time; if that fails, they are written the next time.

        A row that cannot be stored is left out, and logged.
        """
        with self._saving:
            if not self.loaded:
                self._load()
            if self._path is None or not self.loaded:
                return
            with self._lock:
                every = {**self._away, **self._rows}
                if not self._path.exists():  # deleted or renamed
                    self._unsaved |= every.keys()
                if not self._unsaved and not self._deleted:
                    return
                unsaved, self._unsaved = self._unsaved, set()
                deleted, self._deleted = self._deleted - unsaved, set()
                uses, self._uses = self._uses, Counter()
                rows = [every[path] for path in unsaved if path in every and is_text(str(path))]
            written = None
            try:
                written = _write(self._path, rows, [(str(path),) for path in deleted if is_text(str(path))], uses)
            except (sqlite3.Error, OSError) as error:
                if not is_damaged(error) or self._begin_again():
                    self._complain(f"the index of the LoRA files cannot be written to {self._path} now: {error}")
            else:
                self.problem = ""
                self._follow(written)
            finally:
                if written is None:
                    with self._lock:
                        self._unsaved |= unsaved
                        self._deleted |= deleted
                        self._uses.update(uses)

    def _follow(self, written: Sequence[Row]) -> None:
        """Merge the history that other processes stored of these files."""
        with self._lock:
            for kept in written:
                path = kept.file.path
                row = self._rows.get(path)
                if row is not None and (row.added, row.used, row.uses) != (kept.added, kept.used, kept.uses):
                    self.revision += 1
                    self._rows[path] = replace(
                        row,
                        added=min(row.added, kept.added),
                        used=max(row.used, kept.used),
                        uses=kept.uses + self._uses[path],
                        revision=self.revision,
                    )

    def _put(self, row: Row) -> Row:
        self.revision += 1
        row = replace(row, revision=self.revision)
        self._rows[row.file.path] = row
        self._by_id[row.file.id] = row.file.path
        self._gone.pop(row.file.id, None)
        self._unsaved.add(row.file.path)
        return row

    def _load(self) -> None:
        """Read the database; if it cannot be read now, `save` tries again."""
        try:
            if self._path is not None and self._path.is_file():
                self._take(_read(self._path))
        except (sqlite3.Error, OSError) as error:
            if not is_damaged(error):
                self._complain(
                    f"{self._path} cannot be read now ({error}), so the LoRA files are read again; it is tried again"
                )
                return
            if not self._begin_again():
                return
        self.loaded = True

    def _take(self, kept: Sequence[Row]) -> None:
        """Add the stored rows; of files read meanwhile, only their history."""
        with self._lock:
            if self._rows:
                for row in kept:
                    self._put(_with_history(self._rows.get(row.file.path, row), row))
                return
            self.revision += 1
            self._rows = {row.file.path: replace(row, revision=self.revision) for row in kept}
            self._by_id = {row.file.id: path for path, row in self._rows.items()}

    def _begin_again(self) -> bool:
        """Rename a damaged database; tell whether a new one can be made."""
        assert self._path is not None, "an index without a file is not damaged"
        try:
            aside = set_damaged_aside(self._path, partial(_read, self._path))
        except OSError as error:
            self._complain(f"{self._path} is damaged and cannot be set aside: {error.strerror or error}")
            return False
        if aside is not None:
            self._complain(f"{self._path} is damaged and was renamed to {aside.name}; all LoRA files are read again")
        return True

    def _complain(self, text: str) -> None:
        if text != self.problem:
            logger.warning("remora: %s", text)
        self.problem = text


def _read(path: Path) -> list[Row]:
    """Read all rows; an invalid row is left out.

    Raises:
        sqlite3.Error: another process uses the database, or it is damaged or unreadable.
        OSError: the database cannot be read.
    """
    with _opened(path) as database:
        found = database.execute(f"SELECT {', '.join(_COLUMNS)} FROM file").fetchall()
    rows = (_from_columns(dict(zip(_COLUMNS, values, strict=True))) for values in found)
    return [row for row in rows if row is not None]


def _write(path: Path, rows: Sequence[Row], gone: Sequence[tuple[str]], uses: Mapping[Path, int]) -> list[Row]:
    """Write and delete rows in one transaction; return the rows as written. A row that cannot be stored is logged.

    Args:
        path: of the database.
        rows: the rows of this process. Other processes may have written the same files since.
        gone: paths to delete.
        uses: path -> uses in this process since the last save.

    Raises:
        sqlite3.Error: as `_read`.
        OSError: as `_read`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _opened(path) as database:
        database.execute("BEGIN IMMEDIATE")
        written = []
        for row in rows:
            found = database.execute(_HISTORY, (str(row.file.path),)).fetchone()
            kept = None if found is None else _from_columns(dict(zip(_COLUMNS, found, strict=True)))
            since = uses.get(row.file.path, 0)
            merged = row if kept is None else _with_history(replace(row, uses=since), kept)
            if _put(database, merged):
                written.append(merged)
        database.executemany("DELETE FROM file WHERE path = ?", gone)
        database.execute("COMMIT")
    return written


def _put(database: sqlite3.Connection, row: Row) -> bool:
    """Write one row; tell whether its values can be stored."""
    try:
        database.execute(_PUT, _to_columns(row))
    except (*_NOT_STORED, OverflowError, ValueError, TypeError) as error:  # as of a file that is dated after 2262
        path = row.file.path
        logger.warning("remora: what is known of %s cannot be stored (%s); it is read at each start", path, error)
        return False
    return True


def _opened(path: Path) -> AbstractContextManager[sqlite3.Connection]:
    """Open a database with a table of this version."""
    return opened(path, (_is_current, _migrate))


def _is_current(database: sqlite3.Connection) -> bool:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    return version == _VERSION and set(_COLUMNS) <= set(_columns(database))


def _columns(database: sqlite3.Connection) -> list[str]:
    return [row[1] for row in database.execute("PRAGMA table_info(file)")]


def _migrate(database: sqlite3.Connection) -> None:
    """Create the table, with the columns of a table of another version that it also has."""
    former = _columns(database)
    if former:
        database.execute("DROP TABLE IF EXISTS former")
        database.execute("ALTER TABLE file RENAME TO former")
    database.execute(_TABLE)
    if {"path", "relative", "size", "mtime_ns"} <= set(former):
        names = ", ".join(name for name in _COLUMNS if name in former)
        database.execute(f"INSERT OR REPLACE INTO file ({names}) SELECT {names} FROM former")
        database.execute("DROP TABLE former")
    database.execute(f"PRAGMA user_version = {_VERSION}")


def _same(one: CatalogFile, other: CatalogFile) -> bool:
    return (one.size, one.mtime_ns) == (other.size, other.mtime_ns)


def _with_history(row: Row, kept: Row) -> Row:
    """Return a row with the stored history of the same file."""
    if row is kept:
        return row
    same = _same(row.file, kept.file)
    return replace(
        row,
        added=min(row.added, kept.added),
        used=max(row.used, kept.used),
        uses=row.uses + kept.uses,
        shorthash=row.shorthash or (kept.shorthash if same else ""),
        sha256=row.sha256 or (kept.sha256 if same else ""),
        sketch=row.sketch or (kept.sketch if same else b""),
        figures=row.figures or (kept.figures if same else ""),
    )


def _was_seen(folder: Path, filled: Sequence[Path]) -> bool:
    """Tell whether a folder was scanned, given the folders that contain files.

    A link to a disconnected drive and an unreadable folder are not; a folder that no longer exists is.
    """
    above = next((one for one in filled if folder.is_relative_to(one)), None)
    if above is None:
        return False
    steps = itertools.takewhile(lambda one: one != above, (folder, *folder.parents))
    return not any(os.path.lexists(one) and not os.access(one, os.R_OK | os.X_OK) for one in steps)


def _look(file: CatalogFile) -> tuple[str, int, int]:
    """Return a key that a file keeps when it is moved to another folder."""
    return file.path.name, file.size, file.mtime_ns


def _to_columns(row: Row) -> tuple[Any, ...]:
    file = row.file
    return (
        str(file.path),
        file.relative,
        file.size,
        file.mtime_ns,
        row.name,
        # it may be readable at the next start
        None if row.facts is None or row.facts.passing else json.dumps(row.facts.to_json()),
        row.beside,
        None if row.notes is None or row.notes.problems else json.dumps(row.notes.to_json()),
        None if row.picture is None else str(row.picture),
        row.shorthash,
        row.sha256,
        row.sketch,
        row.figures,
        row.added,
        row.used,
        row.uses,
    )


def _from_columns(values: Mapping[str, Any]) -> Row | None:
    """Make a row from columns, or None if they are invalid. Invalid facts and notes are read again."""
    picture = values["picture"]
    try:
        size, mtime_ns, uses = (int(values[name]) for name in ("size", "mtime_ns", "uses"))
        added, used = float(values["added"]), float(values["used"])
        demand(are_texts(values[name] for name in ("path", "relative", "name", "beside", "shorthash", "sha256")))
        demand(0 <= size < _MOST and abs(mtime_ns) < _MOST and 0 <= uses < _MOST)
        demand(0 <= added < _LATEST and 0 <= used < _LATEST)  # false for infinite numbers
        return Row(
            CatalogFile(Path(values["path"]), values["relative"], size, mtime_ns),
            values["name"],
            _from_json(values["facts"], Facts.from_json),
            values["beside"],
            _from_json(values["notes"], Notes.from_json),
            None if picture is None else Path(picture),
            values["shorthash"],
            values["sha256"],
            bytes(values["sketch"]) if isinstance(values["sketch"], bytes) else b"",
            values["figures"] if isinstance(values["figures"], str) else "",
            added,
            used,
            uses,
        )
    except (ValueError, TypeError, OverflowError):
        return None


def _from_json(text: str | None, make: Callable[[Mapping[str, Any]], _T | None]) -> _T | None:
    try:
        return None if text is None else make(read_json(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
