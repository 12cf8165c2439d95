"""Files are moved with what is beside them: whole or not at all, whenever the process ends, and never over others."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from extension.library.moves import Journal, Move, Neighbours, Operation, in_trash, moved, taken, trash_time, trashed
from extension.library.walk import SIDECARS, TRASH, walk
from extension.store import LOCK_FILE

ROOT = Path(__file__).parents[3]
BESIDE = (".json", ".civitai.info", ".preview.png", ".txt", ".metadata.json")
STEPS = ((os, "open"), (Path, "replace"), (Path, "unlink"), (Path, "symlink_to"), (shutil, "copy2"))
"""What changes a folder."""
MOST_STEPS = 300


class KilledError(BaseException):
    """The process ends."""


def filled(folder: Path, *names: str, ends: tuple[str, ...] = BESIDE) -> dict[str, bytes]:
    """Write LoRA with files beside them; return what each file has, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {name + end: os.urandom(40) for name in names for end in (".safetensors", *ends)}
    for name, content in found.items():
        (folder / name).write_bytes(content)
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """Return what the files below a folder have, by their paths."""
    every = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK_FILE)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in every}


def whole(path: Path, folder: Path, stem: str) -> Move:
    return moved(path, Neighbours(path.parent.glob("*.safetensors")).beside(path), folder, stem)


