"""What people noted, in the files that web UIs keep beside a LoRA."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from extension.library import CatalogFile, Notes, NotesError, beside, read_notes, write_notes
from extension.library.pictures import PictureError, set_picture

# As AUTOMATIC1111's editor of cards writes it.
A1111 = {
    "description": "a fur coat",
    "sd version": "SDXL",
    "activation text": "fur coat, fluffy",
    "preferred weight": 0.7,
    "negative text": "leather",
    "notes": "from a friend",
}
# As Civitai's API answers, and SD.Next keeps it.
CIVITAI = {
    "id": 1,
    "name": "Fur",
    "description": "<p>A <b>fur</b> coat</p><p>use 0.7</p>",
    "tags": ["clothing", "fur"],
    "modelVersions": [{"id": 2, "baseModel": "SDXL 1.0", "trainedWords": ["fur coat", "fluffy"]}],
}
VERSION = {
    "baseModel": "Pony",
    "trainedWords": ["ink"],
    "description": "of a version",
    "model": {"name": "x", "tags": ["art"]},
}


@pytest.fixture
def file(tmp_path: Path) -> CatalogFile:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"x")
    return CatalogFile(path, "a", 1, path.stat().st_mtime_ns)


def put(file: CatalogFile, end: str, content: Any) -> Path:
    path = file.path.with_name(f"a{end}")
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def notes(file: CatalogFile) -> Notes:
    return read_notes(beside(file).notes)


def test_those_of_a1111(file: CatalogFile) -> None:
    put(file, ".json", A1111)
    wanted = Notes("a fur coat", "fur coat, fluffy", "leather", "from a friend", "SDXL", strength=0.7)
    assert notes(file) == wanted


def test_those_of_sdnext(file: CatalogFile) -> None:
    put(file, ".json", CIVITAI)
    found = notes(file)
    assert (found.description, found.words, found.base_model) == ("A fur coat\nuse 0.7", "fur coat, fluffy", "SDXL 1.0")
    assert (found.tags, found.groups) == (("clothing", "fur"), ("fur coat", "fluffy"))
    put(file, ".txt", "my own words")  # which SD.Next reads first
    assert notes(file).description == "my own words"


def test_those_of_the_civitai_helper(file: CatalogFile) -> None:
    put(file, ".civitai.info", VERSION)
    assert notes(file) == Notes("of a version", "ink", base_model="Pony", tags=("art",), groups=("ink",))
    put(file, ".json", {"activation text": "my own"})
    assert notes(file).words == "my own"


@pytest.mark.parametrize("before", [{}, A1111, CIVITAI, {"remora": 7, "extension x": {"y": [1]}}])
def test_what_is_changed_is_read_again_and_the_rest_stays(file: CatalogFile, before: dict[str, Any]) -> None:
    path = put(file, ".json", before)
    changes: dict[str, Any] = {
        "description": "d",
        "words": "one, (two, x:1.2)",
        "negative": "n",
        "notes": "m",
        "tags": ["x", "y"],
        "strength": 0.5,
        "alpha": 8,
        "rating": 4,
        "favourite": True,
        "hidden": True,
    }
    write_notes(file, changes)
    found = notes(file)
    assert {name: getattr(found, name) for name in changes} == {**changes, "tags": ("x", "y")}
    kept = json.loads(path.read_text("utf-8"))
    touched = {"description", "activation text", "negative text", "notes", "tags", "preferred weight", "remora"}
    assert {name: value for name, value in kept.items() if name not in touched | {"modelVersions"}} == {
        name: value for name, value in before.items() if name not in touched | {"modelVersions"}
    }
    # each web UI's own field
    assert kept["activation text"] == "one, (two, x:1.2)"
    assert kept["preferred weight"] == 0.5
    if before is CIVITAI:
        assert kept["modelVersions"][0] == {"id": 2, "baseModel": "SDXL 1.0", "trainedWords": ["one", "(two, x:1.2)"]}


def test_a_strength_that_is_taken_back_is_a1111s_zero(file: CatalogFile) -> None:
    path = put(file, ".json", A1111)
    write_notes(file, {"strength": None})
    assert json.loads(path.read_text("utf-8"))["preferred weight"] == 0
    assert notes(file).strength is None


def test_a_description_that_is_in_a_text_file_is_changed_there_too(file: CatalogFile) -> None:
    text = put(file, ".txt", "old")
    write_notes(file, {"description": "new"})
    assert text.read_text("utf-8") == "new"
    assert notes(file).description == "new"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"nope": 1}, "notes have no field nope; the fields are"),
        ({"rating": 6}, "rating must be a whole number from 0 to 5, not 6"),
        ({"rating": True}, "rating must be"),
        ({"favourite": 1}, "favourite must be true or false, not 1"),
        ({"hidden": "yes"}, "hidden must be true or false, not 'yes'"),
        ({"strength": "x"}, "strength must be a number"),
        ({"alpha": float("nan")}, "alpha must be a number from -1,000,000 to 1,000,000, or null"),
        ({"alpha": True}, "alpha must be"),
        ({"tags": ["", "a"]}, "tags must be a list"),
        ({"notes": "x" * 30_000}, "notes must be a text of no more than 20,000"),
        ({"words": "fine", "rating": -1}, "rating must be"),
    ],
)
def test_what_is_no_note_changes_nothing(file: CatalogFile, changes: dict[str, Any], told: str) -> None:
    path = put(file, ".json", A1111)
    with pytest.raises(NotesError, match=told):
        write_notes(file, changes)
    assert json.loads(path.read_text("utf-8")) == A1111


@pytest.mark.parametrize("content", ["{", "[1]", "\x00", '{"a": ' * 5000])
def test_a_file_that_is_no_notes_is_told_and_never_overwritten(file: CatalogFile, content: str) -> None:
    path = put(file, ".json", content)
    assert [str(path) in problem for problem in notes(file).problems] == [True]
    with pytest.raises(NotesError, match="repair it or move it away"):
        write_notes(file, {"rating": 1})
    assert path.read_text("utf-8") == content


PAGES = st.lists(st.sampled_from(["<![", "<!", "<?", "<", "]]>", ">", "--", "<p>", "a", " "]), max_size=8).map("".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=20) | PAGES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*A1111, *CIVITAI, "remora", "trainedWords", "model"]), inner, max_size=6)
    ),
    max_leaves=20,
)


@pytest.mark.parametrize("said", ["hello <![foo bar]]>", "<b>a</b> <![a b]]>", "<![", "<!x"])
def test_a_page_that_cannot_be_parsed_is_shown_as_it_is(file: CatalogFile, said: str) -> None:
    put(file, ".json", {"description": said, "notes": "n"})
    found = notes(file)
    assert (found.notes, found.problems) == ("n", ())
    assert found.description == said or "<" not in found.description  # newer parsers take such parts for comments


def test_tags_that_do_not_end_keep_nobody_waiting(file: CatalogFile) -> None:
    for start in ("<a ", "<a '", "<a b=", "<a b='", "<a b='>", "<!--", "</a "):
        for end in ("", ">"):
            put(file, ".json", {"description": start * (19_000 // len(start)) + end, "notes": "n"})
            begun = time.process_time()
            assert notes(file).notes == "n"
            assert time.process_time() - begun < 1, start + end


def test_what_stands_behind_the_last_tag_is_text(file: CatalogFile) -> None:
    put(file, ".json", {"description": "<p>a</p> 3 &lt; 5 < 7"})
    assert notes(file).description == "a 3 < 5 < 7"


@settings(deadline=None)
@given(page=PAGES)
def test_any_page_beside_a_file_is_read(tmp_path_factory: pytest.TempPathFactory, page: str) -> None:
    path = tmp_path_factory.mktemp("page") / "a.safetensors"
    path.write_bytes(b"x")
    file = CatalogFile(path, "a", 1, 1)
    put(file, ".json", {"description": page, "notes": "n"}), put(file, ".civitai.info", {"description": page})
    found = notes(file)
    assert (found.notes, found.problems) == ("n", ())


@settings(deadline=None)
@given(own=JSON, info=JSON)
def test_any_json_beside_a_file_is_read(tmp_path_factory: pytest.TempPathFactory, own: Any, info: Any) -> None:
    folder = tmp_path_factory.mktemp("any")
    path = folder / "a.safetensors"
    path.write_bytes(b"x")
    file = CatalogFile(path, "a", 1, 1)
    put(file, ".json", own), put(file, ".civitai.info", info)
    found = notes(file)
    assert Notes.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_strength_of_0_is_the_web_uis_default_as_in_a1111s_editor(file: CatalogFile) -> None:
    for zero in (0, 0.0, None):
        write_notes(file, {"strength": 0.7})
        write_notes(file, {"strength": zero})
        assert json.loads(file.path.with_suffix(".json").read_text("utf-8")) == {"preferred weight": 0.0}
        assert notes(file).strength is None


@pytest.mark.parametrize("value", [101, -100.5, True, False, "0", pytest.param(10**400, id="of 400 digits")])
def test_a_strength_that_is_none_is_refused(file: CatalogFile, value: object) -> None:
    with pytest.raises(NotesError, match="a number from -100 to 100, or null"):
        write_notes(file, {"strength": value})


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_written_through_a_link_that_leads_away(
    file: CatalogFile, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, there: bool
) -> None:
    target = tmp_path_factory.mktemp("home") / "settings"
    if there:
        target.write_text("{}")
    for end in (".json", ".png"):
        (tmp_path / f"a{end}").symlink_to(target)
    with pytest.raises(NotesError, match="is a link to a file of another name in another folder"):
        write_notes(file, {"notes": "n"})
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "PNG")
    with pytest.raises(PictureError, match="is a link to a file of another name in another folder"):
        set_picture(file, beside(file), stream.getvalue())
    assert target.exists() is there
    assert not there or target.read_text() == "{}"


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_notes_that_the_user_keeps_elsewhere_under_their_name_are_written_there(
    file: CatalogFile, tmp_path: Path
) -> None:
    target = tmp_path / "kept" / "a.json"
    target.parent.mkdir()
    target.write_text("{}")
    (tmp_path / "a.json").symlink_to(target)
    write_notes(file, {"notes": "n"})
    assert json.loads(target.read_text()) == {"notes": "n"}
