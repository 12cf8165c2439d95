"""The index of the pictures in the output folders, and the thread that fills it."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from extension.library.walk import ScanStoppedError
from extension.outputs import LoraKey, LoraRow, Outputs, PictureFile, PictureIndex, Sought, scan
from extension.outputs import index as index_module
from tests.extension.outputs.pictures import HEAD, SIZE, aged, chunk, png, saved, text_with, with_comment

SHORT = "0123456789ab"
WHOLE = "fedcba98" * 8


@pytest.fixture
def top(tmp_path: Path) -> Path:
    folder = tmp_path / "outputs"
    folder.mkdir()
    aged(folder, 30.0)
    return folder


@pytest.fixture
def outputs(top: Path, tmp_path: Path) -> Outputs:
    return Outputs(lambda: [top], lambda: tmp_path / "data")


def index_of(outputs: Outputs) -> PictureIndex:
    assert outputs.index is not None
    return outputs.index


def every(outputs: Outputs) -> list[PictureFile]:
    return index_of(outputs).latest(Sought(), 0, 200)[1]


def names(outputs: Outputs) -> list[str]:
    return [picture.name for picture in every(outputs)]


def of_name(
    outputs: Outputs, name: str, skip: int = 0, most: int = 60, words: tuple[str, ...] = ()
) -> tuple[int, list[str]]:
    loras = [row.id for row in index_of(outputs).loras_of(LoraKey(frozenset({name})))]
    count, found = index_of(outputs).of_loras(loras, Sought(words=words), skip, most)
    return count, [picture.name for picture in found]


def test_pictures_are_found_by_lora_the_latest_first_in_pages(outputs: Outputs, top: Path) -> None:
    for number in range(7):
        tags = "<lora:Zorp:0.8>" if number % 2 else "<lora:neon:1> <lora:zorp:0.5>"
        saved(top / f"day{number % 3}" / f"{number}.png", png(text_with(tags)), age=1000 - number)
    assert outputs.scan() is False
    assert names(outputs) == [f"{number}.png" for number in range(6, -1, -1)]
    assert of_name(outputs, "zorp") == (7, [f"{number}.png" for number in range(6, -1, -1)])
    assert of_name(outputs, "neon") == (4, ["6.png", "4.png", "2.png", "0.png"])
    assert of_name(outputs, "neon", skip=1, most=2) == (4, ["4.png", "2.png"])
    assert of_name(outputs, "other") == (0, [])
    (first, *_) = every(outputs)
    assert (first.width, first.height, first.uses.seed) == (1, 1, 7)
    assert [(use.name, use.strength) for use in first.uses.loras] == [("neon", "1"), ("zorp", "0.5")]
    assert index_of(outputs).latest(Sought(7), 0, 1)[0] == 7
    assert index_of(outputs).latest(Sought(8), 0, 1) == (0, [])
    counts = {row.name: row.pictures for row in index_of(outputs).loras(Sought(), 10)}
    assert counts == {"neon": 4, "zorp": 4, "Zorp": 3}
    text = text_with("in Winter, 100% ÄPFEL Straße КОШКА <lora:neon:1>")
    saved(top / "day0" / "words.jpg", with_comment("JPEG", text), age=10)
    outputs.scan()
    others = {("äpfel", "STRASSE"): 1, ("Äpfel", "fox"): 1, ("кошкА",): 1, ("straße",): 1, ("apfel",): 0, ("ко_ка",): 0}
    for words, found in others.items():
        assert index_of(outputs).latest(Sought(words=words), 0, 9)[0] == found, words
    for words, found in {("winter", "FOX"): 1, ("100%",): 1, ("1%0",): 0, ("f_x",): 0, ("fox",): 8, (): 8}.items():
        assert index_of(outputs).latest(Sought(words=words), 0, 9)[0] == found, words
        assert of_name(outputs, "neon", words=words)[0] == (5 if words in (("fox",), ()) else found), words
    (row,) = index_of(outputs).loras(Sought(words=("winter",)), 10)
    (latest,) = index_of(outputs).latest(Sought(words=("winter",)), 0, 1)[1]
    assert (row.name, row.pictures, row.latest_ns) == ("neon", 1, latest.mtime_ns)


def test_new_changed_moved_and_deleted_files_are_followed(outputs: Outputs, top: Path) -> None:
    one, two = saved(top / "1.png", png(text_with("<lora:a:1>"))), saved(top / "sub" / "2.png", png())
    outputs.scan()
    former = {picture.name: picture.id for picture in every(outputs)}
    one.unlink()
    saved(top / "sub" / "3.png", png(text_with("<lora:b:1>")), age=50)
    saved(two, png(text_with("<lora:c:1>")), age=40)
    aged(top / "sub", 20.0)
    outputs.scan()
    assert names(outputs) == ["2.png", "3.png"]
    assert [of_name(outputs, name)[0] for name in "abc"] == [0, 1, 1]
    assert not {picture.id for picture in every(outputs)} & set(former.values()), "an id is never used again"
    two.parent.rename(top / "moved")
    aged(top, 10.0)
    outputs.scan()
    assert {picture.folder for picture in every(outputs)} == {str(top / "moved")}
    (top / "moved" / "2.png").unlink()
    (top / "moved" / "3.png").unlink()
    (top / "moved").rmdir()
    outputs.scan()
    assert index_of(outputs).count() == 0


def test_a_folder_that_did_not_change_is_not_listed_again(
    outputs: Outputs, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(top / "a" / "1.png", png())
    saved(top / "b" / "2.png", png())
    outputs.scan()
    listed: list[str] = []
    files = scan._files
    monkeypatch.setattr(scan, "_files", lambda path: listed.append(path) or files(path))
    outputs.scan()
    assert listed == []
    (top / "b" / "3.png").write_bytes(png())
    aged(top / "b" / "3.png", 60.0)
    aged(top / "b", 20.0)
    outputs.scan()
    assert listed == [str(top / "b")]
    assert sorted(names(outputs)) == ["1.png", "2.png", "3.png"]


def test_a_file_that_is_still_written_is_read_when_it_is_whole(outputs: Outputs, top: Path) -> None:
    content = png(text_with("<lora:a:1>"))
    path = saved(top / "1.png", content[:60], age=0)
    assert outputs.scan() is True
    assert names(outputs) == []
    path.write_bytes(content)
    aged(path, 3.0)
    assert outputs.scan() is False
    assert of_name(outputs, "a") == (1, ["1.png"])


def test_links_other_disks_and_the_data_folder_are_left_out(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "outside" / "secret.png", png(text_with("<lora:a:1>")))
    saved(top / "data" / "thumbnail.png", png())
    saved(top / "own.png", png())
    saved(top / "note.txt", b"<lora:a:1>")
    saved(top / "disk" / "2.png", png())
    (top / "link.png").symlink_to(tmp_path / "outside" / "secret.png")
    (top / "sub").symlink_to(tmp_path / "outside")
    (top / "loop").symlink_to(top)
    (top / "folder.png").mkdir()
    os.mkfifo(top / "pipe.png")
    (top / os.fsdecode(b"no\xfftext.png")).write_bytes(png())
    outputs = Outputs(lambda: [top], lambda: top / "data")
    outputs.scan()
    assert sorted(names(outputs)) == ["2.png", "own.png"]
    stat = Path.stat

    def elsewhere(path: Path, **options: bool) -> os.stat_result:
        found = stat(path, **options)
        return os.stat_result((*found[:2], 99, *found[3:])) if path.name == "disk" else found

    monkeypatch.setattr(Path, "stat", elsewhere)
    outputs = Outputs(lambda: [top], lambda: top / "data")
    outputs.scan()
    assert names(outputs) == ["own.png"]


def test_folders_in_each_other_or_behind_links_are_read_once(top: Path, tmp_path: Path) -> None:
    saved(top / "sub" / "1.png", png())
    (tmp_path / "link").symlink_to(top)
    outputs = Outputs(lambda: [top / "sub", tmp_path / "link", top], lambda: tmp_path / "data")
    outputs.scan()
    assert outputs.tops() == [str(top)]
    assert names(outputs) == ["1.png"]


def test_a_scan_ends_at_its_bound_and_says_so(
    outputs: Outputs, top: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(6):
        saved(top / str(number) / "1.png", png())
    outputs.scan()
    assert index_of(outputs).count() == 6
    monkeypatch.setattr(scan, "MOST", 5)
    outputs.scan()
    assert outputs.problem.startswith("the output folders have more than 5 pictures and folders")
    assert index_of(outputs).count() == 6, "what may be there is not forgotten"
    outputs.scan()
    assert caplog.text.count("more than 5 pictures") == 1
    monkeypatch.setattr(scan, "MOST", 50)
    outputs.scan()
    assert outputs.problem == ""


def test_pictures_of_a_drive_that_is_away_are_kept_and_of_another_setting_forgotten(
    top: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders = [top]
    outputs = Outputs(lambda: folders, lambda: tmp_path / "data")
    saved(top / "1.png", png())
    outputs.scan()
    top.rename(tmp_path / "away")
    outputs.scan()
    assert names(outputs) == ["1.png"]
    assert not outputs.present(every(outputs)[0])
    assert caplog.messages == []
    (tmp_path / "away").rename(top)
    assert outputs.present(every(outputs)[0])
    folders[:] = [tmp_path / "other"]
    assert not outputs.present(every(outputs)[0])
    outputs.scan()
    assert names(outputs) == []


def test_a_picture_that_was_replaced_by_a_link_is_not_present(outputs: Outputs, top: Path, tmp_path: Path) -> None:
    path = saved(top / "sub" / "1.png", png())
    outputs.scan()
    (picture,) = every(outputs)
    assert outputs.present(picture)
    (top / "sub").rename(tmp_path / "elsewhere")
    (top / "sub").symlink_to(tmp_path / "elsewhere")
    assert path.is_file()
    assert not outputs.present(picture)


def test_a_damaged_picture_costs_only_its_lora(outputs: Outputs, top: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(top / "1.png", HEAD + SIZE + chunk(b"tEXt", b"parameters\0x", checksum=1))
    saved(top / "2.png", b"\0" * 30)
    saved(top / "3.png", png(text_with("<lora:a:1>")))
    with caplog.at_level(logging.WARNING):
        outputs.scan()
        outputs.scan()
    assert sorted(names(outputs)) == ["1.png", "2.png", "3.png"]
    assert of_name(outputs, "a") == (1, ["3.png"])
    assert len(caplog.records) == 2
    assert "1.png are not known: its tEXt chunk has a wrong checksum" in caplog.text


def test_a_scan_that_is_stopped_in_the_middle_goes_on_where_it_was(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        saved(top / f"{number}.png", png(text_with("<lora:a:1>")))
    monkeypatch.setattr(scan, "_TOGETHER", 4)
    read: list[str] = []
    original = scan.read_embedded

    def counted(path: Path) -> object:
        read.append(path.name)
        if len(read) == 10:
            outputs.close()
        return original(path)

    monkeypatch.setattr(scan, "read_embedded", counted)
    outputs = Outputs(lambda: [top], lambda: tmp_path / "data")
    with pytest.raises(ScanStoppedError):
        outputs.scan()
    assert index_of(outputs).count() == 8
    outputs = Outputs(lambda: [top], lambda: tmp_path / "data")
    outputs.scan()
    assert of_name(outputs, "a", most=200)[0] == 30
    assert len(read) == 10 + 22, "the eight that were stored are not read again"


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LATER", "_SETTLED", "_OFTEN", "_SLICE"):
        monkeypatch.setattr(scan, name, 0.05)


@pytest.mark.usefixtures("quick")
def test_the_thread_reads_follows_and_ends(outputs: Outputs, top: Path) -> None:
    saved(top / "1.png", png())
    before = set(threading.enumerate())
    outputs.start()
    try:
        assert outputs.wait(20)
        assert names(outputs) == ["1.png"]
        saved(top / "2.png", png())
        aged(top, 20.0)
        time.sleep(0.1)
        outputs.look()
        wait_for(lambda: len(names(outputs)) == 2)
        saved(top / "3.png", png(), age=0)
        aged(top, 0)
        outputs.ask(0.05)
        wait_for(lambda: len(names(outputs)) == 3)
        assert outputs.wait(20)
    finally:
        outputs.close()
    assert not {thread.name for thread in set(threading.enumerate()) - before if thread.name == "remora-pictures"}


@pytest.mark.usefixtures("quick")
def test_it_rests_while_a_picture_is_made(top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = threading.Event()
    busy.set()
    monkeypatch.setattr(scan, "_SLICE", 0.0)
    outputs = Outputs(lambda: [top], lambda: tmp_path / "data", busy.is_set)
    saved(top / "1.png", png())
    outputs.start()
    try:
        assert not outputs.wait(0.7)
        assert names(outputs) == []
        busy.clear()
        assert outputs.wait(20)
        assert names(outputs) == ["1.png"]
        busy.set()
        outputs.ask()
    finally:
        begun = time.monotonic()
        outputs.close()
    assert time.monotonic() - begun < 5, "it stops while it rests"


def test_without_a_data_folder_there_is_no_index(top: Path) -> None:
    outputs = Outputs(lambda: [top], lambda: None)
    outputs.start()
    assert outputs.index is None
    assert outputs.scan() is False
    assert outputs._thread is None


@pytest.mark.parametrize("damage", [b"no database" * 1000, b"SQLite format 3\0" + bytes(5000)])
def test_a_damaged_index_is_set_aside_and_made_again(
    outputs: Outputs, top: Path, tmp_path: Path, damage: bytes
) -> None:
    saved(top / "1.png", png(text_with("<lora:a:1>")))
    outputs.scan()
    for end in ("-wal", "-shm"):
        (tmp_path / "data" / f"pictures.sqlite3{end}").unlink(missing_ok=True)
    (tmp_path / "data" / "pictures.sqlite3").write_bytes(damage)
    with pytest.raises(sqlite3.DatabaseError):
        outputs.scan()
    assert "renamed to pictures.sqlite3.damaged-1" in index_of(outputs).problem
    outputs.scan()
    assert of_name(outputs, "a") == (1, ["1.png"])
    assert index_of(outputs).problem == ""
    assert (tmp_path / "data" / "pictures.sqlite3.damaged-1").read_bytes() == damage


def test_an_index_with_views_or_of_another_version_is_not_used(outputs: Outputs, top: Path, tmp_path: Path) -> None:
    saved(top / "1.png", png(text_with("<lora:a:1>")))
    outputs.scan()
    database = sqlite3.connect(tmp_path / "data" / "pictures.sqlite3")
    database.execute("PRAGMA user_version = 99")
    database.commit()
    database.close()
    assert names(outputs) == []
    outputs.scan()
    assert names(outputs) == ["1.png"]
    database = sqlite3.connect(tmp_path / "data" / "pictures.sqlite3")
    database.execute("CREATE VIEW endless AS SELECT 1")
    database.commit()
    database.close()
    with pytest.raises(sqlite3.DatabaseError):
        names(outputs)
    outputs.scan()
    assert names(outputs) == ["1.png"]


def test_a_text_means_a_file_by_its_hash_else_by_its_name() -> None:
    def fits(name: str, digest: str, short: str = "", sha256: str = "") -> bool:
        return LoraKey(frozenset({"zorp"}), short, sha256).fits(LoraRow(0, name, digest))

    assert fits("Zorp", "")
    assert not fits("neon", "")
    assert fits("zorp", SHORT), "the file is not hashed yet"
    assert fits("renamed", SHORT, SHORT)
    assert fits("renamed", SHORT[:10], SHORT)
    assert not fits("zorp", "f" * 12, SHORT), "another file had this name"
    assert fits("zorp", "f" * 8, SHORT), "8 digits are of the whole file, whose hash is unknown"
    assert fits("renamed", WHOLE[:8], SHORT, WHOLE)
    assert not fits("zorp", "0" * 8, SHORT, WHOLE)


def test_one_file_under_two_names_counts_a_picture_once(tmp_path: Path) -> None:
    index = PictureIndex(tmp_path)
    uses = scan.read_uses(text_with("<lora:zorp:1> <lora:old:0.5>", f"zorp: {SHORT}, old: {SHORT}"))
    index.change([PictureFile("/a", f"{number}.png", 1, number, uses=uses) for number in range(5)], ())
    loras = [row.id for row in index.loras_of(LoraKey(frozenset({"zorp"}), SHORT))]
    assert len(loras) == 2
    count, found = index.of_loras(loras, Sought(), 1, 3)
    assert (count, [one.name for one in found]) == (5, ["3.png", "2.png", "1.png"])
    index.change((), [found[0].id])
    assert index.of_loras(loras, Sought(), 0, 9)[0] == 4


def test_pages_need_no_table_that_is_read_whole(tmp_path: Path) -> None:
    index = PictureIndex(tmp_path)
    with index_module._connected(tmp_path / "pictures.sqlite3") as database:
        for query in (
            "SELECT picture FROM used WHERE lora IN (1) ORDER BY mtime_ns DESC, picture DESC LIMIT 60 OFFSET 0",
            "SELECT id FROM picture ORDER BY mtime_ns DESC, id DESC LIMIT 60 OFFSET 0",
            "SELECT id FROM picture WHERE seed = 1 ORDER BY mtime_ns DESC, id DESC LIMIT 60 OFFSET 0",
            "SELECT name, size, mtime_ns, id FROM picture WHERE folder = 'a'",
            "DELETE FROM used WHERE picture = 1",
        ):
            plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {query}")]
            assert all("INDEX" in step and "TEMP" not in step for step in plan), plan
    assert index.count() == 0
