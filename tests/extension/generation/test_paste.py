"""A parameters text from another machine: LoRAs are found by hash where they go by other names."""

from __future__ import annotations

import hashlib
import threading
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from extension.generation.paste import with_own_names, with_own_regions
from extension.library.catalog import Catalog
from extension.library.hashes import Stop, hash_from
from lib_lora import Region

EMPTY = hashlib.sha256().hexdigest()


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    for number, name in enumerate(("fur", "sub/ink", "glow")):
        path = tmp_path / f"{name}.safetensors"
        path.parent.mkdir(exist_ok=True)
        save_file({"x": torch.tensor([float(number)])}, path)
    # what ai-toolkit writes into every file
    save_file({"x": torch.tensor([9.0])}, tmp_path / "toolkit.safetensors", metadata={"sshs_model_hash": EMPTY})
    return Catalog(lambda: [tmp_path])


def digest(catalog: Catalog, name: str) -> str:
    return catalog.hashes.known(catalog.find(name))


def pasted(catalog: Catalog, prompt: str, hashes: str) -> str:
    return with_own_names({"Prompt": prompt, "Lora hashes": hashes}, catalog)


def test_t17_the_file_that_was_used_is_found_by_its_hash(catalog: Catalog) -> None:
    hashes = f"theirs: {digest(catalog, 'ink')}, fur: {digest(catalog, 'fur')}"
    assert (
        pasted(catalog, "a <lora:theirs:0.8> b <lora:fur:1:0.5><lyco:theirs:1>", hashes)
        == "a <lora:ink:0.8> b <lora:fur:1:0.5><lyco:ink:1>"
    )


def test_t17_a_file_of_that_name_that_is_another_one_is_not_taken(catalog: Catalog) -> None:
    assert pasted(catalog, "<lora:fur:1>", f"fur: {digest(catalog, 'glow')}") == "<lora:glow:1>"


def test_t17_the_hash_of_nothing_is_nobodys(catalog: Catalog) -> None:
    assert pasted(catalog, "<lora:other:1>", f"other: {EMPTY[:12]}") == "<lora:other:1>"
    assert not catalog.names.with_hash(EMPTY[:10], 9)
    assert digest(catalog, "toolkit") != EMPTY[:12]
    assert pasted(catalog, "<lora:other:1>", f"other: {digest(catalog, 'toolkit')}") == "<lora:toolkit:1>"


def test_a_colon_in_a_name_is_escaped_in_the_prompt_and_missing_among_the_hashes(
    catalog: Catalog, tmp_path: Path
) -> None:
    save_file({"x": torch.tensor([7.0])}, tmp_path / "re: ink.safetensors")
    hashes = f"theirs x: {digest(catalog, 're: ink')}"
    assert pasted(catalog, "a <lora:theirs\\: x:0.8>", hashes) == "a <lora:re\\: ink:0.8>"
    assert pasted(catalog, "a <lora:re\\: ink:1>", "") == "a <lora:re\\: ink:1>"


def test_a_long_text_without_an_end_takes_no_long_time(catalog: Catalog) -> None:
    start = time.process_time()
    with_own_names({"Prompt": "", "Remora stack": "<lora:" + "a" * 50_000}, catalog)
    assert time.process_time() - start < 2


def test_what_is_not_here_keeps_its_name(catalog: Catalog) -> None:
    assert pasted(catalog, "<lora:gone:1> <lora:fur>", "gone: 0123456789ab") == "<lora:gone:1> <lora:fur>"
    assert pasted(catalog, "<lora:gone:1>", "") == "<lora:gone:1>"
    assert with_own_names({}, catalog) == ""


def test_a_name_that_a_hash_list_cannot_hold_is_found_all_the_same(catalog: Catalog) -> None:
    hashes = f"a b: {digest(catalog, 'ink')}"  # a comma in a name is left out there
    assert pasted(catalog, "<lora:a, b:1>", hashes) == "<lora:ink:1>"
    assert pasted(catalog, "<lora:ab:1>", hashes) == "<lora:ab:1>"


@given(st.text(max_size=80), st.text(max_size=40))
def test_any_text_is_taken_as_it_is(prompt: str, hashes: str) -> None:
    empty = Catalog(list)
    assert with_own_names({"Prompt": prompt, "Lora hashes": hashes}, empty) == prompt


def pasted_from_sdnext(catalog: Catalog, prompt: str, names: str, hashes: str) -> str:
    return with_own_names({"Prompt": prompt, "LoRA networks": names, "LoRA hashes": hashes}, catalog)


