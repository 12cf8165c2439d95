"""Every model family makes pictures through the same job, LoRA included."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from extension.hosts.standalone import STANDALONE
from extension.hosts.txt2img import Hires, Source, Txt2Img
from extension.standalone.model import LoadedModel
from extension.standalone.render import Watch, render
from extension.standalone.studio import Studio, open_studio
from tests.fakes.checkpoints import FAMILIES, tiny_pipeline

SMALL = Txt2Img("a fox", steps=2, width=64, height=64, seed=3, negative_prompt="blur")
WATCH = Watch(lambda _: None, lambda: False)


def lora(path: Path, layer: torch.nn.Linear) -> None:
    """Return a LoRA on one layer of the unet that every family has."""
    name = "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn1_to_v"
    tensors = {
        f"{name}.lora_down.weight": torch.randn(4, layer.in_features),
        f"{name}.lora_up.weight": torch.randn(layer.out_features, 4),
    }
    save_file(tensors, path)


def pixels(studio: Studio, request: Txt2Img) -> list[np.ndarray]:
    return [np.asarray(picture.image).astype(int) for picture in render(studio, request, WATCH).pictures]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_job_on_every_family(family: str, tmp_path: Path) -> None:
    pipeline = tiny_pipeline(family)
    pipeline.set_progress_bar_config(disable=True)
    lora(tmp_path / "v.safetensors", pipeline.unet.mid_block.attentions[0].transformer_blocks[0].attn1.to_v)
    digest: Future[str] = Future()
    digest.set_result("0123456789abcdef")
    kind = "sd" if family in ("sd1", "sd2") else family
    studio = open_studio(LoadedModel(pipeline, tmp_path, kind, digest), torch.device("cpu"), [tmp_path])
    try:
        (plain,) = pixels(studio, SMALL)
        (changed,) = pixels(studio, replace(SMALL, prompt="a fox<lora:v:1>"))
        (again,) = pixels(studio, SMALL)
        both = pixels(studio, replace(SMALL, batch_size=2, seed=2))
        (other,) = pixels(studio, replace(SMALL, prompt="a house"))
        source = Source((Image.fromarray(plain.astype(np.uint8)),), denoising=0.5)
        (started,) = pixels(studio, replace(SMALL, source=source))
        mask = Image.new("L", (64, 64))
        (kept,) = pixels(studio, replace(SMALL, source=replace(source, mask=mask)))
        hires = replace(SMALL, hires=Hires(96, 64, steps=2))
        (larger,), (of_second,) = pixels(studio, hires), pixels(studio, replace(hires, prompt="a fox<lora:v:1:hr=0>"))
    finally:
        STANDALONE.close()
    assert plain.shape == (64, 64, 3)
    assert not np.array_equal(plain, changed)
    assert np.array_equal(plain, again)
    assert np.abs(both[1] - plain).max() <= 1
    assert not np.array_equal(plain, other)
    assert not np.array_equal(started, plain)
    assert np.array_equal(kept, plain)
    assert larger.shape == (64, 96, 3)
    assert not np.array_equal(larger, of_second)
