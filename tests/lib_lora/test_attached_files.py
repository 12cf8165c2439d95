"""Files of LoRA that an attached engine has loaded: they may go, and the engine's own are deleted."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lib_lora import ActivationError, Entry, LoraError, PipelineEngine, Stack, attach, replace_lora_calls
from tests.lib_lora.test_attached import Pipe, change, delta, lora


@pytest.fixture
def pipe() -> Pipe:
    return Pipe()


@pytest.fixture
def engine(pipe: Pipe) -> PipelineEngine:
    return attach(pipe)


@pytest.fixture
def style(tmp_path: Path) -> Path:
    return lora(tmp_path / "style.safetensors", 0)


@pytest.fixture
def face(tmp_path: Path) -> Path:
    return lora(tmp_path / "face.safetensors", 1)


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def lose(path: Path, how: str) -> None:
    if how == "deleted":
        path.unlink()
    else:
        path.write_bytes(b"no LoRA")


@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_a_file_that_is_gone_costs_its_lora_only(pipe, engine, style, face, how, caplog) -> None:
    engine.load(style)
    lose(style, how)
    engine.load(face)
    torch.testing.assert_close(change(pipe), delta(face))
    assert [entry.name for entry in engine.stack] == ["face"]
    assert engine.names == ("face", "style")
    (told,) = [record.message for record in caplog.records if "is not applied any more" in record.message]
    assert told.startswith("'style' is not applied any more: style.safetensors: it ")
    assert told.endswith("; load it again with replace=True")
    with pytest.raises(ActivationError, match=r"entry 1 .style. was not applied"):
        engine.use("style", "face")
    assert [entry.name for entry in engine.stack] == ["face"]
    engine.load(lora(style, 0), replace=True)
    torch.testing.assert_close(change(pipe), delta(face) + delta(style))


def test_every_other_call_goes_on_without_it(pipe, engine, style, face, tmp_path) -> None:
    calls = {
        "unload": lambda: engine.unload("third"),
        "set blocks": lambda: engine.set("face", {"unet": {"q": 0.5}}),
        "merge": engine.merge,
        "unmerge": engine.unmerge,
        "leave only": lambda: block.__exit__(None, None, None),
    }
    third = lora(tmp_path / "third.safetensors", 2)
    for name, call in calls.items():
        for path, seed in ((style, 0), (face, 1), (third, 2)):
            engine.load(lora(path, seed), replace=True)
        block = engine.only("face")
        if name == "leave only":
            block.__enter__()
        style.unlink()
        call()
        assert {entry.name for entry in engine.stack} >= {"face"}, name
        assert "style" not in [entry.name for entry in engine.stack], name
        assert "style" in engine.names, name


def test_lora_are_enabled_again_without_it(pipe, engine, style, face) -> None:
    replace_lora_calls(pipe)
    engine.load(style)
    engine.load(face)
    pipe.disable_lora()
    style.unlink()
    pipe.enable_lora()
    torch.testing.assert_close(change(pipe), delta(face))


def test_what_is_asked_for_and_cannot_be_read_is_an_error(engine, style, face) -> None:
    engine.load(face)
    lose(style, "damaged")
    with pytest.raises(LoraError, match=r"style\.safetensors"):
        engine.load(style)
    assert engine.names == ("face",)


def test_a_stack_that_is_activated_is_loaded(engine, style, face) -> None:
    engine.activate(Stack([Entry(style, 0.8), Entry(face, 0.5)]))
    assert {name: (report.path, report.hit) for name, report in engine.loaded.items()} == {
        "style": (style, 2),
        "face": (face, 2),
    }
    engine.use("face")
    assert set(engine.loaded) == {"face", "style"}
    engine.activate(Stack([Entry(style, 0.8)]))
    assert engine.names == tuple(engine.loaded) == ("style",)
    engine.deactivate()
    assert engine.loaded == {}


def test_a_file_of_tensors_goes_with_its_lora(pipe, engine, style, face, own_folders) -> None:
    tensors = load_file(style)
    engine.load(tensors, name="a")
    engine.load(tensors, name="a", replace=True)
    assert len(list(own_folders.iterdir())) == 1
    engine.use()
    assert len(list(own_folders.iterdir())) == 1  # it rests
    engine.use("a")
    torch.testing.assert_close(change(pipe), delta(style))
    engine.unload("a")
    assert list(own_folders.iterdir()) == []
    engine.load(tensors, name="a")
    engine.deactivate()
    assert list(own_folders.iterdir()) == []
    with pytest.raises(LoraError):
        engine.load({"x": torch.ones(2)}, name="b")
    with style.open("rb") as stream:
        engine.load(stream, name="c")
    assert len(list(own_folders.iterdir())) == 1
