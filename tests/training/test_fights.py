"""A file that fights another one is trained on the model in which the other one acts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from extension.standalone.demo import FOLDER
from lib_lora.inspection.layers import layers_of
from training import fights
from training.adapters import Trained
from training.denoiser import load_pipeline
from training.ideas import IDEAS
from training.judge import load_judge

pytest.importorskip("transformers", "5", reason="training needs transformers 5")
NIGHT = FOLDER / "loras" / "night.safetensors"


def test_a_rival_learns_while_the_first_acts_and_both_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = load_pipeline(FOLDER / "remora-shapes")
    layer = next(one for one in layers_of(NIGHT, {"unet": pipeline.unet}).layers if one.name.endswith("attn1.to_q"))
    before = pipeline.unet.get_submodule(layer.name).weight.clone()
    change, train = layer.delta(), fights.train_adapter
    assert change is not None
    seen: list[torch.Tensor] = []

    def watched(folder: Path, model: Any, idea: Any) -> Trained:
        seen.append(model.unet.get_submodule(layer.name).weight - before)
        return train(folder, model, idea)

    monkeypatch.setattr(fights, "train_adapter", watched)
    monkeypatch.setattr("training.adapters._BATCH", 2)
    short = dataclasses.replace(fights.rival("day"), steps=2, pictures=4)
    fights.train_rival(pipeline, NIGHT, tmp_path / "fights", short)
    assert (seen[0].double() - change.dense()).norm() < 1e-5 * change.dense().norm()
    assert torch.equal(pipeline.unet.get_submodule(layer.name).weight, before)
    judge = load_judge(FOLDER / "judge.safetensors")
    found = fights.count_fight(pipeline, judge, tmp_path / "fights", ("night", "day"), count=1)
    both, alone, rival = found["seen"]
    assert both["strengths"] == {"night": 1.0, "day": 1.0}
    assert (alone["strengths"], alone["shown"]) == ({"night": 1.0, "day": 0.0}, 1)
    assert (rival["strengths"], rival["shown"]) == ({"night": 0.0, "day": 1.0}, 0)
    assert {name for name, _ in fights.PAIRS} < {idea.name for idea in IDEAS}
