"""What is known of each picture in the output folders, in a database in the data folder; a cache of what files say."""

from __future__ import annotations

import logging
import re
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ..library.database import is_damaged, opened, set_damaged_aside
from ..library.walk import is_text
from .uses import Use, Uses

logger = logging.getLogger(__name__)

_NAME = "pictures.sqlite3"
_VERSION = 1  # of the tables; tables of another version are emptied
# no key of several columns: `opened` refuses parentheses within parentheses
_TABLES = (
    "CREATE TABLE picture (id INTEGER PRIMARY KEY AUTOINCREMENT, folder TEXT NOT NULL, name TEXT NOT NULL, "
    "size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL, seed INTEGER, "
    "prompt TEXT NOT NULL)",
    "CREATE UNIQUE INDEX picture_file ON picture (folder, name)",
    "CREATE INDEX picture_time ON picture (mtime_ns, id)",
    "CREATE INDEX picture_seed ON picture (seed, mtime_ns)",
    "CREATE TABLE lora (id INTEGER PRIMARY KEY, name TEXT NOT NULL, folded TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE UNIQUE INDEX lora_name ON lora (name, hash)",
    "CREATE INDEX lora_folded ON lora (folded)",
    "CREATE INDEX lora_hash ON lora (hash)",
    "CREATE TABLE used (lora INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, picture INTEGER NOT NULL, strength TEXT)",
    "CREATE UNIQUE INDEX used_lora ON used (lora, mtime_ns, picture)",
    "CREATE INDEX used_picture ON used (picture)",
)
_PUT = "INSERT INTO picture (folder, name, size, mtime_ns, width, height, seed, prompt) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_COLUMNS = ", ".join(("id", "folder", "name", "size", "mtime_ns", "width", "height", "seed", "prompt"))
_DIGITS = (8, 10, 12, 64)  # of a hash in a text
_AMOUNT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?!.*@)")
"""The first number of a strength that is no schedule."""
_PATTERN = re.compile(r"[%_!]")  # what LIKE does not take as it is
_HAS_WORD = "(prompt LIKE ? ESCAPE '!' OR (length(prompt) < length(CAST(prompt AS BLOB)) AND has_folded(prompt, ?)))"
"""LIKE ignores the case of ASCII letters alone; a prompt with others has more bytes than characters."""


@dataclass(frozen=True)
class PictureFile:
    """One picture file."""

    folder: str
    name: str
    size: int
    mtime_ns: int
    width: int = 0
    height: int = 0
    uses: Uses = field(default_factory=Uses)
    id: int = 0

    @property
    def path(self) -> Path:
        """Return where it is."""
        return Path(self.folder, self.name)


@dataclass(frozen=True)
class LoraRow:
    """A LoRA as parameters texts name it."""

    id: int
    name: str
    hash: str
    pictures: int = 0
    latest_ns: int = 0
    """The time of the latest of these pictures."""
    strength: str = ""
    """Its strength in that picture, as in a tag."""
    lowest: float | None = None
    """The lowest strength that is a number; None without any."""
    highest: float | None = None

    def with_uses(self, other: LoraRow) -> LoraRow:
        """Return it with the pictures of another one."""
        latest = max(self, other, key=lambda one: one.latest_ns)
        amounts = [one for row in (self, other) for one in (row.lowest, row.highest) if one is not None]
        return replace(
            self,
            pictures=self.pictures + other.pictures,
            latest_ns=latest.latest_ns,
            strength=latest.strength,
            lowest=min(amounts, default=None),
            highest=max(amounts, default=None),
        )


@dataclass(frozen=True)
class Sought:
    """A search for pictures; an empty one finds all."""

    seed: int | None = None
    words: tuple[str, ...] = ()
    """The prompt has each of them, in any case of letters."""

    def condition(self) -> tuple[str, list[str | int]]:
        """Return a condition on the table of pictures, and its values; an empty text for all."""
        parts = ["seed = ?"] if self.seed is not None else []
        values: list[str | int] = [] if self.seed is None else [self.seed]
        for word in map(str.casefold, self.words):
            parts.append(_HAS_WORD)
            values += [f"%{_PATTERN.sub(_escaped, word)}%", word]
        return " AND ".join(parts), values


@dataclass(frozen=True)
class LoraKey:
    """What the texts of pictures may call one LoRA file."""

    names: frozenset[str]
    """Casefolded."""
    short: str = ""
    """The 12 digits of "Lora hashes", of what is after the header; empty if unknown."""
    sha256: str = ""
    """Of the whole file, which SD.Next's texts have 8 digits of; empty if unknown."""

    def fits(self, row: LoraRow) -> bool:
        """Tell whether a text means this file: by its hash where both have one, else by its name."""
        if self.has_hash(row):
            return True
        if row.hash and (self.short if 10 <= len(row.hash) <= 12 else self.sha256):
            return False
        return row.name.casefold() in self.names

    def has_hash(self, row: LoraRow) -> bool:
        """Tell whether the hash in a text is of this file."""
        return bool(row.hash) and (self.short.startswith(row.hash) or self.sha256.startswith(row.hash))

    @property
    def hashes(self) -> set[str]:
        """Return the hashes that texts may have for it."""
        return {one[:length] for one in (self.short, self.sha256) for length in _DIGITS if len(one) >= length}


