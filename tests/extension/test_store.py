"""What is kept is shared by threads and programs, and never lost."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from filelock import FileLock

from extension import store as module
from extension.kept.always_on import AlwaysOn, AlwaysOnEntry, AlwaysOnFile, StackRefusedError
from extension.kept.block_presets import BlockPresetsFile
from extension.kept.presets import PresetError, PresetsFile
from extension.kept.region_files import RegionFiles
from extension.library import CatalogFile, NotesError, beside, read_notes, write_notes
from extension.store import LOCK_FILE, Store, json_bytes, locked, read_bytes, set_aside, write_bytes, write_text
from extension.text.block_weights import BlockWeightsError
from extension.text.regions import RegionTextError
from lib_lora import Region

ROOT = Path(__file__).resolve().parents[2]
POSIX = pytest.mark.skipif(os.name == "nt", reason="pipes and devices are files on POSIX systems alone")
STACK = AlwaysOn(True, (AlwaysOnEntry("a"),))


def words(path: Path, *, shared: bool = False) -> Store[tuple[str, ...]]:
    """Words in a file."""
    return Store(
        lambda: path,
        "words",
        (),
        lambda content: tuple(content.decode("utf-8").split()),
        lambda value: " ".join(value).encode("utf-8"),
        1000,
        shared=shared,
    )


def lora(folder: Path) -> CatalogFile:
    path = folder / "a.safetensors"
    path.write_bytes(b"x")
    return CatalogFile(path, "a", 1, path.stat().st_mtime_ns)


def names_in(folder: Path) -> list[str]:
    """Return the names of the files that hold something."""
    return sorted(path.name for path in folder.iterdir() if path.name != LOCK_FILE)


def at_once(*works: Callable[[], object]) -> None:
    """Run each in a thread of its own, all beginning together."""
    start = threading.Barrier(len(works))
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        start.wait()
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # it is raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def put_all(kept: Callable[[], PresetsFile], names: Sequence[str]) -> Callable[[], None]:
    return lambda: [kept().put(name, "<lora:a:1>") for name in names] and None


def test_two_pages_that_save_presets_at_once_lose_none(tmp_path: Path) -> None:
    ours, theirs = PresetsFile(lambda: tmp_path), PresetsFile(lambda: tmp_path)
    assert not ours.all, "it has been read before the other one writes"
    names = [[f"{who} {number}" for number in range(15)] for who in ("ours", "theirs")]
    at_once(put_all(lambda: ours, names[0]), put_all(lambda: theirs, names[1]))
    assert {preset.name for preset in ours.all} == {preset.name for preset in theirs.all} == {*names[0], *names[1]}


def test_three_changes_of_notes_at_once_are_all_kept(tmp_path: Path) -> None:
    file = lora(tmp_path)
    for round_ in range(10):
        wanted = {"notes": f"n{round_}", "words": f"w{round_}", "negative": f"m{round_}"}
        at_once(*(partial(write_notes, file, {name: text}) for name, text in wanted.items()))
        found = read_notes(beside(file).notes)
        assert {name: getattr(found, name) for name in wanted} == wanted


def test_presets_of_blocks_and_regions_are_kept_by_several_at_once(tmp_path: Path) -> None:
    blocks = [BlockPresetsFile(lambda: tmp_path, tuple) for _ in range(3)]
    regions = [RegionFiles(lambda: tmp_path) for _ in range(3)]
    at_once(
        *(lambda at=at: [blocks[at].put(f"P{at}-{n}", "1,0") for n in range(5)] for at in range(3)),  # type: ignore[misc]
        *(lambda at=at: [regions[at].keep(f"r{at}-{n}", Region(1, 1, b"\1")) for n in range(5)] for at in range(3)),  # type: ignore[misc]
    )
    assert blocks[0].own == {f"P{at}-{n}" for at in range(3) for n in range(5)}
    assert set(regions[0].all) == {f"r{at}-{n}" for at in range(3) for n in range(5)}


WRITER = """
import sys
from pathlib import Path
from extension.kept.presets import PresetsFile
presets = PresetsFile(lambda: Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    presets.put(f"{sys.argv[2]} {number}", "<lora:a:1>")
    print(number, flush=True)
"""


def writer(folder: Path, who: str, count: int) -> subprocess.Popen[str]:
    """Start a process that keeps presets, one after the other, as soon as it is told to, and says which it has."""
    command = [sys.executable, "-c", WRITER, str(folder), who, str(count)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)  # type: ignore[call-overload]
    assert process.stdout.readline() == "ready\n"
    return process  # type: ignore[no-any-return]


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_two_processes_that_save_presets_at_once_lose_none(tmp_path: Path) -> None:
    processes = [writer(tmp_path, who, 40) for who in ("one", "two")]
    for process in processes:
        go(process)
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    names = {preset.name for preset in PresetsFile(lambda: tmp_path).all}
    assert names == {f"{who} {number}" for who in ("one", "two") for number in range(40)}


@POSIX
def test_nothing_that_was_kept_is_lost_when_the_process_is_killed_while_it_writes(tmp_path: Path) -> None:
    written = 0
    for again in range(3):
        process = writer(tmp_path, f"run {again}", 10_000)
        go(process)
        assert process.stdout is not None
        for _ in range(5 + 7 * again):
            last = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        with process:
            rest = process.stdout.read()  # with the lines that were read ahead, which `communicate` may leave out
        last = max([last, *map(int, rest.split())])
        presets = PresetsFile(lambda: tmp_path)
        names = {preset.name for preset in presets.all}
        assert presets.problem == ""
        assert names >= {f"run {again} {number}" for number in range(last + 1)}
        assert len(names) - written in (last + 1, last + 2)  # the one that was being written may be there
        written = len(names)
        begun = time.monotonic()
        presets.put("after", "<lora:a:1>")  # the lock went with the process
        presets.remove("after")
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize("folder", ["here", "of a link"])
def test_a_value_is_read_again_when_another_program_changed_the_file(tmp_path: Path, folder: str) -> None:
    path = tmp_path / "words"
    mine, theirs = words(path), words(path)
    mine.change(lambda _: ("a",))
    assert mine.value == ("a",)
    if folder == "of a link":
        path.rename(tmp_path / "real")
        path.symlink_to(tmp_path / "real")
    for number in range(50):  # in less time than a file system's clock tells apart, and of one size
        theirs.change(lambda _, number=number: (chr(97 + number % 26),))  # type: ignore[misc]
        assert mine.value == (chr(97 + number % 26),)
    path.unlink()
    assert mine.value == ()


def test_a_change_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    presets = PresetsFile(lambda: tmp_path)
    presets.put("a", "<lora:a:1>")
    before = (tmp_path / "presets.json").read_bytes()
    with pytest.raises(PresetError):
        presets.remove("b")
    assert (tmp_path / "presets.json").read_bytes() == before
    assert names_in(tmp_path) == ["presets.json"]


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_names_is_written(tmp_path: Path, there: bool) -> None:
    (tmp_path / "data").mkdir()
    real, link = tmp_path / "store" / "stack.json", tmp_path / "data" / "stack.json"
    if there:
        real.parent.mkdir()
        real.write_text("{}")
        real.chmod(0o640)
    link.symlink_to(real)
    AlwaysOnFile(lambda: tmp_path / "data").put(STACK)
    assert link.is_symlink()
    assert json.loads(real.read_text("utf-8"))["always_on"] is True
    assert not there or real.stat().st_mode & 0o777 == 0o640
    real.write_text("{")
    AlwaysOnFile(lambda: tmp_path / "data").put(STACK)
    assert link.is_symlink()
    assert real.with_name("stack.json.damaged-1").read_text() == "{"
    assert AlwaysOnFile(lambda: tmp_path / "data").stack == STACK


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_notes_in_a_linked_file_are_written_where_the_link_leads(tmp_path: Path) -> None:
    file = lora(tmp_path)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a.json").write_text('{"notes": "old", "other": 1}')
    (tmp_path / "a.json").symlink_to(tmp_path / "store" / "a.json")
    write_notes(file, {"notes": "new"})
    assert (tmp_path / "a.json").is_symlink()
    assert json.loads((tmp_path / "store" / "a.json").read_text()) == {"notes": "new", "other": 1}


@POSIX
@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a device", "private"])
def test_nothing_is_written_over_what_cannot_be_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "presets.json"
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        path.write_text('{"version": 1, "presets": []}')
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("this user may read any file")
    before = path.lstat()
    presets = PresetsFile(lambda: tmp_path)
    assert presets.all == []
    assert "nothing is saved there until it can be" in presets.problem
    with pytest.raises(OSError, match=r"regular file|denied"):
        presets.put("a", "<lora:a:1>")
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert names_in(tmp_path) == ["presets.json"]


def test_a_damaged_file_of_other_programs_too_is_left_to_the_user(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_bytes(b"\xff")
    store = words(path, shared=True)
    assert store.value == ()
    assert store.problem.endswith("; repair it or move it away")
    with pytest.raises(UnicodeDecodeError):
        store.change(lambda _: ("a",))
    assert path.read_bytes() == b"\xff"


def test_a_damaged_file_gets_a_number_that_none_has(tmp_path: Path) -> None:
    (tmp_path / "a.damaged-1").write_text("first")
    (tmp_path / "a.damaged-3").write_text("third")
    for text in ("second", "fourth"):
        (tmp_path / "a").write_text(text)
        set_aside(tmp_path / "a")
    found = {name: (tmp_path / name).read_text() for name in names_in(tmp_path)}
    assert found == {f"a.damaged-{n}": text for n, text in enumerate(("first", "second", "third", "fourth"), 1)}


HOLDER = """
import sys
from pathlib import Path
from extension.store import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_who_waits_for_long_is_told_and_nothing_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.2)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    holder: subprocess.Popen[str]
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, os.path.realpath(tmp_path)], cwd=ROOT, **pipes)  # type: ignore[call-overload]
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    store = words(tmp_path / "words")
    try:
        with pytest.raises(TimeoutError, match="another program has been changing it for long; try again"):
            store.change(lambda _: ("a",))
        assert store.value == ()
    finally:
        holder.communicate("\n", timeout=30)
    assert store.change(lambda _: ("a",)) == ("a",)