def test_t17_sdnexts_hashes_are_those_of_whole_files_in_the_order_of_the_names(catalog: Catalog) -> None:
    ink, fur = (catalog.hashes.sha256(catalog.find(name))[:8] for name in ("ink", "fur"))
    prompt = "<lora:theirs:0.8> <lora:fur:1>"
    assert pasted_from_sdnext(catalog, prompt, "theirs, fur", f"{ink}, {fur}") == "<lora:ink:0.8> <lora:fur:1>"
    assert pasted_from_sdnext(catalog, prompt, "theirs, fur", f"{fur}, {ink}") == "<lora:fur:0.8> <lora:ink:1>"
    assert pasted_from_sdnext(catalog, prompt, "theirs, fur", ink) == prompt  # nobody knows whose it is
    assert pasted_from_sdnext(catalog, prompt, "theirs, fur", f"{8 * '0'}, no hash") == prompt


def test_a_hash_is_not_searched_for_through_all_of_a_large_collection(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = {name: catalog.hashes.sha256(catalog.find(name)) for name in ("ink", "fur")}
    for name in hashes:
        catalog.index.change(catalog.find(name), sha256="")
    monkeypatch.setattr("extension.library.hashes._READ_AT_MOST", 1)
    assert catalog.names.with_sha256(hashes["ink"], 9) is None
    assert catalog.names.with_sha256(hashes["fur"], 9, catalog.find("fur")) == catalog.find("fur")
    catalog.hashes.sha256(catalog.find("ink"))
    assert catalog.names.with_sha256(hashes["ink"], 9) == catalog.find("ink")  # known by now


def test_many_unknown_hashes_wait_for_files_once(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ink, asked, slow = digest(catalog, "ink"), threading.current_thread(), threading.Event()
    catalog.index.change(catalog.find("ink"), shorthash="")
    read: list[Path] = []

    def noted(path: Path, start: int, stop: Stop) -> str:
        assert threading.current_thread() is not asked, "a file is read by the thread that pastes"
        read.append(path)
        slow.wait(60)
        return hash_from(path, start, stop)

    monkeypatch.setattr("extension.library.hashes.hash_from", noted)
    monkeypatch.setattr("extension.generation.paste.PATIENCE", 0.2)
    names = [f"n{number}" for number in range(200)]
    prompt = " ".join(f"<lora:{name}:1>" for name in names)
    hashes = ", ".join(f"{name}: {number:012x}" for number, name in enumerate(names))
    started = time.monotonic()
    assert pasted(catalog, f"<lora:theirs:1> {prompt}", f"theirs: {ink}, {hashes}") == f"<lora:theirs:1> {prompt}"
    assert time.monotonic() - started < 20, "each hash waited anew"
    assert "paste the text again" in caplog.text
    assert len(read) == 1
    slow.set()
    monkeypatch.setattr("extension.generation.paste.PATIENCE", 60.0)
    assert pasted(catalog, f"<lora:theirs:1> {prompt}", f"theirs: {ink}, {hashes}") == f"<lora:ink:1> {prompt}"
    assert len(read) == len(set(read)), "a file was read twice"


def test_hashing_ends_within_a_file_when_the_catalog_closes(catalog: Catalog, tmp_path: Path) -> None:
    large = tmp_path / "large.safetensors"
    save_file({"x": torch.zeros(1)}, large)
    with large.open("r+b") as stream:
        stream.truncate(1 << 40)  # a hole: it would be read for hours
    catalog.refresh()
    catalog.hashes.later(catalog.find("large"))
    catalog.close()
    assert not catalog.hashes.is_busy


def test_only_regions_that_a_tag_names_are_stored() -> None:
    given_regions = {f"r{number}": Region.rectangle(0, 0, 0.5, 1) for number in range(500)}
    prompt, kept = with_own_regions("a <lora:a:1:mask=r7+!r8>", given_regions, {}, "<lora:b:1:mask=r9>")
    assert prompt == "a <lora:a:1:mask=r7+!r8>"
    assert sorted(kept) == ["r7", "r8", "r9"]
    assert with_own_regions("a fox, mask=r7", given_regions, {}) == ("a fox, mask=r7", {})
    many = f"<lora:a:1:mask={'+'.join(given_regions)}>"
    assert len(with_own_regions(many, given_regions, {})[1]) == 50
