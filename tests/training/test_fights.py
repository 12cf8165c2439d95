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
    rival = dataclasses.replace(fights.RIVAL, steps=2, pictures=4)
    fights.train_rival(pipeline, NIGHT, tmp_path / "fights", rival)
    assert (seen[0].double() - change.dense()).norm() < 1e-5 * change.dense().norm()
    assert torch.equal(pipeline.unet.get_submodule(layer.name).weight, before)
    monkeypatch.setattr(fights, "TRIED", ((1.0, 0.0), (0.0, 1.0)))
    found = fights.count_fight(pipeline, load_judge(FOLDER / "judge.safetensors"), tmp_path / "fights", count=1)
    alone, rival, offered = found["seen"]
    assert (alone["shown"], rival["shown"]) == (1, 0)
    assert 0 < offered["strengths"]["night"] == offered["strengths"]["day"] <= 1.01