@POSIX
def test_a_drive_without_locks_is_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr("fcntl.flock", refuse)
    store = words(tmp_path / "words")
    assert store.change(lambda value: (*value, "a")) == ("a",)
    assert store.change(lambda value: (*value, "b")) == ("a", "b")


@POSIX
def test_a_drive_without_locks_is_found_out_at_once_with_an_old_filelock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    class OldFileLock(FileLock):
        """It takes any error of `flock` for a lock that another program holds."""

        def _acquire(self) -> None:
            Path(self.lock_file).touch()

    waited: list[float] = []
    monkeypatch.setattr("fcntl.flock", refuse)
    monkeypatch.setattr("extension.store.FileLock", OldFileLock)
    monkeypatch.setattr("time.sleep", waited.append)
    store = words(tmp_path / "words")
    assert store.change(lambda value: (*value, "a")) == ("a",)
    assert store.change(lambda value: (*value, "b")) == ("a", "b")
    assert not waited


def test_a_thread_may_lock_again_what_it_has_locked(tmp_path: Path) -> None:
    store = words(tmp_path / "words")
    with store.lock(), locked(tmp_path.resolve()):
        assert store.change(lambda value: (*value, "a")) == ("a",)
        assert store.change(lambda value: (*value, "b")) == ("a", "b")
    assert names_in(tmp_path) == ["words"]


