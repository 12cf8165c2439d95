"""Offload modes on the simulated accelerator: real numbers, and the exact way back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from extension.hosts.standalone import STANDALONE
from extension.hosts.txt2img import Hires, RequestError, Txt2Img
from extension.standalone import offload
from extension.standalone.demo import Demo
from extension.standalone.model import LoadedModel, load_model
from extension.standalone.render import Watch, render
from extension.standalone.studio import open_studio
from tests.fakes import accelerator
from tests.fakes.checkpoints import tiny_pipeline

HIRES = Hires(72, 64, "Lanczos", steps=1, denoising=0.5)
"""Between its two passes the picture is decoded and encoded again."""
MODES = (offload.NONE, offload.MODEL, offload.SEQUENTIAL, offload.GROUP)


@pytest.fixture
def device() -> Iterator[torch.device]:
    with accelerator.simulated():
        yield accelerator.device()


def freeze(pipeline: Any) -> None:
    for part in (pipeline.unet, pipeline.text_encoder, pipeline.vae):
        part.requires_grad_(False)


def weights(pipeline: Any) -> dict[str, Tensor]:
    parts = {name: part for name, part in pipeline.components.items() if isinstance(part, torch.nn.Module)}
    return {f"{name}.{key}": value for name, part in parts.items() for key, value in part.state_dict().items()}


def test_without_an_accelerator_only_none_is_offered() -> None:
    cpu = torch.device("cpu")
    assert offload.modes(cpu) == ("none",)
    with pytest.raises(RequestError, match="'model' is not available on cpu; available: none"):
        offload.set_mode(tiny_pipeline("sd1"), "model", cpu)
    with pytest.raises(RequestError, match="'fast' is not available"):
        offload.set_mode(tiny_pipeline("sd1"), "fast", cpu)


@pytest.mark.parametrize("second", MODES)
@pytest.mark.parametrize("first", MODES)
def test_any_mode_follows_any_other_and_the_way_back_is_exact(first: str, second: str, device: torch.device) -> None:
    pipeline = tiny_pipeline("sd1")
    freeze(pipeline)
    before = {key: value.clone() for key, value in weights(pipeline).items()}
    for mode in (first, second):
        offload.set_mode(pipeline, mode, device)
        tokens = torch.zeros(1, 77, dtype=torch.long).to(device)
        with torch.no_grad():
            states = pipeline.text_encoder(tokens).last_hidden_state
        assert torch.isfinite(states.cpu()).all()
    offload._remove(pipeline)
    after = weights(pipeline)
    assert after.keys() == before.keys()
    assert all(value.device.type == "cpu" and torch.equal(value, before[key]) for key, value in after.items())
    for part in (pipeline.unet, pipeline.text_encoder, pipeline.vae):
        assert not any(hasattr(module, "_hf_hook") for module in part.modules())
        registries = [module._diffusers_hook for module in part.modules() if hasattr(module, "_diffusers_hook")]
        assert not any(registry.hooks for registry in registries)


@pytest.fixture
def model(demo: Demo) -> LoadedModel:
    """Return the demo's model; a test asks for it before the device, which transformers cannot load it in."""
    return load_model(demo.model, torch.float32)


def test_a_picture_with_a_lora_is_the_same_in_every_mode(model: LoadedModel, demo: Demo, device: torch.device) -> None:
    # the simulated device cannot be indexed by lists, as the schedulers of k-diffusion do between the passes
    request = Txt2Img("a fox <lora:zorp:0.8>", steps=1, sampler="DDIM", width=64, height=64, seed=1, hires=HIRES)
    studio = open_studio(model, torch.device("cpu"), [demo.loras])
    freeze(studio.model.pipeline)
    try:
        pictures = [render(studio, request, Watch(lambda _: None, lambda: False)).pictures[0].image]
        studio.device = device
        for mode in MODES[1:] + MODES[:1]:
            studio.set_offload(mode)
            pictures.append(render(studio, request, Watch(lambda _: None, lambda: False)).pictures[0].image)
    finally:
        STANDALONE.close()
    first, *others = (np.asarray(picture).astype(int) for picture in pictures)
    assert [int(np.abs(other - others[0]).max()) for other in others] == [0] * 4
    # on the CPU the weights lie in the file's mapping, unaligned, and kernels for that round differently
    assert int(np.abs(others[0] - first).max()) <= 1
