"""What is known of the files is kept, follows them, and never keeps anybody from working."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from extension.api.library import listed
from extension.library import CatalogFile, Found, Index, Row, walk
from extension.library.catalog import Catalog
from extension.library.index import _COLUMNS
from extension.library.scan import Scanner
from extension.library.walk import Bounds, beside
from lib_lora import glance
from tests.extension.library.test_facts import lora


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "loras").mkdir()
    return tmp_path / "loras"


@pytest.fixture
def started(tmp_path: Path, folder: Path) -> Iterator[Callable[[], Catalog]]:
    """Start catalogs over the folder, as a web UI does at each start."""
    catalogs: list[Catalog] = []

    def start() -> Catalog:
        for former in catalogs:
            former.close()
        catalogs.append(Catalog(lambda: [folder], lambda: tmp_path / "data"))
        catalogs[-1].start()
        assert catalogs[-1].wait(30)
        return catalogs[-1]

    yield start
    for catalog in catalogs:
        catalog.close()


def row(catalog: Catalog, name: str) -> Row:
    return catalog.row(catalog.find(name))


def test_a_later_start_reads_no_header_again(
    started: Callable[[], Catalog], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lora(folder / "a.safetensors", ss_output_name="alias")
    (folder / "a.json").write_text('{"notes": "n"}')
    (folder / "broken.safetensors").write_bytes(b"x")
    first = started()
    digest = first.hashes.short(first.find("a"))
    rows = {one.file.path: one for one in first.index.rows()}
    monkeypatch.setattr("extension.library.facts.glance", lambda path: pytest.fail("read again"))
    monkeypatch.setattr("extension.library.hashes.hash_from", lambda *_: pytest.fail("hashed again"))
    later = started()
    assert {one.file.path: replace(one, revision=0) for one in later.index.rows()} == {
        path: replace(one, revision=0) for path, one in rows.items()
    }
    assert later.alias(later.find("a")) == "alias"
    assert later.hashes.short(later.find("a")) == digest


def test_a_later_start_shows_what_it_knows_before_it_looks(
    started: Callable[[], Catalog], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first start knows nothing, so it looks at once."""
    monkeypatch.setattr("extension.library.scan._LATER", 60.0)
    lora(folder / "a.safetensors")
    started().close()
    lora(folder / "b.safetensors")
    later = Catalog(lambda: [folder], lambda: tmp_path / "data")
    later.start()
    try:
        assert not later.wait(0.3)
        assert [one.name for one in later.index.rows()] == ["a"]
        later.refresh()
        assert later.wait(30)
        assert [one.name for one in later.index.rows()] == ["a", "b"]
    finally:
        later.close()


def test_a_file_that_goes_while_it_is_read_has_no_row_again(started: Callable[[], Catalog], folder: Path) -> None:
    path = lora(folder / "a.safetensors")
    catalog = started()
    assert catalog._scanner.found is not None
    found = catalog._scanner.found[path]
    path.unlink()
    catalog.refresh()
    assert catalog.wait(30)
    catalog._scanner.read(found)
    assert not catalog.index.rows()


def test_a_changed_file_is_read_again_and_keeps_its_history(started: Callable[[], Catalog], folder: Path) -> None:
    path = lora(folder / "a.safetensors", ss_output_name="old")
    catalog = started()
    catalog.used([catalog.find("a")])
    former = row(catalog, "a")
    lora(path, rank=8, ss_output_name="new")
    os.utime(path, ns=(1, 1))
    later = started()
    found = row(later, "a")
    assert later.alias(later.find("a")) == "new"
    assert (found.added, found.used, found.uses) == (former.added, former.used, 1)