@pytest.mark.parametrize("before", [None, b"a b", b"\xff"], ids=["no file", "a file", "a damaged file"])
@pytest.mark.parametrize(
    ("value", "told"),
    [
        (("x" * 1001,), r"words has more than the 1,000 bytes"),
        (("\ud800",), "surrogates not allowed"),
        (("nested",), "maximum recursion depth"),
        (("refused",), "no such word"),
    ],
    ids=["too large", "not written", "nested", "not read"],
)
def test_a_value_that_could_not_be_read_back_is_refused_and_all_is_as_before(
    tmp_path: Path, before: bytes | None, value: tuple[str, ...], told: str
) -> None:
    path = tmp_path / "words"
    if before is not None:
        path.write_bytes(before)

    def read(content: bytes) -> tuple[str, ...]:
        if content == b"nested":
            raise RecursionError("maximum recursion depth exceeded")
        if content == b"refused":
            raise ValueError("no such word")
        return tuple(content.decode("utf-8").split())

    def write(value: tuple[str, ...]) -> bytes:
        return " ".join(value).encode("utf-8")

    store = Store(lambda: path, "words", (), read, write, 1000, refusal=PresetError)
    was = store.value, store.problem
    with pytest.raises(PresetError, match=f"words cannot be saved, as words could not be read again.*{told}.*nothing"):
        store.change(lambda _: value)
    assert (store.value, store.problem) == was
    files = {name: (tmp_path / name).read_bytes() for name in names_in(tmp_path)}
    assert files == ({} if before is None else {"words": before})


