"""What lies in the folders, by names alone."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from extension.library import beside, walk
from extension.library.walk import Bounds, ScanStoppedError, walk_again


def put(path: Path, content: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_files_are_found_with_their_notes_and_picture(tmp_path: Path) -> None:
    file = put(tmp_path / "sub" / "a.v1 [XL].safetensors")
    notes = [put(file.with_name(f"a.v1 [XL]{end}")) for end in (".json", ".civitai.info", ".txt")]
    thumb = put(file.with_name("a.v1 [XL].thumb.jpg"))  # SD.Next's, which is made of the others
    put(file.with_name("a.json")), put(file.with_name("other.png"))
    (found,) = walk([tmp_path])
    assert (found.file.path, found.file.relative, found.file.folder) == (file, "sub/a.v1 [XL]", "sub")
    assert found.notes == tuple(notes)
    assert found.picture == thumb
    for name in ("a.v1 [XL].jpg", "a.v1 [XL].preview.png", "a.v1 [XL].png"):
        picture = put(file.with_name(name))
        assert beside(found.file).picture == picture


def test_the_stamp_changes_with_what_lies_beside(tmp_path: Path) -> None:
    file = put(tmp_path / "a.safetensors")
    (bare,) = walk([tmp_path])
    assert bare.stamp == ""
    notes = put(file.with_suffix(".json"))
    (noted,) = walk([tmp_path])
    os.utime(notes, (1, 1))
    (touched,) = walk([tmp_path])
    assert len({bare.stamp, noted.stamp, touched.stamp}) == 3
    assert beside(touched.file) == touched
    assert touched.file == bare.file


def test_a_file_has_an_id_of_its_place_and_is_found_once(tmp_path: Path) -> None:
    paths = [put(tmp_path / f"{name}.safetensors") for name in ("a", "sub/a", "z")]
    one, two, _ = walk([tmp_path])
    assert one.file.id != two.file.id
    assert [found.file.id for found in walk([tmp_path])][:2] == [one.file.id, two.file.id]
    assert {found.file.path for found in walk([tmp_path / "sub", tmp_path])} == set(paths)


def test_places_that_changed_are_walked_again_and_tell_what_a_whole_walk_tells(tmp_path: Path) -> None:
    chance = Random(12)
    one, two = tmp_path / "one", tmp_path / "two"
    known = 0
    for tops in ([one], [one, two], [one / "x", one, two]):
        for number in range(20):
            put(chance.choice([one, two]) / chance.choice(["", "x", "x/y", "z"]) / f"{number}.safetensors")
        if os.name != "nt" and not (one / "link").exists():
            (one / "link").symlink_to(one / "z", target_is_directory=True)
        bounds = Bounds()
        found = {each.file.path: each for each in walk(tops, bounds)}
        for step in range(80):
            source = chance.choice([*found])
            target = chance.choice(tops) / chance.choice(["", "x/y", "z", "new/deep"]) / f"{step % 9}.safetensors"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.with_suffix(".json").write_text(str(step))
            source.replace(target)
            places = {source.parent, target.parent}
            later = Bounds()
            whole = {each.file.path: each for each in walk(tops, later)}
            again = walk_again(found, tops, places, bounds.entered)
            assert again is None or [*again.items()] == [*whole.items()]
            known += again is not None
            found, bounds = whole, later
    assert known > 50, "most of them, where no names are equal"
    assert walk_again(found, [two], {one}, {}) is None


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_places_that_share_names_or_have_several_paths_are_not_walked_again_alone(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    first, _, _, last = [put(folder / f"{name}.safetensors") for folder in (one, two) for name in "ab"]
    bounds = Bounds()
    found = {each.file.path: each for each in walk([one, two], bounds)}
    last.unlink()
    assert walk_again(found, [one, two], {one, two}, bounds.entered) is None, "its folder tells `two/a` from `one/a`"
    first.unlink()
    (two / "a.json").mkdir()
    (two / "folder.safetensors").mkdir()
    bounds = Bounds()
    found = {each.file.path: each for each in walk([two], bounds)}
    assert walk_again(found, [two], {two}, bounds.entered) == found, "folders are no files"
    (two / "link").symlink_to(one, target_is_directory=True)
    bounds = Bounds()
    found = {each.file.path: each for each in walk([one, two], bounds)}
    assert two / "link" / "b.safetensors" in found
    assert walk_again(found, [one, two], {one}, bounds.entered) is None, "another path leads there"


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_what_is_no_file_hides_none_beside_it(tmp_path: Path) -> None:
    """A folder has no order, so there are many of each kind: some file comes behind each."""
    paths = {put(tmp_path / f"{number}.safetensors") for number in range(20)}
    for number in range(20):
        put(tmp_path / f"note {number}.md")
        (tmp_path / f"gone {number}.safetensors").symlink_to(tmp_path / "nowhere")
        os.mkfifo(tmp_path / f"pipe {number}.safetensors")
    assert {found.file.path for found in walk([tmp_path])} == paths


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_link_to_nothing_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.safetensors").symlink_to(tmp_path / "nowhere")
    assert not list(walk([tmp_path]))
    assert "is left out" in caplog.text


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_link_beside_a_file_leads_to_its_name_or_into_its_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What lies beside a LoRA is shown on a page: `a.txt` may not be `/etc/passwd`."""
    folder, other = tmp_path / "loras", tmp_path / "other"
    put(folder / "a.safetensors"), put(other / "secret"), put(other / "a.json"), put(folder / "cover.png")
    (folder / "a.txt").symlink_to(other / "secret")
    (folder / "a.json").symlink_to(other / "a.json")
    (folder / "a.png").symlink_to("cover.png")
    (found,) = walk([folder])
    assert found.notes == (folder / "a.json",)
    assert found.picture == folder / "a.png"
    assert "a.txt is left out: it is a link to a file of another name in another folder" in caplog.text


