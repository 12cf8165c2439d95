"""Stacks kept under a name."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from extension.kept.presets import PresetError, PresetsFile, SavedPreset, read_text
from extension.store import LOCK_FILE

TEXT = "<lora:a:0.5> fur coat\n<lora:b c:1:0.5>"


def kept(folder: Path) -> PresetsFile:
    return PresetsFile(lambda: folder)


def picture() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(stream, "PNG")
    return stream.getvalue()


def test_they_outlive_the_program(tmp_path: Path) -> None:
    kept(tmp_path / "new").put("Mine", TEXT)
    assert list(kept(tmp_path / "new").all) == [SavedPreset("Mine", TEXT)]
    assert not PresetsFile(lambda: None).all


def test_text_is_read_back(tmp_path: Path) -> None:
    presets = kept(tmp_path)
    presets.put("Mine", TEXT), presets.put("Other", "<lora:x>")
    text = "\n".join(preset.to_text() for preset in presets.all)
    assert read_text(text) == [SavedPreset("Mine", TEXT), SavedPreset("Other", "<lora:x>")]
    assert read_text("<lora:x:1>  words ") == [SavedPreset("imported", "<lora:x:1> words")]


def test_a_preset_is_a_file_with_its_picture_parameters_and_sketches(tmp_path: Path) -> None:
    presets = kept(tmp_path)
    presets.put("Mine", TEXT, parameters=" a fox <lora:a:0.5>\nSteps: 20, Seed: 7, Size: 64x64 ")
    presets.set_thumbnail("Mine", picture())
    file = json.loads(presets.get("Mine").to_file())
    assert file["parameters"] == "a fox <lora:a:0.5>\nSteps: 20, Seed: 7, Size: 64x64"
    (added,) = presets.add_text(json.dumps({**file, "sketches": {"a": "AAAA"}}))
    assert (added.name, added.text, added.parameters) == ("Mine 2", TEXT, file["parameters"])
    assert (added.sketches, bool(added.thumbnail)) == ({"a": "AAAA"}, True)
    assert kept(tmp_path).get("Mine 2") == added
    presets.put("Mine 2", "<lora:z:1>")
    again = kept(tmp_path).get("Mine 2")
    assert (again.text, again.parameters, again.sketches) == ("<lora:z:1>", file["parameters"], {"a": "AAAA"})
    presets.put("Mine 2", "<lora:z:1>", parameters="")
    assert not presets.get("Mine 2").parameters
    for changes, told in {
        (("remora_preset", 2),): "of version 2, and this Remora knows version 1",
        (("remora_preset", None),): "it lacks 'remora_preset'",
        (("thumbnail", "AAAA"),): "the picture of the preset cannot be used",
        (("thumbnail", "?"),): "its thumbnail is damaged",
        (("text", "<lora:a:x>"),): "line 1: .*'x' is not a number",
        (("text", ""),): "needs at least one LoRA",
        (("parameters", 1),): "its parameters are not text",
        (("parameters", "x" * 100_001),): "the parameters have 100,001 characters",
        (("sketches", (1, 2)),): "its sketches are not texts",
        (("name", ""),): "1 to 100 characters",
    }.items():
        with pytest.raises(PresetError, match=told):
            presets.add_text(json.dumps({**file, **dict(changes)}))
    for text, told in {
        "{": "is not JSON",
        '{"a": ' + "[" * 100_000: "is not JSON",
        "{" + " " * (1 << 20): "no more",
    }.items():
        with pytest.raises(PresetError, match=told):
            presets.add_text(text)
    assert len(presets.all) == 2


def test_an_import_replaces_nothing(tmp_path: Path) -> None:
    presets = kept(tmp_path)
    presets.put("Mine", TEXT)
    added = presets.add_text("# Remora preset 1: Mine\n<lora:x:1>\n# Remora preset 1: Mine\n<lora:y:1>")
    assert [preset.name for preset in added] == ["Mine 2", "Mine 3"]
    assert presets.get("Mine").text == TEXT


@pytest.mark.parametrize("name", ["n" * 100, "n" * 97 + " n", "n" * 99])
def test_an_import_of_a_long_name_is_shortened_for_its_number(tmp_path: Path, name: str) -> None:
    presets = kept(tmp_path)
    for _ in range(12):
        presets.add_text(f"# Remora preset 1: {name}\n<lora:x:1>")
    assert len(kept(tmp_path).all) == 12
    assert kept(tmp_path).problem == ""
    names = {preset.name for preset in presets.all}
    assert name in names
    assert {one[-2:] for one in names - {name}} == {*(f" {number}" for number in range(2, 10)), "10", "11", "12"}
    assert all(len(one) <= 100 for one in names)


def test_a_bad_import_adds_nothing_and_names_the_line(tmp_path: Path) -> None:
    presets = kept(tmp_path)
    with pytest.raises(PresetError, match=r"line 3: .*'x' is not a number"):
        presets.add_text("# Remora preset 1: Mine\n<lora:a:1>\n<lora:b:x>")
    assert not presets.all


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("# Remora preset 2: new\n<lora:a:1>", "line 1: this preset is of version 2, and this Remora knows version 1"),
        (f"# Remora preset {'9' * 5000}: new\n<lora:a:1>", "line 1: this preset is of version 999999999, and this"),
        ("hello", "line 1: 'hello' is not a LoRA"),
        ("<lora:a:1> <lora:b:1>", "line 1: .* is not a LoRA; write one tag"),
        ("words <lora:a:1>", "line 1: .* is not a LoRA; write one tag"),
        ("# Remora preset 1: empty", "there is no LoRA in this text"),
        ("x" * 200_000, "the text has 200,000 characters"),
        (f"# Remora preset 1: {'n' * 200}\n<lora:a:1>", "has 1 to 100 characters"),
        ("# Remora preset 1: a\0b\n<lora:a:1>", r"no control characters, and this one has '\\x00'"),
    ],
)
def test_what_is_no_preset(text: str, told: str) -> None:
    with pytest.raises(PresetError, match=told):
        read_text(text)


@pytest.mark.parametrize("content", ["{", "[]", '{"version": 2, "presets": []}', '{"version": 1, "presets": 5}'])
def test_a_file_that_cannot_be_read_is_kept_aside_and_said(tmp_path: Path, content: str) -> None:
    for number in (1, 2):  # it may happen again
        (tmp_path / "presets.json").write_text(content)
        presets = kept(tmp_path)
        assert not presets.all
        assert (
            f"the next change renames it to presets.json.damaged-{number} and starts an empty file" in presets.problem
        )
        assert (tmp_path / "presets.json").read_text() == content
        presets.put("Mine", TEXT)
        assert presets.problem == ""
        assert list(kept(tmp_path).all) == [SavedPreset("Mine", TEXT)]
    assert {(tmp_path / f"presets.json.damaged-{number}").read_text() for number in (1, 2)} == {content}


GOOD = {"name": "Mine", "text": TEXT, "thumbnail": "QUJD"}


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ({"name": "x", "text": TEXT}, "it lacks its name, text or thumbnail"),
        ({"name": 5, "text": TEXT, "thumbnail": ""}, "it lacks its name, text or thumbnail"),
        (None, "it lacks its name, text or thumbnail"),
        ({**GOOD, "name": "n" * 101}, "the name of a preset has 1 to 100 characters"),
        ({**GOOD, "name": "x", "thumbnail": "?"}, "its thumbnail is damaged"),
        ({**GOOD, "name": "x", "thumbnail": "ä"}, "its thumbnail is damaged"),
        ({**GOOD, "text": "<lora:other:1>"}, "another one has its name"),
    ],
    ids=["no thumbnail", "a number", "null", "long name", "damaged thumbnail", "no base64", "twice"],
)
def test_one_bad_preset_is_told_stays_in_the_file_and_hides_no_other(tmp_path: Path, bad: object, told: str) -> None:
    file = tmp_path / "presets.json"
    file.write_text(json.dumps({"version": 1, "presets": [GOOD, bad, {**GOOD, "name": "Ours"}]}))
    presets = kept(tmp_path)
    assert [preset.name for preset in presets.all] == ["Mine", "Ours"]
    assert presets.get("Mine").text == TEXT
    assert presets.problem == (
        f"some of {file} are not presets; Remora keeps them until you repair or delete them (preset 2: {told})"
    )
    presets.put("New", TEXT), presets.remove("Ours")
    assert json.loads(file.read_text())["presets"] == [GOOD, {"name": "New", "text": TEXT, "thumbnail": ""}, bad]
    assert [preset.name for preset in kept(tmp_path).all] == ["Mine", "New"]
    assert f"(preset 3: {told})" in presets.problem
    assert {path.name for path in tmp_path.iterdir()} == {"presets.json", LOCK_FILE}


def test_of_many_bad_presets_the_first_are_told(tmp_path: Path) -> None:
    (tmp_path / "presets.json").write_text(json.dumps({"version": 1, "presets": [{}] * 100}))
    problem = kept(tmp_path).problem
    assert "preset 5: it lacks" in problem
    assert problem.endswith("; and 95 more)")


def test_a_write_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    presets = kept(tmp_path)
    presets.put("Mine", TEXT)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    for change in (
        lambda: presets.put("Other", TEXT),
        lambda: presets.remove("Mine"),
        lambda: presets.add_text("<lora:x:1>"),
    ):
        with pytest.raises(OSError, match="No space"):
            change()
    monkeypatch.undo()
    assert list(presets.all) == list(kept(tmp_path).all) == [SavedPreset("Mine", TEXT)]


def test_a_renamed_one_keeps_its_thumbnail(tmp_path: Path) -> None:
    presets = kept(tmp_path)
    presets.put("Mine", TEXT)
    data = json.loads((tmp_path / "presets.json").read_text())
    data["presets"][0]["thumbnail"] = "QUJD"
    (tmp_path / "presets.json").write_text(json.dumps(data))
    again = kept(tmp_path)
    assert again.put("Ours", TEXT, former="Mine").thumbnail == b"ABC"
    assert [preset.name for preset in again.all] == ["Ours"]
    with pytest.raises(PresetError, match="no preset 'Mine'"):
        again.put("x", TEXT, former="Mine")


LINES = st.lists(st.sampled_from([*TEXT.splitlines(), "#", "# Remora preset 1: x", "<lora:"])).map("\n".join)


@given(text=st.text(max_size=200) | LINES)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        presets = read_text(text)
    except PresetError:
        return
    for preset in presets:
        assert read_text(preset.to_text())[0].text == preset.text


def test_no_more_are_kept_than_a_page_can_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extension.kept.presets._MAX_PRESETS", 2)
    presets = kept(tmp_path)
    presets.put("a", TEXT), presets.put("b", TEXT)
    with pytest.raises(PresetError, match="there are 2 presets already"):
        presets.put("c", TEXT)
    with pytest.raises(PresetError, match="the text has 3 presets; at most 2 are kept"):
        presets.add_text("\n".join(f"# Remora preset 1: {name}\n<lora:x:1>" for name in "xyz"))
    presets.put("b", "<lora:y:1>")
    assert [preset.name for preset in kept(tmp_path).all] == ["a", "b"]
