"""The program that uses the web UI hard: that its judge notices what is wrong, and a short run of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.ledger import Ledger, Register, Write
from tests.soak.served import ROOT

EVER = float("inf")


def register(*writes: Write) -> Register:
    made = Register()
    for write in writes:
        made.add(write)
    return made


class TestWhatMayBeKept:
    def test_what_was_acknowledged_is_there_and_nothing_before_it(self) -> None:
        kept = register(Write("one", 1, 2, acknowledged=True), Write("two", 3, 4, acknowledged=True))
        assert kept.values((5, 6)) == ["two"]

    def test_while_a_change_is_made_both_may_be_read(self) -> None:
        kept = register(Write("one", 1, 2, acknowledged=True), Write("two", 3, EVER))
        assert kept.values((2.5, 2.7)) == ["one"]
        assert kept.values((4, 5)) == ["one", "two"]

    def test_of_two_changes_at_the_same_time_either_may_be_the_last(self) -> None:
        kept = register(Write("one", 1, 4, acknowledged=True), Write("two", 2, 3, acknowledged=True))
        assert kept.values((5, 6)) == ["one", "two"]

    def test_a_change_whose_answer_was_lost_may_be_made_or_not(self) -> None:
        kept = register(Write("one", 1, 2, acknowledged=True), Write("two", 3, 4))
        assert kept.values((5, 6)) == ["one", "two"]
        kept.add(Write("three", 7, 8, acknowledged=True))
        assert kept.values((9, 10)) == ["three"]

    def test_what_was_refused_is_not_there(self, tmp_path: Path) -> None:
        ledger = Ledger(tmp_path)
        ledger.writing("notes", {"a": 1}).kept()
        ledger.writing("notes", {"a": 2}).refused()
        now = ledger.possible("notes", "a", (EVER, EVER))
        assert now == [1]
        assert ledger.read("notes", {"a": 1}, (EVER, EVER)) == []
        assert ledger.read("notes", {"a": 2}, (EVER, EVER)) == ["notes 'a' is 2, and should be one of [1]"]

    def test_what_is_gone_and_what_nobody_wrote_is_wrong(self, tmp_path: Path) -> None:
        ledger = Ledger(tmp_path)
        ledger.writing("presets", {"a": "text"}).kept()
        assert ledger.read("presets", {}, (EVER, EVER)) == ["presets 'a' is None, and should be one of ['text']"]
        wrong = ledger.read("presets", {"a": "text", "b": "other"}, (EVER, EVER))
        assert wrong == ["presets 'b' is 'other', and should be one of [None]"]


def test_pictures_of_the_same_parameters_with_other_bits_are_wrong(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.picture("Seed: 1", b"bits") is None
    assert ledger.picture("Seed: 1", b"bits") is None
    assert ledger.picture("Seed: 2", b"bots") is None
    assert "Seed: 1" in str(ledger.picture("Seed: 1", b"bats"))
    assert (ledger.pictures, ledger.pictures_again) == (4, 2)


def test_a_fault_explains_errors_as_long_as_it_lasts_and_of_its_server(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with ledger.fault("killed", "b"), ledger.fault("disk full"):
        assert ledger.explained("b", (0, EVER)) == ["killed", "disk full"]
        assert ledger.explained("a", (0, EVER)) == ["disk full"]
        assert ledger.explained("a", (0, 0)) == []
    assert ledger.explained("b", (EVER, EVER)) == []


def test_what_went_wrong_is_written_down(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.went_wrong("presets", "one is gone", server="a")
    assert '"text": "one is gone", "server": "a"' in (tmp_path / "wrong.jsonl").read_text()
    assert ledger.wrong == ["presets: one is gone"]


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="it makes pipes and holds locks as POSIX has them")
def test_a_short_soak_finds_nothing_wrong() -> None:
    command = [sys.executable, "-m", "tests.soak", "--one", "--minutes=0.03"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| wrong | 0 |" in done.stdout


@pytest.mark.long
def test_two_web_uis_that_change_one_folder_lose_no_change() -> None:
    for data in ([], ["--shared"]):
        command = [sys.executable, "-m", "tests.soak.sharing", "--changes=240", *data]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "; 0 wrong" in done.stdout