def test_a_moved_file_keeps_what_is_known_of_it(started: Callable[[], Catalog], folder: Path) -> None:
    path = lora(folder / "a.safetensors")
    catalog = started()
    catalog.used([catalog.find("a")])
    digest = catalog.hashes.short(catalog.find("a"))
    (folder / "sub").mkdir()
    shutil.move(path, folder / "sub" / "a.safetensors")
    catalog.refresh()
    assert catalog.wait(30)
    found = row(catalog, "a")
    assert (found.file.relative, found.uses, found.shorthash) == ("sub/a", 1, digest)
    assert len(catalog.index) == 1


def test_uses_that_several_processes_count_are_added(
    started: Callable[[], Catalog], folder: Path, tmp_path: Path
) -> None:
    lora(folder / "a.safetensors")
    first = started()
    file = first.find("a")
    first.used([file])
    first.index.save()
    other = Catalog(lambda: [folder], lambda: tmp_path / "data")
    for _ in range(5):
        other.used([file])
    digest = other.hashes.sha256(file)
    other.index.change(file, added=5.0, used=9e9)
    other.index.save()
    other.close()  # nothing is added twice
    first.used([file])
    first.index.save()
    for found in (*first.index.rows(), *Index(tmp_path / "data").rows()):
        assert (found.uses, found.added, found.used) == (7, 5.0, 9e9)
    assert [one.sha256 for one in Index(tmp_path / "data").rows()] == [digest]


def test_uses_that_could_not_be_saved_are_added_later(folder: Path, tmp_path: Path) -> None:
    lora(folder / "a.safetensors")
    file = next(walk([folder])).file
    index, other = Index(tmp_path / "data"), Index(tmp_path / "data")
    other.use(file, 3.0)
    other.save()
    index.use(file, 4.0)
    (tmp_path / "data" / "catalog.sqlite3").rename(tmp_path / "away")
    (tmp_path / "data" / "catalog.sqlite3").mkdir()
    index.save()
    assert "cannot be written" in index.problem
    index.use(file, 5.0)
    (tmp_path / "data" / "catalog.sqlite3").rmdir()
    (tmp_path / "away").rename(tmp_path / "data" / "catalog.sqlite3")
    index.save()
    assert [(one.uses, one.used) for one in Index(tmp_path / "data").rows()] == [(3, 5.0)]