def test_what_has_no_more_room_is_refused_in_each_file_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("presets", "always_on", "region_files"):
        monkeypatch.setattr(f"extension.kept.{name}._MAX_BYTES", 10)
    monkeypatch.setattr("extension.kept.block_presets._LONGEST", 10)
    monkeypatch.setattr("extension.library.notes._MAX_BYTES", 10)
    file = lora(tmp_path)
    for error, keep in (
        (PresetError, lambda: PresetsFile(lambda: tmp_path).put("a", "<lora:a:1>")),
        (StackRefusedError, lambda: AlwaysOnFile(lambda: tmp_path).put(STACK)),
        (RegionTextError, lambda: RegionFiles(lambda: tmp_path).keep("a", Region(1, 1, b"\1"))),
        (BlockWeightsError, lambda: BlockPresetsFile(lambda: tmp_path, tuple).put("LONG", "1,0,1,0")),
        (NotesError, lambda: write_notes(file, {"notes": "some words"})),
    ):
        with pytest.raises(error, match=r"more than the 10 bytes that such a file may have.*; nothing was changed"):
            keep()
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"a.safetensors", LOCK_FILE}


def test_without_a_file_the_value_lasts_as_long_as_the_program() -> None:
    store: Store[int] = Store(lambda: None, "a number", 0, int, lambda value: b"%d" % value, 10)
    at_once(*[lambda: [store.change(lambda value: value + 1) for _ in range(200)]] * 4)
    assert store.value == 800
    assert store.problem == ""


def test_half_a_character_is_kept_as_json_writes_it(tmp_path: Path) -> None:
    assert json.loads(json_bytes({"a": "\ud800 ä"}, 1)) == {"a": "\ud800 ä"}
    assert json_bytes({"a": "ä"}, 1) == '{\n "a": "ä"\n}'.encode()
    write_text(tmp_path / "a", "\ud800")
    assert (tmp_path / "a").read_text() == "?"
    file = lora(tmp_path)
    (tmp_path / "a.json").write_text(r'{"other": "\ud800"}')
    write_notes(file, {"notes": "n"})
    assert json.loads((tmp_path / "a.json").read_text()) == {"other": "\ud800", "notes": "n"}


@pytest.mark.skipif(os.name == "nt", reason="files have no such modes there")
@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_the_mask_of_the_process_is_never_changed(tmp_path: Path, mask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    former = os.umask(mask)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda mask: pytest.fail("other threads make files meanwhile"))
            write_bytes(tmp_path / "a", b"x")
    finally:
        os.umask(former)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o666 & ~mask
    (tmp_path / "a").chmod(0o604)
    write_bytes(tmp_path / "a", b"y")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o604


def test_a_name_of_full_length_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("日" * 83 + ".json")  # 254 bytes of the 255 that Linux allows
    write_bytes(path, b"x")
    assert path.read_bytes() == b"x"


@POSIX
def test_reading_ends_at_the_limit_and_never_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            read_bytes(path, 10)
        if path != tmp_path:
            with pytest.raises(OSError, match="not a regular file"):
                write_bytes(path, b"x")
    (tmp_path / "a").write_bytes(b"12345")
    assert read_bytes(tmp_path / "a", 5) == b"12345"
    with pytest.raises(ValueError, match="a has more than the 4 bytes"):
        read_bytes(tmp_path / "a", 4)
