"""One bad item costs one item, whatever is wrong with it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from extension.api import list_loras
from extension.library import Index, beside, read_notes, walk
from extension.library.catalog import Catalog, CatalogError
from extension.library.facts import Facts, FactsReader
from extension.library.pictures import Thumbnails
from tests.extension.library.test_facts import lora

POSIX = pytest.mark.skipif(os.name == "nt", reason="pipes and devices are files on POSIX systems alone")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "loras").mkdir()
    return tmp_path / "loras"


@pytest.fixture
def scanned(tmp_path: Path, folder: Path) -> Iterator[Callable[[], Catalog]]:
    """Scan the folder as a web UI does at its start."""
    catalogs: list[Catalog] = []

    def start() -> Catalog:
        catalogs.append(Catalog(lambda: [folder], lambda: tmp_path / "data"))
        catalogs[-1].start()
        assert catalogs[-1].wait(20), "the scan hangs"
        return catalogs[-1]

    yield start
    for catalog in catalogs:
        catalog.close()


def undecodable(folder: Path) -> Path:
    """Return a copy of a LoRA under a name that is not UTF-8."""
    path = folder / os.fsdecode(b"bad\xff.safetensors")
    try:
        return lora(folder / "tmp.safetensors").rename(path)
    except (OSError, ValueError) as error:
        pytest.skip(f"the file system takes UTF-8 alone: {error}")


@pytest.mark.parametrize("error", [OverflowError("int too large"), MemoryError(), RecursionError(), KeyError("x")])
@pytest.mark.parametrize("what", ["header", "notes"])
def test_a_file_that_fails_in_any_way_has_a_problem_and_the_next_are_read(
    scanned: Callable[[], Catalog], folder: Path, error: Exception, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "m", "z"):
        lora(folder / f"{name}.safetensors")
        (folder / f"{name}.json").write_text('{"notes": "n"}')

    def read(self: FactsReader, path: Path) -> Facts:
        if path.stem == "m":
            raise error
        return Facts(alias="read")

    def noted(paths: Any) -> Any:
        if paths[0].stem == "m":
            raise error
        return read_notes(paths)

    if what == "header":
        monkeypatch.setattr(FactsReader, "read", read)
    else:
        monkeypatch.setattr("extension.library.scan.read_notes", noted)
    catalog = scanned()
    rows = {row.name: row for row in catalog.index.rows()}
    assert all(row.complete for row in rows.values())
    assert not catalog.progress.running
    bad = rows.pop("m")
    assert bad.facts is not None
    assert bad.notes is not None
    problem = bad.facts.problem if what == "header" else bad.notes.problems[0]
    assert "cannot be read" in problem
    assert type(error).__name__ in problem
    assert {row.facts.problem for row in rows.values() if row.facts} == {""}
    assert {row.notes.notes for row in rows.values() if row.notes} == {"n"}
    monkeypatch.undo()
    again = {row.name: row for row in scanned().index.rows()}["m"]  # it may be Remora's fault, which is mended since
    assert again.facts is not None
    assert again.facts.problem == ""
    assert again.notes is not None
    assert again.notes.notes == "n"


@POSIX
def test_what_is_no_regular_file_is_left_out_and_said_once(
    scanned: Callable[[], Catalog], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lora(folder / "a.safetensors")
    os.mkfifo(folder / "pipe.safetensors")
    (folder / "zero.safetensors").symlink_to("/dev/zero")
    (folder / "folder.safetensors").mkdir()
    lora(folder / "folder.safetensors" / "b.safetensors")
    catalog = scanned()
    catalog.refresh()
    assert catalog.wait(20)
    assert sorted(catalog.names.all()) == ["a", "b"]
    said = [record.getMessage() for record in caplog.records if "is left out" in record.getMessage()]
    assert sorted(line.partition(" is ")[0].rpartition("/")[2] for line in said) == [
        "folder.safetensors",
        "pipe.safetensors",
        "zero.safetensors",
    ]
    with pytest.raises(CatalogError):
        catalog.find("pipe")


@POSIX
@pytest.mark.parametrize("end", [".json", ".civitai.info", ".txt", ".description.txt", ".png"])
@pytest.mark.parametrize("kind", ["pipe", "zero", "large", "deep"])
def test_what_lies_beside_a_file_can_be_anything(
    scanned: Callable[[], Catalog], folder: Path, end: str, kind: str
) -> None:
    lora(folder / "a.safetensors"), lora(folder / "b.safetensors")
    path = folder / f"a{end}"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "large":
        with path.open("wb") as stream:
            stream.truncate(1 << 40)
    else:
        path.write_text("[" * 100_000)
    begun = time.monotonic()
    catalog = scanned()
    row = catalog.row(catalog.find("a"))
    assert row.facts is not None
    assert row.facts.problem == ""
    assert row.notes is not None
    if end != ".png" and not (kind == "deep" and end.endswith("txt")):
        assert [str(path) in problem for problem in row.notes.problems] == [True]
    found = beside(row.file)
    assert (found.picture is not None) == (end == ".png")
    assert Thumbnails(None).of(found, embedded=False) is None
    assert time.monotonic() - begun < 15


def test_a_name_that_is_not_utf_8_costs_that_file_alone(
    scanned: Callable[[], Catalog], folder: Path, tmp_path: Path
) -> None:
    bad = undecodable(folder)
    for number in range(5):
        lora(folder / f"{number}.safetensors")
    catalog = scanned()
    rows = {row.file.path: row for row in catalog.index.rows()}
    facts = rows[bad].facts
    assert facts is not None
    assert facts.problem == "bad?.safetensors: its name is not UTF-8, so that no prompt can name it; rename the file"
    assert catalog.index.problem == ""
    assert sorted(catalog.names.all()) == [str(number) for number in range(5)]
    assert {row.name for row in Index(tmp_path / "data").rows()} == {str(number) for number in range(5)}
    bad.unlink()
    catalog.refresh()
    assert catalog.wait(20)
    assert len(catalog.index) == 5
    assert catalog.index.problem == ""


class _Session:
    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog


def test_a_name_that_is_not_utf_8_is_no_error_of_the_list(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    undecodable(tmp_path / "sub")
    folder = tmp_path / os.fsdecode(b"l\xffras")
    folder.mkdir()
    lora(folder / "a.safetensors")
    session: Any = _Session(Catalog(lambda: [folder, tmp_path / "sub"]))
    app = FastAPI()
    app.add_api_route("/sdapi/v1/loras", lambda: list_loras(session), methods=["GET"])
    answer = TestClient(app).get("/sdapi/v1/loras")
    assert answer.status_code == 200
    assert [lora["name"] for lora in answer.json()] == ["a"]


@POSIX
def test_a_file_that_becomes_a_pipe_is_an_error_and_no_wait(folder: Path) -> None:
    path = lora(folder / "a.safetensors")
    (found,) = walk([folder])
    path.unlink()
    os.mkfifo(path)
    assert FactsReader().read(found.file.path).problem.startswith("it cannot be read: it is a folder, a pipe")


def test_a_file_that_could_not_be_opened_is_read_again_by_the_next_scan(
    scanned: Callable[[], Catalog], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lora(folder / "a.safetensors")

    def away(opened: Any, *more: Any, os_open: Any = os.open, **options: Any) -> Any:
        if str(opened) == str(path):
            raise OSError(5, "Input/output error")
        return os_open(opened, *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", away)
        facts = FactsReader().read(path)
        catalog = scanned()
        assert catalog.problem(catalog.find("a")) == facts.problem
    catalog.refresh()
    assert catalog.wait(60)
    assert catalog.problem(catalog.find("a")) == "", "another web UI moved it meanwhile, and back"
    assert facts.problem == "it cannot be read: Input/output error"
    assert facts.passing
    assert not FactsReader().read(path).passing
