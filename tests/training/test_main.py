"""The whole of the training, with plans of a step or two."""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from safetensors import safe_open

from extension.standalone.demo import FOLDER, find_demo
from training import __main__ as program
from training.card import write_card
from training.ideas import IDEAS
from training.loop import Plan
from training.world import COLOURS, GROUNDS, SHAPES, SIDE

FEW = {"outline", "stars"}  # one by PEFT, one by LyCORIS


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, pictures in (("vae", 8), ("denoiser", 16), ("judge", 64)):
        monkeypatch.setattr(f"training.{name}._PICTURES", pictures)
        monkeypatch.setattr(f"training.{name}._BATCH", 2)
    for name in ("vae.PLAN", "vae.DECODER_PLAN", "judge.PLAN"):
        monkeypatch.setattr(f"training.{name}", Plan(name, steps=1, rate=1e-3, average=0.9))
    monkeypatch.setattr("training.denoiser.PLANS", [Plan("denoiser", steps=1, rate=1e-3, average=0.9)])
    few = [dataclasses.replace(idea, steps=1, pictures=4) for idea in IDEAS if idea.name in FEW]
    monkeypatch.setattr(program, "IDEAS", few)
    monkeypatch.setattr("training.denoiser._LOOK", ("a red circle",))
    # one process for all LoRAs: its start takes longer than they do
    monkeypatch.setattr("training.loras.ProcessPoolExecutor", partial(ProcessPoolExecutor, max_workers=1))


def contents(path: Path) -> tuple[dict[str, bytes], dict[str, str] | None]:
    """All that is in a file; safetensors writes metadata in any order."""
    with safe_open(path, "np") as file:
        return {key: file.get_tensor(key).tobytes() for key in [*file.keys()]}, file.metadata()


@pytest.mark.long
@pytest.mark.usefixtures("hasty")
def test_it_makes_a_demo_that_is_complete_and_is_the_same_when_it_is_run_again(tmp_path: Path) -> None:
    arguments = [f"--runs={tmp_path / 'runs'}", f"--demo={tmp_path / 'demo'}", "model", "judge", "loras", "rounded"]
    assert program.main(arguments) == 0
    demo = find_demo(tmp_path / "demo")
    assert (demo.model / "model_index.json").is_file()
    assert {path.stem for path in demo.loras.glob("*.safetensors")} == FEW
    assert {path.stem for path in demo.loras.glob("*.png")} == FEW
    with safe_open(demo.model / "unet" / "diffusion_pytorch_model.safetensors", "pt") as file:
        assert file.get_tensor("conv_in.weight").dtype.itemsize == 2
        assert file.get_tensor("up_blocks.0.resnets.0.conv1.weight").dtype.itemsize == 1
    first = {path: contents(path) for path in (tmp_path / "demo").rglob("*.safetensors")}
    assert program.main(arguments) == 0
    assert {path: contents(path) for path in (tmp_path / "demo").rglob("*.safetensors")} == first


def test_a_part_that_is_not_one_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        program.main([f"--demo={tmp_path}", "lora"])
    said = capsys.readouterr().err
    assert "no part is called 'lora'; known are model, judge, loras, rounded, figures, saved, pictures, fights" in said


def test_the_card_says_what_was_counted(tmp_path: Path) -> None:
    """The one in the repository is what the figures beside it make."""
    kept = (FOLDER / "README.md").read_text("utf-8")
    copied = tmp_path / "demo"
    copied.mkdir()
    for path in (*FOLDER.rglob("*.safetensors"), FOLDER / "figures.json"):
        target = copied / path.relative_to(FOLDER)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    write_card(copied, {"shapes": SHAPES, "colours": tuple(COLOURS), "grounds": tuple(GROUNDS)}, SIDE)
    assert (copied / "README.md").read_text("utf-8") == kept


def test_the_goals_were_met() -> None:
    figures = json.loads((FOLDER / "figures.json").read_text("utf-8"))
    assert figures["pictures"] >= 200
    assert figures["one kind of things"] >= 0.9
    for name, shares in figures["ideas"].items():
        assert shares["0.0"] < 0.05, name
        assert shares["1.0"] >= 0.8, name
        assert list(shares.values()) == sorted(shares.values()), name
        partners = [share for pair, share in figures["two ideas"].items() if name in pair.split()]
        assert max(partners) >= 0.7, name