LINKS = pytest.mark.skipif(os.name == "nt", reason="links need rights there")


@LINKS
@pytest.mark.parametrize("target", ["/", "/proc/self", "/sys", ".."])
def test_a_link_to_the_machine_is_left_out(tmp_path: Path, target: str, caplog: pytest.LogCaptureFixture) -> None:
    if not Path(target).is_dir():
        pytest.skip(f"this system has no {target}")
    folder = tmp_path / "loras"
    put(folder / "a.safetensors"), put(tmp_path / "b.safetensors")
    (folder / "all").symlink_to(target)
    bounds = Bounds(most=100)
    assert [found.file.name for found in walk([folder], bounds)] == ["a"]
    assert not bounds.problem
    assert f"{folder / 'all'} is left out: it is a link to a folder" in caplog.text


@LINKS
def test_behind_a_link_a_scan_stays_on_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, disk = tmp_path / "loras", tmp_path / "disk"
    put(folder / "mounted" / "own.safetensors"), put(disk / "far.safetensors"), put(disk / "mounted" / "b.safetensors")
    (folder / "collection").symlink_to(disk)
    (disk / "again").symlink_to(disk / "mounted")
    stat = Path.stat

    def mounted(path: Path, **more: Any) -> os.stat_result:
        found = stat(path, **more)
        return os.stat_result((*found[:2], 99, *found[3:])) if path.name in ("mounted", "again") else found

    monkeypatch.setattr(Path, "stat", mounted)
    assert {found.file.name for found in walk([folder])} == {"own", "far"}
    assert caplog.text.count("link to it directly") == 2


def test_a_scan_ends_at_its_bound_and_says_so_and_when_it_is_stopped(tmp_path: Path) -> None:
    for number in range(20):
        put(tmp_path / str(number) / "a.safetensors")
    bounds = Bounds(most=30)
    assert 0 < len(list(walk([tmp_path], bounds))) < 20
    assert "more than 30 files and folders" in bounds.problem
    with pytest.raises(ScanStoppedError):
        list(walk([tmp_path], Bounds(lambda: True)))


def test_folders_inside_each_other_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    deep = tmp_path
    for _ in range(70):
        deep /= "d"
    put(deep / "a.safetensors"), put(tmp_path / "b.safetensors")
    assert [found.file.name for found in walk([tmp_path])] == ["b"]
    assert "more than 60 folders deep" in caplog.text
