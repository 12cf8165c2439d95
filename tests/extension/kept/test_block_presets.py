"""Presets of block weights: files as the block-weight extension has them, and the user's own."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extension.kept.block_presets import BlockPresetsFile
from extension.text.block_weights import (
    BUILT_IN,
    BlockWeightsError,
    Value,
    checked_name,
    format_presets,
    known,
    read_list,
    read_presets,
    read_rules,
)
from lib_lora import Element

VALUES = st.floats(-9, 9).map(lambda value: round(value, 6)) | st.sampled_from(["R", "U", "X", "X+0.5"])
NAMES = st.text(st.characters(exclude_characters=":,=<>#", exclude_categories=["C", "Z"]), min_size=1, max_size=20)


def test_the_presets_that_come_along_are_read() -> None:
    assert {"NONE", "ALL", "INS", "IND", "INALL", "MIDD", "OUTD", "OUTS", "OUTALL", "ALL0.5"} == set(BUILT_IN.lists)
    assert {len(values) for values in BUILT_IN.lists.values()} == {17}
    assert BUILT_IN.elements["PROJDEEPOFF"] == (Element(("IN05-OUT05",), ("proj",), 0.0),)


def test_rules_as_the_original_writes_them() -> None:
    text = (
        "ATTNDEEPON:IN05-OUT05:attn:1,IN05-OUT05:attn:12\n\nTWO:IN05-OUT05:attn:0\nBASE:attn:0.5\n\n"
        "NEG:NOT IN01 IN02:NOT ff:0"
    )
    assert read_rules(text) == {
        "ATTNDEEPON": (Element(("IN05-OUT05",), ("attn",), 1.0), Element(("IN05-OUT05",), ("attn",), 12.0)),
        "TWO": (Element(("IN05-OUT05",), ("attn",), 0.0), Element(("BASE",), ("attn",), 0.5)),
        "NEG": (Element(("IN01", "IN02"), ("ff",), 0.0, not_blocks=True, not_words=True),),
    }
    assert read_rules("nothing\n\nX:::2") == {"X": (Element((), (), 2.0),)}


def test_lines_that_are_none_are_comments() -> None:
    text = "# ALL:1,1\nA:1,1\n\nB 1,1\nC:1,x\nD:R,U,X-0.2\n"
    assert read_presets(text) == {"A": (1.0, 1.0), "D": ("R", "U", "X-0.2")}


@given(st.dictionaries(NAMES, st.lists(VALUES, min_size=2, max_size=30), max_size=5))
def test_what_is_written_is_read_back(presets: dict[str, list[Value]]) -> None:
    assert read_presets(format_presets(presets)) == {name: tuple(values) for name, values in presets.items()}


@given(st.text(max_size=80))
def test_any_text_is_read(text: str) -> None:
    for one in (*read_presets(text).values(), *read_rules(text).values()):
        assert one
    try:
        read_list(text)
    except BlockWeightsError as error:
        assert "value " in str(error)  # noqa: PT017


def kept(folder: Path | None, *others: Path) -> BlockPresetsFile:
    return BlockPresetsFile(lambda: folder, lambda: others)


def test_the_users_own_are_kept_and_count_first(tmp_path: Path) -> None:
    other = tmp_path / "lbwpresets.txt"
    other.write_text("OUTALL:0,0\nTHEIRS:1,2\nSAME:1,1", encoding="utf-8")
    presets = kept(tmp_path / "data", other)
    assert presets.own == frozenset()
    presets.put(" SAME ", "0.5, R")
    again = kept(tmp_path / "data", other)
    assert again.own == {"SAME"}
    assert again.all.lists["SAME"] == (0.5, "R")
    assert again.all.lists["OUTALL"] == (0.0, 0.0)
    assert again.all.lists["THEIRS"] == (1.0, 2.0)
    assert again.all.lists["INS"] == BUILT_IN.lists["INS"]
    other.write_text("THEIRS:3,4,5", encoding="utf-8")
    assert again.all.lists["THEIRS"] == (3.0, 4.0, 5.0)
    assert again.all.lists["OUTALL"] == BUILT_IN.lists["OUTALL"]
    again.delete("SAME")
    assert kept(tmp_path / "data").own == frozenset()


def test_without_a_folder_they_last_as_long_as_the_program() -> None:
    presets = kept(None)
    presets.put("MINE", "1,0")
    assert presets.all.lists["MINE"] == (1.0, 0.0)
    presets.delete("MINE")
    assert presets.own == frozenset()


@pytest.mark.parametrize(
    "name",
    ["", " ", "a:b", "a,b", "a<b", "a=b", "#a", "a\1b", "a\x85b", "x" * 101, "0.5", "1e3", "OUTALL", "ATTNDEEPON"],
)
def test_names_that_a_tag_could_not_say_or_that_are_taken_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BlockWeightsError):
        kept(tmp_path).put(name, "1,0")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("values", ["", "1", "1,,0", "1,two", "1,nan", ",".join(["1"] * 401)])
def test_lists_that_are_none_are_refused(values: str, tmp_path: Path) -> None:
    with pytest.raises(BlockWeightsError):
        kept(tmp_path).put("MINE", values)
    with pytest.raises(BlockWeightsError, match="there is no preset"):
        kept(tmp_path).delete("MINE")


def test_a_file_that_cannot_be_read_is_said_once_and_the_others_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad, gone = tmp_path / "lbwpresets.txt", tmp_path / "no.txt"
    bad.write_bytes(b"\xff\xfe\x00A:1,2")
    presets = kept(None, bad, gone)
    with caplog.at_level(logging.WARNING):
        assert presets.all.lists == presets.all.lists == BUILT_IN.lists
    assert [record.getMessage() for record in caplog.records if str(bad) in record.getMessage()][1:] == []
    assert presets.problem.startswith(f"{bad} cannot be read as presets of block weights (")
    assert presets.problem.endswith("; repair it or move it away")
    assert kept(None, gone).problem == ""


def test_names() -> None:
    assert checked_name(" Out all 2.5 ") == "Out all 2.5"


TWENTY = [f"P{number:02}" for number in range(20)]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], "there are no presets"),
        (["B", "A"], "presets there are: A, B"),
        (TWENTY, f"presets there are: {', '.join(TWENTY)}"),
        ([*TWENTY, "P20"], f"presets there are: {', '.join(TWENTY)}, …"),
    ],
)
def test_a_message_names_twenty_presets_at_most(names: list[str], said: str) -> None:
    assert known("presets", names) == said


def test_comments_and_lines_that_are_no_presets_stay(tmp_path: Path) -> None:
    (tmp_path / "block_presets.txt").write_text("# mine\nA:1,1\nB:1,x\nA:2,2", encoding="utf-8")
    presets = kept(tmp_path)
    presets.put("A", "3,3")
    presets.put("C", "1,0")
    assert (tmp_path / "block_presets.txt").read_text("utf-8") == "# mine\nA:3,3\nB:1,x\nC:1,0\n"
    presets.delete("A")
    assert (tmp_path / "block_presets.txt").read_text("utf-8") == "# mine\nB:1,x\nC:1,0\n"


def test_a_file_of_ones_own_that_is_no_text_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "block_presets.txt").write_bytes(b"A:1,1\n\xff\n")
    presets = kept(tmp_path)
    assert presets.own == frozenset()
    assert "block_presets.txt cannot be read as presets of block weights (" in presets.problem
    presets.put("B", "1,0")
    assert presets.problem == ""
    assert (tmp_path / "block_presets.txt.damaged-1").read_bytes() == b"A:1,1\n\xff\n"
    assert presets.own == {"B"}


def test_no_more_are_kept_than_a_list_can_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extension.kept.block_presets._MOST", 2)
    presets = kept(tmp_path)
    presets.put("A", "1,0"), presets.put("B", "1,0")
    with pytest.raises(BlockWeightsError, match="2 presets"):
        presets.put("C", "1,0")
    presets.put("B", "0,1")
    assert kept(tmp_path).own == {"A", "B"}
