"""A LoRA on a quantized layer that lies on a device does what it does on the fp32 weight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lib_lora.weights.readers.base import read_base_weight
from tests.fakes.files import pair, save
from tests.fakes.quantized import FORMATS, INSIDE, OUT, Model, dense_layer, made
from tests.lib_lora.test_base_weights import change, inputs, moved, similarity, worst

pytestmark = pytest.mark.device


@pytest.mark.filterwarnings("ignore:torchvulkan")  # it computes bf16 and packed weights on the CPU
@pytest.mark.parametrize("name", FORMATS)
def test_a_quantized_layer(name: str, tmp_path: Path, device: torch.device) -> None:
    """The layer is moved as a host moves it; what its library cannot move or compute there is not asked of us."""
    path = save(tmp_path / "a.safetensors", pair("lora_unet_layer", (OUT, INSIDE), 4, seed=3))
    model, x = made(name), inputs(name).to(device)
    want = change(Model(dense_layer()).to(device), x.float(), path)
    outcome = moved(model, lambda one: one.to(device), x)
    if isinstance(outcome, str):
        pytest.skip(f"without adapters: {outcome}")
    weight = read_base_weight(model.layer, "weight")
    assert weight.device == x.device or device.type != "cuda", (
        "some libraries unpack on the CPU for devices unknown to them"
    )
    assert worst(weight.cpu(), dense_layer().weight) <= FORMATS[name].step
    plain = model(x)
    assert similarity(change(model, x, path), want) > 0.999
    assert torch.equal(model(x), plain)