@contextmanager
def killed_at(step: int, *, after: bool, disks: bool) -> Iterator[list[str]]:
    """End the process at a step, before or after it; with `disks`, each folder is a disk of its own."""
    made: list[str] = []

    def stepped(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            if name == "replace" and disks and arguments[0].parent != Path(arguments[1]).parent:
                raise OSError(errno.EXDEV, "another disk")
            made.append(name)
            if len(made) == step and not after:
                raise KilledError
            done = work(*arguments, **more)
            if len(made) == step:
                raise KilledError
            return done

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in STEPS:
            patch.setattr(owner, name, stepped(name, getattr(owner, name)))
        try:
            yield made
        except KilledError:
            made.append("killed")


def interrupted(root: Path, kind: str, step: int, *, after: bool) -> bool:
    """Move a LoRA, end the process at a step, and go on in another one; tell whether the move had ended before."""
    files = filled(root / "here", "a")
    if kind == "links":
        (root / "else").mkdir()
        for name in files:
            (root / "here" / name).rename(root / "else" / name)
            (root / "here" / name).symlink_to(Path("..", "else", name))
    before = contents(root)
    move = whole(root / "here" / "a.safetensors", root / "there", "b")
    journal, operation = Journal(lambda: root / "data"), Operation((move,), {"a": move.target})
    with killed_at(step, after=after, disks=kind == "disks") as made, journal.kept(operation):
        move.carry_out()
    later = Journal(lambda: root / "data")
    for key, kept in later.unfinished.items():
        assert kept == operation
        for one in kept.moves:
            one.carry_out()
        later.finish(key)
    done = {name: content for name, content in before.items() if not name.startswith("here/")}
    done |= {f"there/b{name[1:]}": content for name, content in files.items()}
    found = {name: content for name, content in contents(root).items() if not name.startswith("data/")}
    assert found == done or (found == before and "killed" in made), f"{kind}, step {step}: {made}"
    return "killed" not in made


def test_a_move_that_ends_at_any_step_is_finished_or_has_not_begun(tmp_path: Path) -> None:
    """Every step is tried, on one disk, between two disks, and with links: ended before it, and after it."""
    for kind in ("disk", "disks", *(["links"] if os.name != "nt" else [])):
        for after in (False, True):
            ended = (interrupted(tmp_path / f"{kind}{after}{n}", kind, n, after=after) for n in range(1, MOST_STEPS))
            count = next(number for number, is_over in enumerate(ended) if is_over)
            assert count >= 2 * (1 + len(BESIDE)), "a file takes two steps, at least"


MOVER = """
import sys
from pathlib import Path
from extension.library.moves import Journal, Neighbours, Operation, moved
root = Path(sys.argv[1])
files = sorted((root / "here").glob("*.safetensors"))
near = Neighbours(files)
moves = tuple(moved(path, near.beside(path), root / "there", path.stem) for path in files)
with Journal(lambda: root / "data").kept(Operation(moves, {})):
    print("begun", flush=True)
    for move in moves:
        move.carry_out()
"""


@pytest.mark.full
def test_a_move_of_many_whose_process_is_killed_is_finished_and_loses_nothing(tmp_path: Path) -> None:
    names = [f"lora {number}" for number in range(60)]
    halfway = []
    for round_, seconds in enumerate((0.0, 0.01, 0.03)):
        root = tmp_path / str(round_)
        files = filled(root / "here", *names)
        with subprocess.Popen([sys.executable, "-c", MOVER, str(root)], cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n" or process.stdout.closed
            time.sleep(seconds)
            process.kill()
        halfway.append(len(list((root / "there").glob("*"))))
        later = Journal(lambda root=root: root / "data")  # type: ignore[misc]
        for operation in later.unfinished.values():
            for move in operation.moves:
                move.carry_out()
        assert contents(root / "there") == files
        assert not contents(root / "here")
    assert min(halfway) < len(names) * (1 + len(BESIDE)), "it was killed before its end"


def test_what_cannot_be_moved_whole_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = filled(tmp_path / "here", "a")
    path = tmp_path / "here" / "a.safetensors"
    move = whole(path, tmp_path / "there", "a")
    (tmp_path / "there").mkdir()

    def stays(said: str, *, ours: bool = True) -> None:
        with pytest.raises(OSError, match=said):
            move.carry_out()
        assert contents(tmp_path / "here") == (files if ours else {})

    # a program was quicker
    for name in ("a.safetensors", "a.preview.png"):
        theirs = tmp_path / "there" / name
        theirs.write_bytes(b"theirs")
        assert taken(move) == theirs
        stays(f"there is a file {name} already")
        assert contents(tmp_path / "there") == {name: b"theirs"}
        theirs.unlink()
    # another program has a file open, as Windows says it; the disk is full; the folder is for reading
    real = Path.replace
    for name, error in (("a.safetensors", errno.EACCES), ("a.txt", errno.ENOSPC), ("a.json", errno.EROFS)):

        def refuse(self: Path, target: Path, name: str = name, error: int = error) -> Path:
            if self.name == name and self.parent.name == "here":
                raise OSError(error, os.strerror(error))
            return real(self, target)

        monkeypatch.setattr(Path, "replace", refuse)
        stays(os.strerror(error))
        assert not contents(tmp_path / "there")
        monkeypatch.undo()
    # it is the same file by another way
    if os.name != "nt":
        (tmp_path / "link").symlink_to(tmp_path / "here")
        same = Move(((path, tmp_path / "link" / path.name),))
        with pytest.raises(FileExistsError, match=r"there is a file a\.safetensors already"):
            same.carry_out()
        assert contents(tmp_path / "here") == files
    shutil.rmtree(tmp_path / "here")
    stays("it is gone", ours=False)
    assert not (tmp_path / "here").exists()


def test_the_files_of_a_lora_are_all_that_the_library_knows_and_no_others(tmp_path: Path) -> None:
    filled(tmp_path, "a", ends=SIDECARS)
    filled(tmp_path, "a.v2", "ab", "adapter_model", ends=(".json", ".png", ".preview.png"))
    for name in ("a.zip", "a.json.bak", "b.json", "adapter_config.json"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "a.ckpt").write_bytes(b"")
    near = Neighbours([*tmp_path.glob("*.safetensors"), tmp_path / "a.ckpt"])

    def names(name: str) -> set[str]:
        return {path.name for path in near.beside(tmp_path / name)}

    assert names("a.safetensors") == {f"a{end}" for end in SIDECARS}
    assert names("a.v2.safetensors") == {"a.v2.json", "a.v2.png", "a.v2.preview.png"}
    assert "adapter_config.json" in names("adapter_model.safetensors")
    assert near.sharing(tmp_path / "a.safetensors") == [tmp_path / "a.ckpt"]
    assert near.sharing(tmp_path / "ab.safetensors") == []
    # what came beside it since goes with it, there and back, and into the trash
    move = moved(tmp_path / "ab.safetensors", (), tmp_path / "there", "c")
    move.carry_out()
    (tmp_path / "there" / "c.txt").write_bytes(b"mine")
    assert {one.name for one in (tmp_path / "there").iterdir()} == {
        "c.safetensors",
        "c.json",
        "c.png",
        "c.preview.png",
        "c.txt",
        LOCK_FILE,
    }
    filled(tmp_path / "there", "c.preview", ends=(".png",))  # another LoRA, whose picture may be taken for that of c
    move.back.carry_out()
    assert {"ab.safetensors", "ab.json", "ab.png", "ab.txt"} <= {one.name for one in tmp_path.iterdir()}
    assert {one.name for one in (tmp_path / "there").iterdir()} == {"c.preview.safetensors", "c.preview.png", LOCK_FILE}
    (tmp_path / "ab.txt").unlink()
    move = trashed(tmp_path / "ab.safetensors", (), [tmp_path], trash_time())
    move.carry_out()
    assert len([*move.target.parent.iterdir()]) == 3
    move.back.carry_out()
    # a file that took its place stays
    stale = replace(whole(tmp_path / "ab.safetensors", tmp_path / "there", "ab"), stamp=(1, 1))
    with pytest.raises(FileNotFoundError, match="another file has its place now"):
        stale.carry_out()
    assert (tmp_path / "ab.safetensors").exists()
    config = whole(tmp_path / "adapter_model.safetensors", tmp_path / "sub", "adapter_model")
    assert (tmp_path / "adapter_config.json", tmp_path / "sub" / "adapter_config.json") in config.pairs


def test_what_is_deleted_lies_in_the_trash_of_its_disk_until_it_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = tmp_path / "loras"
    files = filled(top / "sub", "a", "b")
    filled(tmp_path / "disk", "c")
    if os.name != "nt":
        (top / "linked").symlink_to(tmp_path / "disk")
    when, places = trash_time(), {"sub/a": top, "sub/b": top, "linked/c": top / "linked"}
    for name, place in places.items():
        path = top / f"{name}.safetensors"
        if path.exists():
            move = trashed(path, Neighbours([path]).beside(path), [top], when)
            assert move.target.is_relative_to(place / TRASH)
            move.carry_out()
    assert [one.file.relative for one in walk([top])] == [], "a scan does not enter it"
    assert not list(top.rglob("*.safetensors")), "nor does a program that looks for LoRA"
    (top / TRASH / "not ours").mkdir()
    (top / TRASH / "not ours" / "x.safetensors.deleted").write_bytes(b"")
    one, other = sorted(in_trash([top / TRASH, tmp_path / "nowhere"]), key=lambda found: found.file.path)
    assert (one.file.relative, other.file.relative) == ("sub/a", "sub/b")
    assert abs(one.time - time.time()) < 60
    one.restored.carry_out()
    other.delete()
    assert contents(top / "sub") == {name: content for name, content in files.items() if name.startswith("a.")}
