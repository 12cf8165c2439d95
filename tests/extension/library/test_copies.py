"""Copies are found in the background, once, slowly, and never while a picture is made; the index keeps the sketches."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from extension.library.catalog import Catalog
from extension.library.copies import Compared, CopyFinder, groups_of
from lib_lora import LoraError
from lib_lora.inspection import sketches
from lib_lora.inspection.layers import FileLayers
from lib_lora.inspection.sketches import Likeness, Sketch
from tests.fakes import spoiled
from tests.fakes.files import by_component, pair, save

NAMES = (
    "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q",
    "lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn1_to_q",
)


@dataclass
class Library:
    """A folder of files, and catalogs over it, as a web UI opens one at each start."""

    folder: Path
    data: Path
    busy: threading.Event = field(default_factory=threading.Event)
    opened: list[Catalog] = field(default_factory=list)

    def start(self) -> Catalog:
        self.close()
        self.opened.append(Catalog(lambda: [self.folder], lambda: self.data, busy=self.busy.is_set))
        self.opened[-1].start()
        assert self.opened[-1].wait(30)
        return self.opened[-1]

    def close(self) -> None:
        for catalog in self.opened:
            catalog.close()

    def file(self, name: str, tensors: spoiled.Tensors | None = None, seed: int = 0) -> Path:
        return save(self.folder / f"{name}.safetensors", made(seed) if tensors is None else tensors)


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    (tmp_path / "loras").mkdir()
    found = Library(tmp_path / "loras", tmp_path / "data")
    yield found
    found.busy.clear()
    found.close()


@pytest.fixture
def sketched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note which files are sketched."""
    names: list[str] = []
    original = sketches.sketch

    def noting(file: FileLayers, *more: Any) -> Sketch:
        names.append(file.report.path.stem)
        return original(file, *more)

    monkeypatch.setattr(sketches, "sketch", noting)
    return names


def made(seed: int) -> spoiled.Tensors:
    found: spoiled.Tensors = {}
    for at, name in enumerate(NAMES):
        found |= pair(name, (24, 16), 4, size=1.0, seed=2 * seed + at) | {f"{name}.alpha": torch.tensor(4.0)}
    return found


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def found(catalog: Catalog) -> Compared:
    """Ask as the tab does, until nothing is left to do."""

    def ended() -> bool:
        catalog.copies.ask()
        return not catalog.copies.progress.running

    until(ended)
    return catalog.copies.compared


def grouped(compared: Compared) -> list[list[str]]:
    return [[one.file.name for one in group] for group in compared.groups]


def test_copies_are_grouped_and_each_says_how_it_is_one(library: Library) -> None:
    library.file("own")
    library.file("same")
    library.file("half", spoiled.cast(made(0), torch.float16))
    library.file("wide", spoiled.padded(made(0), 2))
    library.file("strong", spoiled.with_alpha(made(0), 2.0))
    library.file("epoch", spoiled.noisy(made(0), 0.2, torch.Generator().manual_seed(0)))
    library.file("other", seed=1)
    catalog = library.start()
    catalog.used([catalog.find("own")])
    (group,) = found(catalog).groups
    alike = {one.file.name: one.alike for one in group}
    assert group[0].file.name == "own", "which is used"
    assert alike == {
        "own": None,
        "same": "same",
        "half": "precision",
        "wide": "rank",
        "strong": "scaled",
        "epoch": "near",
    }
    by_name = {one.file.name: one for one in group}
    assert {one.other.name for one in group if one.other is not None} == {"own"}
    assert by_name["strong"].factor == pytest.approx(2, rel=1e-3)
    assert by_name["half"].precisions == ("float16",)
    assert 0.8 < by_name["epoch"].cosine < 0.998


def test_a_lora_of_several_components_is_a_copy_of_the_file_with_its_layers(library: Library) -> None:
    every = dict[str, torch.Tensor]()
    for part, tensors in by_component().items():
        (library.folder / "sks" / part).mkdir(parents=True)
        save(library.folder / "sks" / part / "adapter_model.safetensors", tensors)
        every |= {key.replace("base_model.model", part): tensor for key, tensor in tensors.items()}
    library.file("whole", every)
    catalog = library.start()
    (group,) = found(catalog).groups
    assert {one.file.name for one in group} == {"sks", "whole"}
    assert group[1].alike == "same"
    assert catalog.copies.progress.left_out == {}


