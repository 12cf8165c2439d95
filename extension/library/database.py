"""SQLite databases that keep what files say: opened with limits, and set aside where they are damaged."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from ..store import locked, set_aside

_TIMEOUT = 10.0  # seconds that another process may hold the database
_MOST_SECONDS = 60.0  # that SQLite may compute: a hundred times as long as for the largest libraries
_EVERY = 100_000  # instructions of SQLite between two looks at the clock
_LARGEST = 2 << 30  # bytes of a database
_MALFORMED = "database disk image is malformed"  # as SQLite says it
_OTHERS = (
    "SELECT count(*) FROM sqlite_master WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%' "
    "OR sql LIKE '%(%(%'"  # an expression, which is computed for each row
)
"""A question that counts what no table of Remora has."""

Tables: TypeAlias = tuple[Callable[[sqlite3.Connection], bool], Callable[[sqlite3.Connection], None]]
"""Tells whether a database has the tables of this version; makes them."""


@contextmanager
def opened(path: Path, tables: Tables, *, is_shared: bool = False) -> Iterator[sqlite3.Connection]:
    """Open a database with tables of this version.

    Args:
        path: of the database; its folder exists.
        tables: of this version.
        is_shared: whether it is read while rows are added.

    Raises:
        sqlite3.Error: another process uses the database, or it is damaged or unreadable.
        OSError: the database cannot be read.
    """
    is_current, make = tables
    # no isolation level: transactions include changes of the tables
    database = sqlite3.connect(path, timeout=_TIMEOUT, isolation_level=None)
    until = time.monotonic() + _MOST_SECONDS
    try:
        database.set_progress_handler(lambda: time.monotonic() > until, _EVERY)
        _check_schema(database, path)
        database.text_factory = lambda text: text.decode("utf-8", "replace")
        if not is_current(database):
            if is_shared:
                database.execute("PRAGMA journal_mode = WAL")
            database.execute("BEGIN IMMEDIATE")
            if not is_current(database):  # another process may have been first
                make(database)
            database.execute("COMMIT")
        yield database
    except UnicodeDecodeError as error:  # SQLite's message about a damaged table contains bytes of it
        raise sqlite3.DatabaseError("a table of the database is malformed") from error
    finally:
        database.close()  # undoes uncommitted changes


def _check_schema(database: sqlite3.Connection, path: Path) -> None:
    """Refuse a database that makes SQLite compute: views and triggers inside each other never end.

    Raises:
        sqlite3.DatabaseError: it is not one of Remora, or too large.
    """
    if path.stat().st_size > _LARGEST:
        raise sqlite3.DatabaseError(_MALFORMED)
    if database.execute(_OTHERS).fetchone()[0]:
        raise sqlite3.DatabaseError(_MALFORMED)


def is_damaged(error: Exception) -> bool:
    """Tell whether the file is no database; a locked one, or one on a full disk, is not damaged."""
    said = str(error)
    return isinstance(error, sqlite3.DatabaseError) and ("malformed" in said or "not a database" in said)


def set_damaged_aside(path: Path, read: Callable[[], object]) -> Path | None:
    """Rename a damaged database; return its new path, or None where another process was first.

    Args:
        path: of the database.
        read: reads it, and raises where it is damaged.

    Raises:
        OSError: it cannot be renamed.
    """
    with locked(Path(os.path.realpath(path.parent))):
        try:
            read()
            return None
        except (sqlite3.Error, OSError) as error:
            if not is_damaged(error):
                return None
        aside = set_aside(path)
        for end in ("-wal", "-shm"):  # of a shared one; other journals were handled when it was read
            Path(f"{path}{end}").unlink(missing_ok=True)
        return aside
