"""Forge's layers, and ComfyUI's: weights stay behind on the CPU, or go with the model, and the input tells where."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack, uninstall
from tests.fakes.accelerator import device, simulated
from tests.fakes.files import pair, save
from tests.fakes.forge import ForgeOperations, ManualCast, Ops

KINDS = {"Forge": ForgeOperations, "ComfyUI": Ops, "ComfyUI, cast": ManualCast}


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    uninstall()
    yield
    uninstall()


class Model(nn.Module):
    def __init__(self, ops: type) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.first, self.second = ops.Linear(8, 8), ops.Linear(8, 8)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    tensors = pair("lora_unet_first", (8, 8), 4) | pair("lora_unet_second", (8, 8), 4, seed=1)
    tensors["lora_unet_first.dora_scale"] = torch.rand(8, 1) + 0.5  # which reads the base weight
    return Stack([Entry(save(tmp_path / "a.safetensors", tensors), 0.8)])


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_are_where_the_input_is_and_stay_there(kind: str, stack: Stack) -> None:
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    model = Model(KINDS[kind])
    engine = Engine({"unet": model})
    engine.activate(stack)
    want = model(x)
    engine.close()
    with simulated():
        model = Model(KINDS[kind])
        for layer in model.children():
            layer.ldm_patched_cast_weights = True  # as memory management sets it when there is no room
        engine = Engine({"unet": model})
        engine.activate(stack)
        assert engine.memory().placed == {}  # nothing is put beside weights that only rest here
        for _ in range(2):
            y = model(x.to(device()))
            assert y.device == device()
            assert (y.to("cpu") - want).abs().max() <= 1e-6 * want.abs().max()
            assert set(engine.memory().placed) == {str(device())}
        assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
        placed = engine.memory().placed
        model.first.to(device())  # there is more room now
        model.first.to("cpu")
        y = model(x.to(device()))
        assert engine.memory().placed == placed
        assert (y.to("cpu") - want).abs().max() <= 1e-6 * want.abs().max()
        engine.deactivate()
        assert engine.memory().placed == {}


def test_a_model_that_is_on_its_device_is_served_there_at_once(stack: Stack) -> None:
    with simulated():
        model = Model(ForgeOperations).to(device())
        engine = Engine({"unet": model})
        engine.activate(stack)
        assert set(engine.memory().placed) == {str(device())}


def test_layers_that_change_their_weight_at_each_call_are_served(stack: Stack) -> None:
    """reForge's low-VRAM patches: the functions act on the copy for the call, the adapter on what comes out."""
    model, x = Model(Ops), torch.randn(3, 8)
    for layer in model.children():
        layer.weight_function = [lambda weight: weight * 1.5]
    plain = model(x)
    engine = Engine({"unet": model})
    engine.activate(stack)
    assert not torch.equal(model(x), plain)
    engine.deactivate()
    assert torch.equal(model(x), plain)


def test_nothing_made_in_inference_mode_is_in_the_way_outside_of_it(stack: Stack) -> None:
    model, x = Model(ForgeOperations), torch.randn(3, 8)
    engine = Engine({"unet": model})
    with torch.inference_mode():
        engine.activate(stack)
        want = model(x).clone()
    engine.set_multiplier(0, 0.1)
    model(x)
    with torch.inference_mode():
        engine.set_multiplier(0, 0.8)
        assert torch.equal(model(x), want)
    engine.deactivate()
