"""The demo's files: complete and as published, or one sentence says what is wrong with them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from extension.standalone.demo import DEMO_PROMPT, FOLDER, DemoError, find_demo
from extension.text.prompt import parse


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "demo"))


def test_it_is_complete_and_small() -> None:
    demo = find_demo()
    assert (demo.model / "model_index.json").is_file()
    assert sum(path.stat().st_size for path in demo.model.rglob("*.safetensors")) <= 12_000_000
    loras = {path.stem: path for path in demo.loras.glob("*.safetensors")}
    assert len(loras) == 6
    assert all(path.stat().st_size <= 1_000_000 for path in loras.values())
    assert all(path.with_suffix(".png").is_file() for path in loras.values())
    assert {tag.name for tag in parse(DEMO_PROMPT).tags} <= loras.keys()


def test_every_weight_has_a_checksum() -> None:
    listed = {line.split("  ")[1] for line in (FOLDER / "SHA256SUMS").read_text("utf-8").splitlines()}
    assert {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.safetensors")} <= listed


def test_a_damaged_file_is_named(copied: Path) -> None:
    weights = copied / "loras" / "stripes.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(DemoError, match=r"stripes\.safetensors is damaged"):
        find_demo(copied)


def test_a_missing_file_is_named(copied: Path) -> None:
    (copied / "loras" / "stripes.safetensors").unlink()
    with pytest.raises(DemoError, match=r"stripes\.safetensors is missing; get a complete copy"):
        find_demo(copied)


def test_without_checksums_there_is_no_demo(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match=r"cannot be read .* choose a model with --model"):
        find_demo(tmp_path)
