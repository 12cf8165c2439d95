"""Trained by PEFT and LyCORIS, written as sd-scripts does, read by Remora: no key without effect."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open

from lib_lora import Engine, Entry, Stack
from training.adapters import train_adapter
from training.denoiser import generate, make_pipeline, make_unet
from training.files import write_lora
from training.ideas import IDEAS, Idea
from training.text import make_text_encoder, tokenize, train_tokenizer
from training.vae import make_vae
from training.world import Teller

pytest.importorskip("transformers", "5", reason="training needs transformers 5")


@pytest.fixture(scope="module")
def pipeline() -> Any:
    torch.manual_seed(0)
    teller = Teller(0)
    tokenizer = train_tokenizer(teller.caption(teller.scene()) for _ in range(300))
    made = make_pipeline(make_vae(), make_unet(), make_text_encoder(tokenizer), tokenizer)
    for part in (made.unet, made.vae, made.text_encoder):
        part.eval().requires_grad_(False)
    return made


@pytest.mark.parametrize("idea", IDEAS, ids=lambda idea: idea.name)
def test_what_a_trainer_learned_is_what_the_engine_adds(
    pipeline: Any, idea: Idea, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.adapters._BATCH", 2)
    before = {key: value.clone() for key, value in pipeline.unet.state_dict().items()}
    trained = train_adapter(tmp_path, pipeline, dataclasses.replace(idea, steps=3, rate=3e-2, pictures=8))
    assert all(torch.equal(value, before[key]) for key, value in pipeline.unet.state_dict().items())
    path = tmp_path / f"{idea.name}.safetensors"
    write_lora(path, idea, trained.tensors, Image.new("RGB", (96, 96)))
    engine = Engine({"unet": pipeline.unet, "text_encoder": pipeline.text_encoder})
    prompts = ("two red circles on a blue ground",)
    plain = _words(pipeline, prompts), _noise(pipeline, prompts)
    report = engine.activate(Stack([Entry(path)]))
    ours = _words(pipeline, prompts), _noise(pipeline, prompts)
    engine.deactivate()
    assert report.entries[0].unused == ()
    assert report.entries[0].hit == report.entries[0].layers > 0
    theirs = _words(trained.pipeline, prompts), _noise(trained.pipeline, prompts)
    for mine, its, without in zip(ours, theirs, plain, strict=True):
        effect = (its - without).norm()
        assert (mine - its).norm() <= 5e-3 * effect + 1e-5  # the file is in half precision
    assert (ours[1] - plain[1]).abs().max() > 1e-4


def _words(pipeline: Any, prompts: tuple[str, ...]) -> torch.Tensor:
    with torch.no_grad():
        words: torch.Tensor = pipeline.text_encoder(tokenize(pipeline.tokenizer, prompts))[0]
    return words


def _noise(pipeline: Any, prompts: tuple[str, ...]) -> torch.Tensor:
    latents = torch.randn(1, 4, 12, 12, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        predicted: torch.Tensor = pipeline.unet(latents, 500, _words(pipeline, prompts)).sample
    return predicted


def test_a_file_says_of_itself_what_catalogues_look_for(pipeline: Any, tmp_path: Path) -> None:
    idea = next(idea for idea in IDEAS if idea.name == "zorp")
    write_lora(tmp_path / "zorp.safetensors", idea, {"x": torch.zeros(2)}, Image.new("RGB", (96, 96), "red"))
    with safe_open(tmp_path / "zorp.safetensors", "pt") as file:
        metadata = file.metadata()
    (tags,) = json.loads(metadata["ss_tag_frequency"]).values()
    assert tags["zorp"] > 1000
    assert metadata["modelspec.trigger_phrase"] == "zorp"
    assert metadata["modelspec.thumbnail"].startswith("data:image/jpeg;base64,")
    assert json.loads(metadata["ss_network_args"])["algo"] == "loha"
    with Image.open(tmp_path / "zorp.png") as preview:
        assert preview.size == (192, 192)


def test_pictures_are_the_same_for_the_same_seed(pipeline: Any) -> None:
    one, again, other = (generate(pipeline, ("a red star",), seed=seed, steps=2) for seed in (1, 1, 2))
    assert one.shape == (1, 3, 96, 96)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