def test_an_epoch_is_superseded_while_a_later_one_of_its_training_is_here(library: Library) -> None:
    said = {"ss_session_id": "7", "ss_training_started_at": "1.5"}
    for steps, seed in ((100, 1), (200, 0)):
        save(library.folder / f"{steps}.safetensors", made(seed), said | {"ss_steps": str(steps)})
    catalog = library.start()
    compared = found(catalog)
    (group,) = compared.groups
    assert {(one.file.name, one.steps) for one in group} == {("100", 100), ("200", 200)}
    assert {one.alike for one in group} == {None, "epoch"}
    assert [file.name for file in compared.superseded] == ["100"]
    (library.folder / "200.safetensors").unlink()
    catalog.refresh()
    assert not found(catalog).superseded


def test_figures_stand_among_those_of_the_files_of_the_family(library: Library) -> None:
    name = "lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn2_to_k"
    for file, (width, size) in {"a": (768, 1.0), "b": (768, 2.0), "c": (768, 3.0), "xl": (2048, 9.0)}.items():
        library.file(file, pair(name, (24, width), 4, size=size))
    catalog = library.start()
    assert not catalog.copies.standings(catalog.find("a")), "it was not read"
    found(catalog)
    told = {file: catalog.copies.standings(catalog.find(file)) for file in ("a", "b", "c", "xl")}
    assert {file: one["norm"] for file, one in told.items()} == {
        "a": (2, 0, 0),
        "b": (2, 1, 0),
        "c": (2, 2, 0),
        "xl": (0, 0, 0),
    }
    assert told["a"]["resized"] == (2, 0, 2)


def test_files_of_an_older_index_get_figures_and_stay_copies_meanwhile(library: Library, sketched: list[str]) -> None:
    name = "lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn2_to_k"
    for file in ("a", "b"):
        library.file(file, pair(name, (24, 768), 4))
    found(library.start())
    for figures in ("", "0 {}"):
        library.close()
        with closing(sqlite3.connect(library.data / "catalog.sqlite3")) as database, database:
            database.execute("UPDATE file SET figures = ?", (figures,))
        library.busy.set()  # so that it does not go on
        later = library.start()
        until(lambda copies=later.copies: copies.progress.running)
        assert (later.copies.progress.done, later.copies.progress.total) == (0, 2)
        assert not later.copies.standings(later.find("a"))
        library.busy.clear()
        assert len(grouped(found(later))[0]) == 2
        assert later.copies.standings(later.find("a"))["norm"] == (1, 0, 1)
    assert sorted(sketched) == ["a", "b"], "no sketch is made again"


def test_the_file_to_keep_is_the_favourite_then_the_most_used_then_the_largest(library: Library) -> None:
    library.file("small", spoiled.cast(made(0), torch.float16))
    library.file("large")
    library.file("used", spoiled.cast(made(0), torch.float16))
    catalog = library.start()
    assert grouped(found(catalog))[0][0] == "large"
    catalog.used([catalog.find("used")])
    assert grouped(found(catalog))[0][0] == "used"
    (library.folder / "small.json").write_text('{"remora": {"favourite": true}}')
    catalog = library.start()
    assert grouped(found(catalog)) == [["small", "used", "large"]]


def test_a_file_of_two_others_names_them(library: Library) -> None:
    library.file("one")
    library.file("two", seed=1)
    library.file("sum", spoiled.merged([(0.5, made(0)), (1.0, made(1))], 8))
    compared = found(library.start())
    (merge,) = compared.merges
    assert (merge.file.name, {one.name for one in merge.parents}) == ("sum", {"one", "two"})
    strengths = dict(zip([one.name for one in merge.parents], merge.strengths, strict=True))
    assert strengths == pytest.approx({"one": 0.5, "two": 1.0}, rel=1e-3)


def test_a_later_start_reads_no_file_again_and_goes_on_with_the_rest(library: Library, sketched: list[str]) -> None:
    library.file("a")
    library.file("b")
    assert grouped(found(library.start()))
    library.file("c")
    catalog = library.start()
    until(lambda: "c" in sketched)
    assert len(grouped(found(catalog))[0]) == 3
    assert sorted(sketched) == ["a", "b", "c"], "nobody had asked the second process before"


def test_nothing_is_read_before_somebody_asks(library: Library, sketched: list[str]) -> None:
    library.file("a")
    catalog = library.start()
    time.sleep(0.2)
    assert not sketched
    found(catalog)
    assert sketched == ["a"]