class PictureIndex:
    """Pictures by file, and by the LoRA that they used; thread-safe.

    Args:
        folder: of the database, which need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._repairing = threading.Lock()
        self.problem = ""
        """One sentence if the index cannot be read or written now."""

    def known(self, folder: str) -> dict[str, tuple[int, int, int]]:
        """Return size, time and id of each picture of one folder, by name."""
        with self._opened() as database:
            found = database.execute("SELECT name, size, mtime_ns, id FROM picture WHERE folder = ?", (folder,))
            return {name: (size, mtime_ns, number) for name, size, mtime_ns, number in found}

    def folders(self) -> list[str]:
        """Return the folders that pictures are in."""
        with self._opened() as database:
            return [folder for (folder,) in database.execute("SELECT DISTINCT folder FROM picture")]

    def change(self, pictures: Iterable[PictureFile], gone: Iterable[int]) -> None:
        """Store pictures, in place of former ones with the same files, and forget others, in one transaction.

        Args:
            pictures: the pictures.
            gone: ids.
        """
        with self._opened() as database:
            database.execute("BEGIN IMMEDIATE")
            _forget(database, gone)
            loras: dict[tuple[str, str], int] = {}
            for picture in pictures:
                _put(database, picture, loras)
            database.execute("COMMIT")

    def forget_folder(self, folder: str) -> None:
        """Forget the pictures of one folder."""
        self.change((), [number for *_, number in self.known(folder).values()])

    def count(self) -> int:
        """Return the number of pictures."""
        with self._opened() as database:
            return int(database.execute("SELECT count(*) FROM picture").fetchone()[0])

    def latest(self, sought: Sought, skip: int, most: int) -> tuple[int, list[PictureFile]]:
        """Return how many pictures are sought, and a page of them, the latest first."""
        condition, values = sought.condition()
        where = f"WHERE {condition}" if condition else ""
        with self._opened() as database:
            (count,) = database.execute(f"SELECT count(*) FROM picture {where}", values).fetchone()
            ids = database.execute(
                f"SELECT id FROM picture {where} ORDER BY mtime_ns DESC, id DESC LIMIT ? OFFSET ?",
                (*values, most, skip),
            )
            return count, _pictures(database, [number for (number,) in ids])

    def of_loras(self, loras: Collection[int], sought: Sought, skip: int, most: int) -> tuple[int, list[PictureFile]]:
        """Return how many of the sought pictures used any of these LoRA, and a page of them, the latest first."""
        marks = ", ".join("?" * len(loras))
        condition, further = sought.condition()
        where, values = f"WHERE lora IN ({marks}) {_among('AND', condition)}", [*loras, *further]
        several = len(loras) > 1  # then one picture may have two rows
        counted, grouped = ("count(DISTINCT picture)", "GROUP BY picture") if several else ("count(*)", "")
        with self._opened() as database:
            (count,) = database.execute(f"SELECT {counted} FROM used {where}", values).fetchone()
            ids = database.execute(
                f"SELECT picture FROM used {where} {grouped} ORDER BY mtime_ns DESC, picture DESC LIMIT ? OFFSET ?",
                (*values, most, skip),
            )
            return count, _pictures(database, [number for (number,) in ids])

    def picture(self, number: int) -> PictureFile | None:
        """Return one picture, or None."""
        with self._opened() as database:
            return next(iter(_pictures(database, [number])), None)

    def loras_of(self, key: LoraKey) -> list[LoraRow]:
        """Return what texts call one LoRA file."""
        names, hashes = sorted(filter(is_text, key.names)), sorted(key.hashes)
        where = f"WHERE folded IN ({', '.join('?' * len(names))}) OR hash IN ({', '.join('?' * len(hashes))})"
        with self._opened() as database:
            found = database.execute(f"SELECT id, name, hash FROM lora {where}", (*names, *hashes)).fetchall()
        return [row for row in (LoraRow(*one) for one in found) if key.fits(row)]

    def loras(self, sought: Sought, most: int) -> list[LoraRow]:
        """Return all LoRA that the sought pictures used, the most used first."""
        condition, values = sought.condition()
        with self._opened() as database:
            scanned = _among("WHERE", condition) or "NOT INDEXED"  # all rows are read faster in their order
            found = database.execute(
                "SELECT id, name, hash, pictures, latest, strength FROM lora JOIN (SELECT lora, count(*) AS pictures, "
                f"max(mtime_ns) AS latest, strength FROM used {scanned} GROUP BY lora, strength) ON lora.id = lora",
                values,
            )
            rows: dict[int, LoraRow] = {}
            for number, name, digest, pictures, latest, strength in found:
                amount = _amount(strength)
                row = LoraRow(number, name, digest, pictures, latest, strength, amount, amount)
                rows[number] = rows[number].with_uses(row) if number in rows else row
            return sorted(rows.values(), key=lambda row: (-row.pictures, row.id))[:most]

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the database with tables of this version.

        Raises:
            sqlite3.Error: another process holds it for long, or it is damaged. A damaged one is set aside.
            OSError: it cannot be made.
        """
        try:
            with _connected(self._path) as database:
                yield database
            self.problem = ""
        except (sqlite3.Error, OSError) as error:
            self._tell(f"the index of the pictures at {self._path} cannot be used now: {error}")
            if is_damaged(error):
                self._set_aside()
            raise

    def _set_aside(self) -> None:
        """Rename a damaged database; the pictures are read again."""
        with self._repairing:
            try:
                aside = set_damaged_aside(self._path, partial(_check, self._path))
            except OSError as error:
                self._tell(f"{self._path} is damaged and cannot be set aside: {error.strerror or error}")
                return
        if aside is not None:  # else another thread or process was first
            self._tell(f"{self._path} is damaged and was renamed to {aside.name}; all pictures are read again")

    def _tell(self, text: str) -> None:
        if text != self.problem:
            logger.warning("remora: %s", text)
        self.problem = text


@contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with opened(path, (_is_current, _make_tables), is_shared=True) as database:
        database.create_function("has_folded", 2, _has_folded, deterministic=True)
        database.execute("PRAGMA synchronous = NORMAL")  # a power cut may lose the latest rows, which are read again
        yield database


def _is_current(database: sqlite3.Connection) -> bool:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    return bool(version == _VERSION)


def _make_tables(database: sqlite3.Connection) -> None:
    for table in ("picture", "lora", "used"):
        database.execute(f"DROP TABLE IF EXISTS {table}")
    for statement in _TABLES:
        database.execute(statement)
    database.execute(f"PRAGMA user_version = {_VERSION}")


def _check(path: Path) -> None:
    """Raise sqlite3.Error where a database is damaged."""
    with _connected(path) as database:
        database.execute("SELECT count(*) FROM picture, lora, used WHERE 0").fetchone()
        if any(text != "ok" for (text,) in database.execute("PRAGMA quick_check(1)")):
            raise sqlite3.DatabaseError("a table of the database is malformed")


def _amount(strength: str) -> float | None:
    found = _AMOUNT.match(strength)
    return None if found is None else float(found[0])


def _has_folded(prompt: str, word: str) -> bool:
    return word in prompt.casefold()


def _escaped(mark: re.Match[str]) -> str:
    return f"!{mark[0]}"


def _among(word: str, condition: str) -> str:
    """Return the part of a query of uses that limits them to pictures with a condition; empty for all."""
    return f"{word} picture IN (SELECT id FROM picture WHERE {condition})" if condition else ""


def _forget(database: sqlite3.Connection, ids: Iterable[int]) -> None:
    for number in ids:
        database.execute("DELETE FROM used WHERE picture = ?", (number,))
        database.execute("DELETE FROM picture WHERE id = ?", (number,))


def _put(database: sqlite3.Connection, picture: PictureFile, loras: dict[tuple[str, str], int]) -> None:
    where = picture.folder, picture.name
    former = database.execute("SELECT id FROM picture WHERE folder = ? AND name = ?", where).fetchall()
    _forget(database, [number for (number,) in former])
    shape = picture.size, picture.mtime_ns, picture.width, picture.height
    number = database.execute(_PUT, (*where, *shape, picture.uses.seed, picture.uses.prompt)).lastrowid
    for use in picture.uses.loras:
        lora = loras.get((use.name, use.hash))
        if lora is None:
            lora = loras[use.name, use.hash] = _lora(database, use)
        row = lora, picture.mtime_ns, number, use.strength
        database.execute("INSERT OR REPLACE INTO used (lora, mtime_ns, picture, strength) VALUES (?, ?, ?, ?)", row)


def _lora(database: sqlite3.Connection, use: Use) -> int:
    """Return the id of a LoRA, which is added if it is new."""
    row = use.name, use.name.casefold(), use.hash
    database.execute("INSERT OR IGNORE INTO lora (name, folded, hash) VALUES (?, ?, ?)", row)
    found = database.execute("SELECT id FROM lora WHERE name = ? AND hash = ?", (use.name, use.hash)).fetchone()
    return int(found[0])


def _pictures(database: sqlite3.Connection, ids: Sequence[int]) -> list[PictureFile]:
    """Return pictures by their ids, in this order."""
    marks = ", ".join("?" * len(ids))
    rows = database.execute(f"SELECT {_COLUMNS} FROM picture WHERE id IN ({marks})", ids).fetchall()
    uses: dict[int, list[Use]] = {}
    for number, *use in database.execute(
        f"SELECT picture, name, strength, hash FROM used JOIN lora ON lora.id = lora WHERE picture IN ({marks}) "
        "ORDER BY used.rowid",
        ids,
    ):
        uses.setdefault(number, []).append(Use(*use))
    found = {}
    for number, folder, name, size, mtime_ns, width, height, seed, prompt in rows:
        own = Uses(tuple(uses.get(number, ())), prompt, seed)
        found[number] = PictureFile(folder, name, size, mtime_ns, width, height, own, number)
    return [found[number] for number in ids if number in found]
