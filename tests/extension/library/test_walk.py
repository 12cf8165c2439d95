"""What lies in the folders, by names alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from extension.library import beside, walk


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


def test_an_id_is_that_of_the_place(tmp_path: Path) -> None:
    put(tmp_path / "a.safetensors"), put(tmp_path / "b" / "a.safetensors")
    one, two = walk([tmp_path])
    assert one.file.id != two.file.id
    assert [found.file.id for found in walk([tmp_path])] == [one.file.id, two.file.id]


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