@pytest.mark.parametrize("elsewhere", ["other files", "an empty folder", "no folder", "no folders"])
@pytest.mark.parametrize("again", ["while it runs", "at the next start"])
def test_what_is_known_of_files_elsewhere_is_kept(
    folder: Path, tmp_path: Path, elsewhere: str, again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lora(folder / "a.safetensors")
    other = tmp_path / "other"
    if elsewhere != "no folder":
        other.mkdir()
    if elsewhere == "other files":
        lora(other / "b.safetensors")
    folders = [folder]

    def start() -> Catalog:
        catalog = Catalog(lambda: list(folders), lambda: tmp_path / "data")
        catalog.start()
        assert catalog.wait(30)
        return catalog

    catalog = start()
    catalog.used([catalog.find("a")])
    before = row(catalog, "a")
    if again == "at the next start":
        catalog.close()
    folders[:] = [] if elsewhere == "no folders" else [other]
    if again == "at the next start":
        catalog = start()
    else:
        catalog.refresh()
        assert catalog.wait(30)
    names = ["b"] if elsewhere == "other files" else []
    assert [one.name for one in catalog.index.rows()] == names
    assert len(catalog.index) == len(names)
    assert catalog.index.with_id(before.file.id) is None
    catalog.index.save()
    assert {one.name: one.uses for one in Index(tmp_path / "data").rows()} == {"a": 1, **dict.fromkeys(names, 0)}
    monkeypatch.setattr("extension.library.facts.glance", lambda path: pytest.fail("read again"))
    folders[:] = [folder]
    if again == "at the next start":
        catalog.close()
        catalog = start()
    else:
        catalog.refresh()
        assert catalog.wait(30)
    try:
        assert replace(row(catalog, "a"), revision=0) == replace(before, revision=0)
        assert len(catalog.index) == 1
    finally:
        catalog.close()


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_files_behind_a_link_that_leads_nowhere_now_are_not_forgotten(
    started: Callable[[], Catalog], folder: Path, tmp_path: Path
) -> None:
    drive = tmp_path / "drive"
    (drive / "sub").mkdir(parents=True)
    (folder / "gone").mkdir()
    lora(folder / "a.safetensors"), lora(drive / "sub" / "b.safetensors"), lora(folder / "gone" / "c.safetensors")
    (folder / "link").symlink_to(drive)
    catalog = started()
    catalog.used([catalog.find("b"), catalog.find("c")])
    drive.rename(tmp_path / "off")
    shutil.rmtree(folder / "gone")
    assert sorted(one.name for one in started().index.rows()) == ["a"]
    (tmp_path / "off").rename(drive)
    assert {one.name: one.uses for one in started().index.rows()} == {"a": 0, "b": 1}
    assert len(Index(tmp_path / "data")) == 2


def test_before_the_first_look_files_elsewhere_are_not_shown(
    started: Callable[[], Catalog], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lora(folder / "a.safetensors")
    started().close()
    monkeypatch.setattr("extension.library.scan._LATER", 60.0)
    later = Catalog(lambda: [tmp_path / "other"], lambda: tmp_path / "data")
    later.start()
    try:
        assert not later.index.rows()
    finally:
        later.close()
    assert len(Index(tmp_path / "data")) == 1


def test_changes_are_told_since_a_revision(started: Callable[[], Catalog], folder: Path) -> None:
    lora(folder / "a.safetensors"), lora(folder / "b.safetensors")
    catalog = started()
    revision = catalog.index.revision
    assert catalog.index.since(revision) == ([], [])
    gone = catalog.find("b").id
    (folder / "b.safetensors").unlink()
    lora(folder / "c.safetensors")
    catalog.refresh()
    assert catalog.wait(30)
    rows, ids = catalog.index.since(revision)
    assert ([one.name for one in rows], ids) == (["c"], [gone])


def test_a_name_that_becomes_shared_is_told(started: Callable[[], Catalog], folder: Path) -> None:
    lora(folder / "x.safetensors")
    catalog = started()
    assert row(catalog, "x").name == "x"
    (folder / "sub").mkdir()
    lora(folder / "sub" / "x.safetensors")
    catalog.refresh()
    assert catalog.wait(30)
    assert sorted(one.name for one in catalog.index.rows()) == ["sub/x", "x"]


@pytest.mark.parametrize("damage", [b"no database", b"SQLite format 3\x00" + b"x" * 500])
def test_a_damaged_index_is_said_kept_aside_and_made_anew(
    started: Callable[[], Catalog],
    folder: Path,
    tmp_path: Path,
    damage: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lora(folder / "a.safetensors")
    for number in (1, 2):
        started().close()
        (tmp_path / "data" / "catalog.sqlite3").write_bytes(damage)
        (tmp_path / "data" / "catalog.sqlite3-journal").write_bytes(b"journal")
        catalog = started()
        assert f"is damaged and was renamed to catalog.sqlite3.damaged-{number};" in caplog.text
        assert [one.name for one in catalog.index.rows()] == ["a"]
        catalog.close()
        assert len(Index(tmp_path / "data")) == 1
        aside = tmp_path / "data" / f"catalog.sqlite3.damaged-{number}"
        assert aside.read_bytes() == damage
        assert sum("journal" in path.name for path in aside.parent.iterdir()) == 0


def test_an_empty_index_is_filled(started: Callable[[], Catalog], folder: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "catalog.sqlite3").write_bytes(b"")
    lora(folder / "a.safetensors")
    started().close()
    assert len(Index(tmp_path / "data")) == 1


def test_a_damaged_row_costs_that_row(started: Callable[[], Catalog], folder: Path, tmp_path: Path) -> None:
    for name in "abcd":
        lora(folder / f"{name}.safetensors")
    started().close()
    with sqlite3.connect(tmp_path / "data" / "catalog.sqlite3") as database:
        database.execute("UPDATE file SET facts = '[', uses = 7 WHERE name = 'a'")
        database.execute("UPDATE file SET added = 'soon' WHERE name = 'b'")
        database.execute("UPDATE file SET beside = CAST(x'ff' AS TEXT) WHERE name = 'c'")
    database.close()
    kept = {row.name: row for row in Index(tmp_path / "data").rows()}
    assert kept.keys() == {"a", "c", "d"}
    assert (kept["a"].facts, kept["a"].uses) == (None, 7)
    assert all(one.complete for one in started().index.rows())


def spoilt(database: Path, *statements: str) -> None:
    """Have another program change the row of the file `a`."""
    with sqlite3.connect(database) as connection:
        for statement in statements:
            assert connection.execute(f"UPDATE file SET {statement} WHERE name = 'a'").rowcount == 1
    connection.close()


@pytest.mark.parametrize(
    "change",
    [
        "added = 9e999",
        "used = -9e999",
        "added = 1e300",
        "used = -1",
        "uses = 9e999",
        "uses = 1e300",
        "uses = -1",
        "mtime_ns = 1e300",
        "shorthash = x'ff00'",
        "beside = x'ff00'",
        "relative = x'ff00'",
        "picture = x'ff'",
        """notes = replace(notes, '"strength": null', '"strength": NaN')""",
        """notes = replace(notes, '"strength": null', '"strength": 1e999')""",
        """notes = replace(notes, '"strength": null', '"strength": 101')""",
        """notes = replace(notes, '"rating": 0', '"rating": 1e999')""",
        """notes = replace(notes, '"rating": 0', '"rating": 6')""",
        """notes = replace(notes, '"words": ""', '"words": 5')""",
        """notes = replace(notes, '"tags": []', '"tags": [[1]]')""",
        """notes = replace(notes, '"favourite": false', '"favourite": "no"')""",
        """facts = replace(facts, '"alias": ""', '"alias": 5')""",
        """facts = replace(facts, '"words": []', '"words": [Infinity]')""",
        """facts = replace(facts, '"picture": false', '"picture": [1]')""",
        """facts = replace(facts, '\\"layers\\": ', '\\"layers\\": 1e999')""",
        """facts = replace(facts, '\\"layers\\": ', '\\"layers\\": 99999999999999999999')""",
        """facts = replace(facts, '\\"kinds\\": {', '\\"kinds\\": [], \\"x\\": {')""",
        """facts = replace(facts, '\\"ranks\\": [', '\\"ranks\\": [-Infinity, ')""",
        """facts = replace(facts, '\\"title\\": ', '\\"title\\": 5, \\"x\\": ')""",
    ],
)
def test_what_no_list_can_tell_is_read_anew(
    started: Callable[[], Catalog], folder: Path, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extension.library.scan._LATER", 0.0)
    lora(folder / "a.safetensors"), lora(folder / "b.safetensors")
    first = started()
    before = {one.name: json.dumps(listed(one), allow_nan=False) for one in first.index.rows()}
    first.close()
    database = tmp_path / "data" / "catalog.sqlite3"
    kept = database.read_bytes()
    spoilt(database, change)
    assert database.read_bytes() != kept
    found = {one.name: listed(one) for one in Index(tmp_path / "data").rows()}
    json.dumps(found, allow_nan=False)
    assert not found.get("a", {}).get("read")
    later = started()
    after = {one.name: listed(one) for one in later.index.rows()}
    after["a"]["added"] = json.loads(before["a"])["added"]  # which may be lost
    assert {name: json.dumps(one) for name, one in after.items()} == before
    later.used([later.find("a")])
    later.close()
    assert {one.name: one.uses for one in Index(tmp_path / "data").rows()} == {"a": 1, "b": 0}


@pytest.mark.parametrize("column", ["uses", "sha256", "beside"])
def test_a_table_of_this_version_that_lacks_a_column_gets_it(
    started: Callable[[], Catalog], folder: Path, tmp_path: Path, column: str
) -> None:
    lora(folder / "a.safetensors")
    first = started()
    first.used([first.find("a")])
    before = row(first, "a")
    first.close()
    with sqlite3.connect(tmp_path / "data" / "catalog.sqlite3") as database:
        others = ", ".join(one for one in _COLUMNS if one != column)
        database.execute(f"CREATE TABLE other AS SELECT {others} FROM file")
        database.execute("DROP TABLE file")
        database.execute("ALTER TABLE other RENAME TO file")
    database.close()
    later = started()
    assert later.index.problem == ""
    assert row(later, "a").used == before.used
    assert row(later, "a").uses == (0 if column == "uses" else 1)
    later.close()
    assert len(Index(tmp_path / "data")) == 1


@pytest.mark.parametrize("version", [0, 99])
def test_an_index_of_another_version_keeps_its_history(
    started: Callable[[], Catalog], folder: Path, tmp_path: Path, version: int
) -> None:
    """An older table lacks columns, a newer one has more."""
    lora(folder / "a.safetensors")
    first = started()
    first.used([first.find("a")])
    before = row(first, "a")
    first.close()
    with sqlite3.connect(tmp_path / "data" / "catalog.sqlite3") as database:
        database.execute("ALTER TABLE file ADD COLUMN more TEXT NOT NULL DEFAULT 'x'")
        if version == 0:
            columns = "path, relative, size, mtime_ns, name, facts, beside, notes, added, used, uses"
            database.execute(f"CREATE TABLE other AS SELECT {columns} FROM file")
            database.execute("DROP TABLE file")
            database.execute("ALTER TABLE other RENAME TO file")
        database.execute(f"PRAGMA user_version = {version}")
    database.close()
    later = started()
    after = row(later, "a")
    assert (after.added, after.used, after.uses) == (before.added, before.used, 1)
    assert after.complete
    later.close()
    assert [one.uses for one in Index(tmp_path / "data").rows()] == [1]


HOLDER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.readline()
database.execute("ROLLBACK")
"""


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Have another process hold a database."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    holder: subprocess.Popen[str] = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], **pipes)  # type: ignore[call-overload]
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    try:
        yield
    finally:
        holder.communicate("\n", timeout=30)


def test_an_index_that_another_process_holds_is_waited_for_and_never_deleted(
    started: Callable[[], Catalog], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extension.library.database._TIMEOUT", 0.2)
    monkeypatch.setattr("extension.library.scan._RETRY", 0.1)
    for name in "ab":
        lora(folder / f"{name}.safetensors")
    first = started()
    first.used([first.find("a")])
    before = row(first, "a")
    first.close()
    (folder / "b.safetensors").unlink()
    database = tmp_path / "data" / "catalog.sqlite3"
    inode = database.stat().st_ino
    with held(database):
        catalog = started()
        assert "database is locked" in catalog.index.problem
        assert "\n" not in catalog.index.problem
        assert [one.name for one in catalog.index.rows() if one.complete] == ["a"]
        catalog.used([catalog.find("a")])
        assert catalog.wait(20)
    _until(lambda: catalog.index.problem == "")
    _until(lambda: len(catalog.index) == 1)  # b, which was kept, is gone
    after = row(catalog, "a")
    assert (after.added, after.uses) == (before.added, 2)
    assert after.used > before.used
    catalog.close()
    assert [(one.name, one.added, one.uses) for one in Index(tmp_path / "data").rows()] == [("a", before.added, 2)]
    assert database.stat().st_ino == inode
    assert [path.name for path in database.parent.iterdir() if "damaged" in path.name] == []


def test_a_stop_as_a_scan_begins_is_not_forgotten(
    started: Callable[[], Catalog], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A web UI that ends would wait for the thread, which waits until it is asked again."""
    begins, waits = threading.Event(), list[bool]()

    class Asked(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(scanner._stopped and not self.is_set())
            return super().wait(timeout)

    def watch(one: Scanner) -> None:
        begins.set()
        while not (one._stopped and one._asked.is_set()):
            time.sleep(0.001)

    catalog = started()
    scanner = catalog._scanner
    monkeypatch.setattr(scanner, "_asked", Asked())
    monkeypatch.setattr(Scanner, "_watch", watch)
    scanner._asked.set()
    assert begins.wait(30)
    catalog.close()
    assert not any(waits)


def test_what_could_not_be_saved_is_saved_later(
    started: Callable[[], Catalog], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extension.library.database._TIMEOUT", 0.2)
    monkeypatch.setattr("extension.library.scan._RETRY", 0.1)
    lora(folder / "a.safetensors")
    catalog = started()
    with held(tmp_path / "data" / "catalog.sqlite3"):
        lora(folder / "b.safetensors")
        catalog.refresh()
        assert catalog.wait(30)
        assert "cannot be written" in catalog.index.problem
    _until(lambda: catalog.index.problem == "")
    assert {one.name for one in Index(tmp_path / "data").rows()} == {"a", "b"}


def test_an_index_that_is_damaged_or_deleted_meanwhile_is_written_whole_again(
    started: Callable[[], Catalog], folder: Path, tmp_path: Path
) -> None:
    lora(folder / "a.safetensors"), lora(folder / "b.safetensors")
    catalog = started()
    database = tmp_path / "data" / "catalog.sqlite3"
    database.write_bytes(b"no database")
    for use in (1, 2):
        catalog.used([catalog.find("a")])
        assert catalog.wait(30)
        catalog.index.save()
        assert {one.name: one.uses for one in Index(tmp_path / "data").rows()} == {"a": use, "b": 0}
        database.unlink()
    assert (tmp_path / "data" / "catalog.sqlite3.damaged-1").read_bytes() == b"no database"


def test_where_nothing_can_be_kept_everything_works_and_it_is_said(folder: Path, tmp_path: Path) -> None:
    lora(folder / "a.safetensors")
    (tmp_path / "data").write_bytes(b"a file where the folder would be")
    catalog = Catalog(lambda: [folder], lambda: tmp_path / "data")
    catalog.start()
    assert catalog.wait(30)
    catalog.close()
    assert catalog.find("a").name == "a"
    assert "cannot be written" in catalog.index.problem


def test_what_happens_in_the_folders_is_followed(
    started: Callable[[], Catalog], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = started()
    assert not catalog.index.rows()
    walks: list[int] = []
    monkeypatch.setattr("extension.library.scan.walk", lambda *given: walks.append(1) or walk(*given))
    lora(folder / "a.safetensors")
    _until(lambda: [one.name for one in catalog.index.rows() if one.complete] == ["a"])
    (folder / "a.json").write_text('{"remora": {"rating": 3}}')
    _until(lambda: catalog.index.rows()[0].notes is not None and catalog.index.rows()[0].notes.rating == 3)
    (folder / "a.safetensors").unlink()
    _until(lambda: not catalog.index.rows())
    assert not walks, "only the folder that changed is looked through"
    (folder / "new" / "deep").mkdir(parents=True)
    lora(folder / "new" / "deep" / "b.safetensors")
    _until(lambda: [one.name for one in catalog.index.rows() if one.complete] == ["b"])
    assert walks
    (folder / "new").rename(folder / "newer")
    _until(lambda: [one.file.folder for one in catalog.index.rows() if one.complete] == ["newer/deep"])
    (folder / "newer" / "deep" / "b.safetensors").unlink()
    _until(lambda: not catalog.index.rows())
    monkeypatch.setattr("extension.library.scan._SETTLE_AT_MOST", 2.0)
    ended = threading.Event()

    def log() -> None:
        while not ended.wait(0.1):  # as a training does
            (folder / "events.log").write_text("loss")

    writer = threading.Thread(target=log)
    writer.start()
    lora(folder / "epoch.safetensors")
    _until(lambda: [one.name for one in catalog.index.rows() if one.complete] == ["epoch"])
    ended.set()
    writer.join()


def test_without_a_watcher_the_folders_are_looked_through_again(
    started: Callable[[], Catalog], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "watchdog.events", None)
    monkeypatch.setattr("extension.library.scan._LOOK_EVERY", 0.1)
    catalog = started()
    lora(folder / "a.safetensors")
    catalog.scan_often()
    _until(lambda: len(catalog.index) == 1)


def test_a_refresh_walks_once_and_what_comes_meanwhile_is_not_forgotten(
    started: Callable[[], Catalog], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "watchdog.events", None)  # nothing tells of changes
    catalog = started()
    walks: list[int] = []
    monkeypatch.setattr("extension.library.scan.walk", lambda *given: walks.append(1) or walk(*given))
    lora(folder / "a.safetensors")
    reading, go_on = threading.Event(), threading.Event()

    def slow(path: Path) -> object:
        reading.set()
        assert go_on.wait(30)
        return glance(path)

    monkeypatch.setattr("extension.library.facts.glance", slow)
    catalog.refresh()
    assert reading.wait(30)
    lora(folder / "b.safetensors")
    catalog.refresh()  # while the first is being read
    go_on.set()
    assert catalog.wait(30)
    assert [one.file.name for one in catalog.index.rows() if one.complete] == ["a", "b"]
    assert len(walks) == 2


def test_when_a_file_was_used_is_saved_soon(started: Callable[[], Catalog], folder: Path, tmp_path: Path) -> None:
    lora(folder / "a.safetensors")
    catalog = started()
    catalog.used([catalog.find("a")])
    assert catalog.wait(30)
    kept = Index(tmp_path / "data")  # as after the process was killed
    assert [one.uses for one in kept.rows()] == [1]


def test_the_folders_may_be_gone(tmp_path: Path) -> None:
    catalog = Catalog(lambda: [tmp_path / "nowhere"])
    catalog.start()
    assert catalog.wait(30)
    catalog.close()
    assert not catalog.files


def test_walking_and_the_index_agree_on_any_name(started: Callable[[], Catalog], folder: Path) -> None:
    for name in ("a b", "ä", "日本", "x'y", "a.b.c", "<x>" if os.name != "nt" else "x"):
        lora(folder / f"{name}.safetensors")
    started().close()
    assert {one.name for one in started().index.rows()} == {found.file.name for found in walk([folder])}


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)


@pytest.mark.quick
def test_a_row_that_cannot_be_stored_costs_that_row(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index = Index(tmp_path)
    late = CatalogFile(tmp_path / "late.safetensors", "late", 1, 1 << 63)  # dated after 2262
    for name in "abc":
        index.change(CatalogFile(tmp_path / f"{name}.safetensors", name, 1, 1), name=name)
    index.change(late, name="late")
    index.change(CatalogFile(tmp_path / "d.safetensors", "d", 1, 1), name="d")
    index.save()
    assert sorted(row.name for row in Index(tmp_path).rows()) == ["a", "b", "c", "d"]
    assert index.problem == ""
    assert f"what is known of {late.path} cannot be stored" in caplog.text


@pytest.mark.quick
def test_what_an_unforeseen_error_kept_from_being_saved_is_saved_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index(tmp_path)
    index.change(CatalogFile(tmp_path / "a.safetensors", "a", 1, 1), name="a")
    index.use(CatalogFile(tmp_path / "a.safetensors", "a", 1, 1), 5.0)

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("extension.library.index._write", fail)
        with pytest.raises(MemoryError):
            index.save()
    index.save()
    (row,) = Index(tmp_path).rows()
    assert (row.name, row.uses) == ("a", 1)


@pytest.mark.quick
@pytest.mark.parametrize(
    "schema",
    [
        "".join(
            ["CREATE VIEW v0 AS SELECT 1 AS path;"]
            + [f"CREATE VIEW v{i} AS SELECT a.path FROM v{i - 1} a, v{i - 1} b;" for i in range(1, 9)]
            + [f"CREATE VIEW file AS SELECT path{''.join(f', 1 AS {name}' for name in list(_COLUMNS)[1:])} FROM v8;"]
        ),
        "CREATE TABLE file (path TEXT, x AS (length(path)));",
        "CREATE TABLE file (path TEXT); CREATE TRIGGER t AFTER INSERT ON file BEGIN DELETE FROM file; END;",
        "CREATE VIRTUAL TABLE file USING fts4(path);",
    ],
    ids=["views inside each other", "a computed column", "a trigger", "a virtual table"],
)
def test_a_database_that_makes_sqlite_compute_is_set_aside(tmp_path: Path, schema: str) -> None:
    try:
        with sqlite3.connect(tmp_path / "catalog.sqlite3") as database:
            database.executescript(f"{schema} PRAGMA user_version = 1;")
    except sqlite3.OperationalError as error:
        pytest.skip(f"this SQLite has none: {error}")
    finally:
        database.close()
    begun = time.thread_time()
    assert Index(tmp_path).problem.startswith(f"{tmp_path / 'catalog.sqlite3'} is damaged and was renamed")
    assert time.thread_time() - begun < 1
    assert (tmp_path / "catalog.sqlite3.damaged-1").exists()


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_scan_that_is_stopped_forgets_no_file_and_one_at_its_bound_says_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (folder / name).mkdir()
        lora(folder / name / f"{name}.safetensors")
    catalog = Catalog(lambda: [folder], lambda: tmp_path / "data")
    assert sorted(catalog.names.all()) == ["a", "b"]

    def stopped(folders: object, bounds: Bounds) -> Iterator[Found]:
        catalog._scanner.stop()
        return walk([folder], bounds)

    with monkeypatch.context() as patch:
        patch.setattr("extension.library.scan.walk", stopped)
        catalog.refresh()
    assert sorted(catalog.names.all()) == ["a", "b"]
    with monkeypatch.context() as patch:
        patch.setattr("extension.library.scan.Bounds", lambda stopped: Bounds(stopped, most=3))
        catalog.refresh()
    assert len(catalog.index) == 2
    assert "more than 3 files and folders" in catalog.problem_of_list
    catalog.refresh()
    assert catalog.problem_of_list == ""


def test_a_scan_that_fails_keeps_nobody_waiting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the folders cannot be read")

    monkeypatch.setattr("extension.library.scan.walk", fail)
    catalog = Catalog(lambda: [folder])
    catalog.start()
    assert catalog.wait(10)
    catalog.close()


def test_a_picture_that_came_while_a_file_was_read_stays(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan may have looked before it came, and be done after a request has read it."""
    path = lora(folder / "a.safetensors")
    catalog = Catalog(lambda: [folder], lambda: tmp_path / "data")
    catalog.refresh()
    scanner, file = catalog._scanner, catalog.find("a")
    before = catalog.found(file)
    read = scanner._reader.read

    def request(path: Path) -> object:
        monkeypatch.setattr(scanner._reader, "read", read)
        (folder / "a.png").write_bytes(b"x")
        assert catalog.reread(beside(file)).picture == folder / "a.png"
        return read(path)

    monkeypatch.setattr(scanner._reader, "read", request)
    scanner.read(before)
    assert catalog.row(file).picture == path.with_suffix(".png")
