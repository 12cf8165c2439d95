"""The stack that every picture gets: what is one, and what becomes of the file it is kept in."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extension.kept.always_on import AlwaysOn, AlwaysOnEntry, AlwaysOnFile, StackRefusedError, parameters, read
from extension.store import LOCK_FILE
from extension.text.tag import Tag

STACK = AlwaysOn(True, (AlwaysOnEntry("a", True, 0.8, 0.5), AlwaysOnEntry("b", False)))
NUMBERS = st.floats(-1e6, 1e6)
NAMES = st.text(st.characters(blacklist_characters="<>:", blacklist_categories=["Cs"]), min_size=1).filter(
    lambda name: name.strip() == name
)


def kept(folder: Path) -> AlwaysOnFile:
    return AlwaysOnFile(lambda: folder)


@given(st.booleans(), st.lists(st.builds(AlwaysOnEntry, NAMES, st.booleans(), NUMBERS, NUMBERS), max_size=4))
def test_a_stack_is_read_as_it_is_written(enabled: bool, entries: list[AlwaysOnEntry]) -> None:
    stack = AlwaysOn(enabled, tuple(entries))
    assert read(json.loads(json.dumps(stack.to_json()))) == stack


def test_what_is_missing_has_its_default() -> None:
    assert read({}) == AlwaysOn()
    assert read({"entries": [{"name": "a"}]}) == AlwaysOn(False, (AlwaysOnEntry("a", True, 1.0, 1.0),))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (None, "a stack is an object"),
        ([], "a stack is an object"),
        ({"version": 2}, "is of version 2"),
        ({"always": True}, "a stack has no field always"),
        ({"always_on": 1}, "always_on must be true or false, not 1"),
        ({"entries": {}}, "entries must be a list"),
        ({"entries": [{"name": "a"}] * 201}, "no more than 200"),
        ({"entries": ["a"]}, "entry 1 must be an object with a name"),
        ({"entries": [{"name": "a"}, {}]}, "the name of entry 2"),
        ({"entries": [{"name": " "}]}, "the name of entry 1"),
        ({"entries": [{"name": "x" * 1001}]}, "1 to 1000 characters"),
        ({"entries": [{"name": "a>b"}]}, "which a tag cannot contain"),
        ({"entries": [{"name": "a", "te": 1}]}, "entry 1 has no field te; the fields are name, on, unet, text_encoder"),
        ({"entries": [{"name": "a", "on": "yes"}]}, "entry 1 (a): on must be true or false, not 'yes'"),
        ({"entries": [{"name": "a", "unet": "1"}]}, "entry 1 (a): the strength for the UNet must be a number, not '1'"),
        ({"entries": [{"name": "a", "unet": True}]}, "must be a number"),
        ({"entries": [{"name": "a", "text_encoder": math.nan}]}, "for the text encoder must be a number, not nan"),
        ({"entries": [{"name": "a", "unet": math.inf}]}, "must be a number"),
        ({"entries": [{"name": "a", "unet": 10**400}]}, "must be a number"),
    ],
)
def test_what_is_no_stack_is_refused_with_the_place(data: Any, told: str) -> None:
    with pytest.raises(StackRefusedError) as caught:
        read(data)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_picture_gets_what_is_on_and_nothing_where_the_stack_is_off() -> None:
    zero = AlwaysOnEntry("c", True, 0.0, 0.0)
    assert [one.written for one in AlwaysOn(True, (*STACK.entries, zero)).wanted()] == ["a:0.5:0.8"]
    assert AlwaysOn(False, STACK.entries).wanted() == ()


def test_the_parameters_text_has_the_tags_that_were_in_force() -> None:
    tags = (Tag("a", 0.5, 0.8), Tag("b"), Tag("c", 0.3, 0.3))
    assert parameters(tags, (0, 2)) == {"Remora stack": "<lora:a:0.5:0.8> <lora:c:0.3>"}
    assert parameters(tags, ()) == {}


def test_a_stack_is_there_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    assert kept(folder).stack == AlwaysOn()
    kept(folder).put(STACK)
    assert kept(folder).stack == STACK
    assert {path.name for path in folder.iterdir()} == {"stack.json", LOCK_FILE}


def test_without_a_folder_it_is_there_until_the_end(tmp_path: Path) -> None:
    file = AlwaysOnFile(lambda: None)
    file.put(STACK)
    assert file.stack == STACK
    assert AlwaysOnFile(lambda: None).stack == AlwaysOn()


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff\xfe", b"[]", b'{"version": 99}', b"[" * 100_000, b'{"entries": [{"name": 1}]}']
)
def test_a_damaged_file_is_told_and_set_aside(tmp_path: Path, text: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "stack.json"
    for number in (1, 2):  # it may happen again
        path.write_bytes(text)
        file = kept(tmp_path)
        assert file.stack == AlwaysOn()
        aside = tmp_path / f"stack.json.damaged-{number}"
        assert f"the next change renames it to {aside.name} and starts an empty file" in file.problem
        assert file.problem in caplog.text
        assert path.read_bytes() == text
        file.put(STACK)
        assert aside.read_bytes() == text
        assert file.problem == ""
        assert kept(tmp_path).stack == STACK


def test_a_write_that_fails_leaves_the_former_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = kept(tmp_path)
    file.put(STACK)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        file.put(AlwaysOn())
    assert file.stack == kept(tmp_path).stack == STACK
    assert {path.name for path in tmp_path.iterdir()} == {"stack.json", LOCK_FILE}
