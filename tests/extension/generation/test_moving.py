"""Many files at once: kept stacks go on naming them, all is taken back, and two web UIs lose nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from extension.generation.moving import Moving
from extension.generation.save_places import SaveError
from extension.kept.always_on import AlwaysOn, AlwaysOnEntry, AlwaysOnFile
from extension.kept.presets import PresetsFile
from extension.library import NotesError, write_notes
from extension.library.catalog import Catalog, CatalogFile
from extension.library.walk import TRASH
from extension.store import LOCK_FILE
from tests.extension.library.test_facts import lora
from tests.extension.library.test_moves import contents, filled


class WebUI:
    """What moves files in one web UI, over some folders."""

    def __init__(self, data: Path, *tops: Path) -> None:
        host: Any = SimpleNamespace(adapter_dirs=lambda: tops, data_dir=lambda: data)
        self.catalog = Catalog(host.adapter_dirs, host.data_dir)
        self.always_on, self.presets = AlwaysOnFile(host.data_dir), PresetsFile(host.data_dir)
        kept = {"always_on": self.always_on, "presets": self.presets}
        self.session = cast("Any", SimpleNamespace(host=host, catalog=self.catalog, **kept))
        self.moving = Moving(self.session)

    def file(self, name: str) -> CatalogFile:
        self.catalog.refresh()
        return self.catalog.find(name)

    def names(self) -> list[str]:
        self.catalog.refresh()
        return sorted(self.catalog.names.all())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "loras").mkdir()
    return tmp_path / "loras"


@pytest.fixture
def ui(tmp_path: Path, folder: Path) -> Iterator[WebUI]:
    made = WebUI(tmp_path / "data", folder)
    yield made
    made.catalog.close()


def test_kept_stacks_and_what_is_known_follow_a_file(
    ui: WebUI, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sub/a", "b", "other/b"):
        (folder / name).parent.mkdir(exist_ok=True)
        lora(folder / f"{name}.safetensors")
    (folder / "sub" / "a.json").write_text('{"notes": "mine"}', "utf-8")
    ui.catalog.refresh()
    ui.always_on.put(AlwaysOn(True, (AlwaysOnEntry("sub/a", unet=0.5), AlwaysOnEntry("other/b"))))
    ui.presets.put("Mine", "<lora:a:0.8:lbw=ALL> a word\n<lyco:other/b:1>")
    ui.catalog.used([ui.file("a")])
    added = ui.catalog.row(ui.file("a")).added

    def kept() -> tuple[list[str], str]:
        return [entry.name for entry in ui.always_on.stack.entries], ui.presets.get("Mine").text

    # in another folder its name means it, but not its path
    former = ui.file("a")
    with monkeypatch.context() as patched:
        patched.delattr("extension.library.scan.walk")  # the other folders are not looked through
        done = ui.moving.move([former], "new/deep")
    assert not done.refused
    with pytest.raises(NotesError, match=r"a\.safetensors was moved or replaced meanwhile"):
        write_notes(former, {"rating": 5})  # of a page that does not know it yet
    assert [path.name for path in (folder / "sub").iterdir()] == [LOCK_FILE]
    assert kept() == (["a", "other/b"], "<lora:a:0.8:lbw=ALL> a word\n<lyco:other/b:1>")
    renamed = ui.moving.rename(ui.file("a"), "c new.safetensors")
    assert kept() == (["c new", "other/b"], "<lora:c new:0.8:lbw=ALL> a word\n<lyco:other/b:1>")
    assert ui.moving.rename(ui.file("other/b"), "d").moves
    assert kept() == (["c new", "d"], "<lora:c new:0.8:lbw=ALL> a word\n<lyco:d:1>")
    row = ui.catalog.row(ui.file("c new"))
    assert (row.file.path, row.uses, row.added) == (folder / "new" / "deep" / "c new.safetensors", 1, added)
    assert row.notes is not None
    assert row.notes.notes == "mine"
    # what is deleted is known at a later start, too
    deleted = ui.moving.delete([ui.file("c new")])
    assert "c new" not in ui.names()
    assert kept()[0] == ["c new", "d"], "it may be restored"
    ui.catalog.close()
    again = WebUI(tmp_path / "data", folder)
    again.catalog.start()
    assert again.catalog.wait(30)
    (one,) = again.moving.trash()
    assert again.moving.restore([one]).moves[0].target == row.file.path
    assert again.catalog.row(again.file("c new")).uses == 1
    again.catalog.close()
    assert not list(folder.rglob(TRASH))
    ui.catalog.refresh()
    assert ui.moving.undo(renamed.undo).moves
    assert ui.moving.undo(done.undo).moves
    assert kept()[0] == ["a", "d"]
    assert (folder / "sub" / "a.json").exists()
    assert deleted.undo
    with pytest.raises(KeyError):
        ui.moving.undo(done.undo)


def test_taken_names_are_asked_about_and_what_cannot_be_is_refused(ui: WebUI, folder: Path, tmp_path: Path) -> None:
    files = filled(folder / "sub", "a", "b") | filled(folder / "more", "a")
    filled(folder, "b", ends=())
    before = contents(folder)
    chosen = [ui.file(name) for name in ("sub/a", "more/a", "sub/b")]
    done = ui.moving.move(chosen, "")
    told = [(one.path.name, one.reason, one.is_taken) for one in done.refused]
    said = "{0} stays: there is a file {0} already"
    assert told == [(name, said.format(name), True) for name in ("a.safetensors", "b.safetensors")]
    assert len(done.moves) == 1, "the others are moved"
    left = [ui.file("more/a"), ui.file("sub/b")]
    both = ui.moving.move(left, "", number=True)
    assert not both.refused
    assert contents(folder / "sub") == contents(folder / "more") == {}
    assert {"a.safetensors", "a-2.safetensors", "a-2.preview.png", "b.safetensors", "b-2.json"} <= set(contents(folder))
    assert sorted(contents(folder).values()) == sorted(before.values())
    assert len(files) == 12
    for key in (both.undo, done.undo):
        assert not ui.moving.undo(key).refused
    assert contents(folder) == before
    # the files beside it are of both
    (folder / "sub" / "a.ckpt").write_bytes(b"pickle")
    (one,) = ui.moving.move([ui.file("sub/a")], "more/x").refused
    assert one.reason == "a.safetensors stays: a.ckpt has the same notes beside it; select it, too"
    pickle = next(file for file in ui.catalog.every if file.path.suffix == ".ckpt")
    assert [len(move.pairs) for move in ui.moving.delete([pickle]).moves] == [1], "the notes stay"
    assert contents(folder / "sub").keys() == {name for name in files if name[0] in "ab"}
    # nothing leaves the folders
    for bad in ("..", "../out", "/etc", "a/../../b", "C:x", "sub/CON", TRASH, f"sub/{TRASH}/x", "a\x00b"):
        with pytest.raises(SaveError):
            ui.moving.move([ui.file("sub/a")], bad)
    for bad in ("../a", "a/b", "", ".a", "nul", "a<b"):
        with pytest.raises(SaveError):
            ui.moving.rename(ui.file("sub/a"), bad)
    (folder / "sub" / "adapter_model.safetensors").write_bytes(b"")
    (folder / "sub" / "adapter_config.json").write_text("{}")
    with pytest.raises(SaveError, match=r"adapter_config\.json beside it belongs to this name"):
        ui.moving.rename(ui.file("adapter_model"), "mine")
    # several get new names: each of them stays that cannot have its own
    lora(folder / "sub" / "d.safetensors")
    lora(folder / "sub" / "e.safetensors")
    before = contents(folder)
    names = {"sub/a": "b", "sub/d": "new", "sub/e": "NEW", "adapter_model": "mine", "b": "a<b"}
    several = ui.moving.rename_all({ui.file(name): to for name, to in names.items()})
    assert [move.target.name for move in several.moves] == ["new.safetensors"]
    assert {one.path.stem: one.is_taken for one in several.refused} == {
        "adapter_model": False,
        "b": False,
        "a": True,
        "e": True,
    }
    assert not ui.moving.undo(several.undo).refused
    assert contents(folder) == before
    for name in ("d", "e"):
        (folder / "sub" / f"{name}.safetensors").unlink()
    assert set(tmp_path.iterdir()) == {folder, tmp_path / "data"}
    # a journal that leads out of the folders is not followed
    outside = [[[str(folder / "b.safetensors"), str(folder / ".." / "b.safetensors")]]]
    (tmp_path / "data" / "moves.json").write_text(json.dumps({"x": {"moves": outside, "names": {}}}))
    ui.moving.resume()
    assert (folder / "b.safetensors").exists()
    assert json.loads((tmp_path / "data" / "moves.json").read_text()) == {}


def test_two_web_uis_that_move_the_same_files_lose_none(tmp_path: Path, folder: Path) -> None:
    names = [f"lora{number}" for number in range(20)]
    files = filled(folder, *names)
    both = [WebUI(tmp_path / f"data{number}", folder) for number in range(2)]
    chosen = [[one.file(name) for name in names] for one in both]
    barrier = threading.Barrier(2)
    done: list[Any] = [None, None]

    def move(number: int) -> None:
        barrier.wait()
        done[number] = both[number].moving.move(chosen[number], f"of {number}")

    threads = [threading.Thread(target=move, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {Path(name).name: content for name, content in contents(folder).items()}
    assert found == files
    for number, one in enumerate(done):
        of_one = {Path(name).stem for name in contents(folder / f"of {number}") if name.endswith(".safetensors")}
        assert of_one == {move.source.stem for move in one.moves}
        assert all(refused.reason.endswith("stays: it is gone") for refused in one.refused)
        for name in of_one:
            assert (folder / f"of {number}" / f"{name}.preview.png").exists(), "a file is not parted from its own"
    for one in both:
        one.catalog.close()


def saved_by_peft(folder: Path, *parts: str) -> None:
    """Write a LoRA as PEFT's example for Dreambooth saves it, component by component."""
    for part in parts:
        (folder / part).mkdir(parents=True)
        lora(folder / part / "adapter_model.safetensors")
        (folder / part / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": part.count("e")}))
        (folder / part / "README.md").write_text(part)


def test_a_lora_of_several_components_is_one_file_of_the_library(ui: WebUI, folder: Path) -> None:
    saved_by_peft(folder / "sub" / "sks.v1", "unet", "text_encoder", "text_encoder_2")
    lora(folder / "sub" / "sks.v1" / "other.safetensors")
    saved_by_peft(folder / "sub" / "sks.v1", "clip")  # the name of no component
    saved_by_peft(folder, "unet")  # in no folder that could name it
    assert ui.names() == ["clip", "other", "sks.v1", "unet"]
    file = ui.file("sks.v1")
    assert ui.file("sub/sks.v1") == file
    assert (file.folder, file.source, len(file.files)) == ("sub/sks.v1", folder / "sub" / "sks.v1", 3)
    row = ui.catalog.row(file)
    assert row.facts is not None
    assert (row.facts.problem, row.facts.structure.layers) == ("", 3)
    # a part that changes, comes or goes changes it
    lora(folder / "sub" / "sks.v1" / "text_encoder" / "adapter_model.safetensors", rank=8)
    assert not file.is_current()
    ui.catalog.refresh({folder / "sub" / "sks.v1" / "text_encoder"})
    changed = ui.catalog.row(ui.file("sks.v1"))
    assert changed.file.is_current()
    assert changed.facts is not None
    assert changed.facts.structure.ranks == (4, 8)
    (folder / "sub" / "sks.v1" / "text_encoder_2" / "adapter_model.safetensors").unlink()
    ui.catalog.refresh({folder / "sub" / "sks.v1" / "text_encoder_2"})
    assert len(ui.catalog.all_found[file.path].parts) == 2


def test_a_lora_of_several_components_is_moved_renamed_and_deleted_as_one(ui: WebUI, folder: Path) -> None:
    saved_by_peft(folder / "sks", "unet", "text_encoder")
    saved_by_peft(folder / "there" / "sks", "unet")
    (folder / "sks" / "unet" / "adapter_model.json").write_text('{"notes": "mine"}')
    lora(folder / "sks" / "text_encoder" / "mine.safetensors")  # which stays
    before = contents(folder)
    parts = sorted(one.removeprefix("sks/") for one in before if one.startswith("sks/") and "mine." not in one)
    file = ui.file("sks/unet/adapter_model")

    def below(name: str) -> list[str]:
        return sorted(one.removeprefix(f"{name}/") for one in contents(folder) if one.startswith(f"{name}/"))

    (refused,) = ui.moving.move([file], "there").refused
    assert (refused.is_taken, refused.reason) == (True, "sks stays: there is a folder sks already")
    numbered = ui.moving.move([file], "there", number=True)
    assert below("there/sks-2") == parts
    assert below("sks") == ["text_encoder/mine.safetensors"]
    assert not (folder / "sks" / "unet").exists()
    ui.moving.undo(numbered.undo)
    assert contents(folder) == before
    renamed = ui.moving.rename(ui.file("sks/unet/adapter_model"), "zwx.v2")
    assert below("zwx.v2") == parts
    row = ui.catalog.row(ui.file("zwx.v2"))
    assert row.notes is not None
    assert row.notes.notes == "mine"
    ui.moving.undo(renamed.undo)
    assert not (folder / "zwx.v2").exists()
    ui.moving.delete([ui.file("sks/unet/adapter_model")])
    assert ui.names() == ["mine", "sks"]
    (one,) = ui.moving.trash()
    assert (one.file.name, one.file.size) == ("sks", file.size)
    ui.moving.restore([one])
    assert contents(folder) == before
    assert not list(folder.rglob(TRASH))
    ui.moving.delete([ui.file("sks/unet/adapter_model")])
    ui.moving.delete_for_good(ui.moving.trash())
    assert not list(folder.rglob(TRASH))
    assert below("sks") == ["text_encoder/mine.safetensors"]