def test_sketches_do_not_change_the_list_that_pages_have(library: Library) -> None:
    library.file("a")
    catalog = library.start()
    revision = catalog.index.revision
    found(catalog)
    assert catalog.index.revision == revision
    assert catalog.index.rows()[0].sketch


def test_it_rests_while_a_picture_is_made(
    library: Library, sketched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extension.library.copies._LOOK", 0.01)
    library.file("a")
    library.busy.set()
    catalog = library.start()
    catalog.copies.ask()
    until(lambda: sketched)
    time.sleep(0.2)
    progress = catalog.copies.progress
    assert (progress.running, progress.done, progress.total) == (True, 0, 1)
    library.busy.clear()
    found(catalog)
    assert catalog.copies.progress.done == 1


def test_a_host_that_never_says_that_a_picture_ended_slows_it_only(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extension.library.copies._LOOK", 0.01)
    monkeypatch.setattr("extension.library.copies._LONGEST_REST", 0.05)
    library.file("a")
    library.busy.set()
    catalog = library.start()
    began = time.monotonic()
    found(catalog)
    assert catalog.copies.progress.done == 1
    assert time.monotonic() - began > 0.05


def test_it_rests_as_long_as_it_worked(library: Library) -> None:
    copies = CopyFinder(library.start(), lambda: False)
    began = time.monotonic()
    copies._began = began - 0.3
    copies._step(1, 2)
    assert time.monotonic() - began > 0.29


def test_closing_stops_in_the_middle_of_a_file(library: Library, sketched: list[str]) -> None:
    library.file("a")
    library.busy.set()
    catalog = library.start()
    catalog.copies.ask()
    until(lambda: sketched)
    began = time.monotonic()
    catalog.close()
    assert time.monotonic() - began < 5
    assert not catalog.index.rows()[0].sketch
    assert not any(one.name == "remora-copies" for one in threading.enumerate())


@pytest.mark.parametrize(
    ("error", "said"),
    [(LoraError("bad is broken"), "bad is broken"), (RuntimeError("odd"), "bad.safetensors cannot be compared: Runt")],
)
def test_a_file_that_cannot_be_compared_costs_itself_only(
    library: Library, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    original = sketches.sketch

    def failing(file: FileLayers, *more: Any) -> Sketch:
        if file.report.path.stem == "bad":
            raise error
        return original(file, *more)

    monkeypatch.setattr(sketches, "sketch", failing)
    for name in ("bad", "good", "same"):
        library.file(name)
    catalog = library.start()
    assert sorted(grouped(found(catalog))[0]) == ["good", "same"]
    progress = catalog.copies.progress
    assert (progress.done, progress.total) == (3, 3)
    ((file, reason),) = progress.left_out.items()
    assert file.name == "bad"
    assert reason.startswith(said)


def test_a_changed_file_or_alpha_is_compared_anew_and_a_gone_one_is_no_copy(library: Library) -> None:
    for name in ("a", "b", "c"):
        library.file(name)
    catalog = library.start()
    assert len(grouped(found(catalog))[0]) == 3
    os.utime(library.file("c", seed=1), ns=(1, 1))
    (library.folder / "b.json").write_text('{"remora": {"alpha": 8}}')
    catalog.refresh()
    assert catalog.wait(30)
    (group,) = found(catalog).groups
    assert {one.alike for one in group} == {None, "scaled"}
    assert {one.file.name for one in group} == {"a", "b"}
    (library.folder / "b.safetensors").unlink()
    catalog.refresh()
    assert not catalog.copies.compared.groups, "at once"


def test_a_damaged_sketch_is_made_again(library: Library, sketched: list[str]) -> None:
    library.file("a")
    library.file("b")
    catalog = library.start()
    found(catalog)
    catalog.index.keep_quietly(catalog.find("a"), sketch=b"?")
    catalog.index.save()
    later = library.start()
    assert len(grouped(found(later))[0]) == 2
    assert sorted(sketched) == ["a", "a", "b"]


def test_a_group_holds_together_by_its_neighbours_and_says_to_which_each_is_like() -> None:
    epochs = [
        Likeness((0, 1), "near", 0.95, 1.0),
        Likeness((1, 2), "near", 0.9, 1.0),
        Likeness((3, 4), "same", 1.0, 1.0),
    ]
    groups = groups_of(epochs, [2, 0, 1, 4, 3, 5])
    assert [[at for at, _ in group] for group in groups] == [[2, 0, 1], [4, 3]]
    assert [likeness and likeness.files for _, likeness in groups[0]] == [None, (0, 1), (1, 2)]
