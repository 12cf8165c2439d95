"""What a model call says of itself: its rows, and the timestep, with which T-LoRA's ranks come and go."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lib_lora import Curve, Engine, Entry, Moment, Stack, Strength
from lib_lora.adapters.base import RankSchedule
from lib_lora.strengths.model_call import ModelCall
from tests.fakes.files import pair, save
from tests.fakes.models import tiny_unet, unet_inputs
from tests.fakes.schemes import call

ARGUMENTS = {"algo": "tlora", "use_timestep_mask": True, "tlora_min_rank": 1, "tlora_alpha": 1.0}
METADATA = {"ss_network_module": "lycoris.kohya", "ss_network_args": json.dumps(ARGUMENTS)}


class Denoiser(nn.Module):
    """A model that is called as hosts call theirs."""

    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.layer = nn.Conv2d(8, 8, 3, padding=1, groups=groups).requires_grad_(False)

    def forward(self, x: Tensor, timesteps: Tensor | int | None = None, **_: object) -> Tensor:
        """Return the layer's output."""
        result: Tensor = self.layer(x)
        return result


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    return pair("lora_unet_layer", (8, 8, 3, 3), 4, alpha=4)


def cut(model: Denoiser, tensors: dict[str, Tensor], x: Tensor, rank: int) -> Tensor:
    up, down = tensors["lora_unet_layer.lora_up.weight"], tensors["lora_unet_layer.lora_down.weight"]
    delta = (up.flatten(1)[:, :rank] @ down.flatten(1)[:rank]).reshape(model.layer.weight.shape)
    return nn.functional.conv2d(x, model.layer.weight + delta, model.layer.bias, padding=1)


@pytest.mark.parametrize("spell", ["positional", "timesteps", "timestep"])
@pytest.mark.parametrize("in_order", [False, True])
def test_ranks_act_by_the_timestep_of_the_call(tmp_path, tensors, spell, in_order):
    model, x = Denoiser(), torch.randn(2, 8, 5, 5)
    file = save(tmp_path / "a.safetensors", tensors, METADATA)
    engine = Engine({"unet": model})
    plain = model(x)
    engine.activate(Stack([Entry(file)], in_order=in_order))
    for timestep, rank in ((1000, 1), (999, 1), (500, 2), (250, 3), (1, 3), (0, 4)):
        for value in (timestep, torch.tensor(timestep), torch.full((2,), float(timestep))):
            got = model(x, value) if spell == "positional" else model(x, **{spell: value})
            assert (got - cut(model, tensors, x, rank)).abs().max() < 1e-5, (timestep, rank)
    engine.deactivate()
    assert torch.equal(model(x, 500), plain)
    assert not model._forward_pre_hooks_with_kwargs
    assert not model._forward_hooks


def test_without_a_timestep_all_ranks_act(tmp_path, tensors):
    model, x = Denoiser(), torch.randn(2, 8, 5, 5)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors, METADATA))]))
    assert (model(x) - cut(model, tensors, x, 4)).abs().max() < 1e-5
    engine.set_moment(Moment(timestep=1000))
    assert (model(x) - cut(model, tensors, x, 1)).abs().max() < 1e-5
    engine.set_moment(Moment())
    assert (model(x) - cut(model, tensors, x, 4)).abs().max() < 1e-5


def test_effective_weights_follow_too(tmp_path):
    grouped, x = Denoiser(groups=2), torch.randn(2, 8, 5, 5)
    tensors = pair("lora_unet_layer", (8, 4, 3, 3), 4, alpha=4)
    engine = Engine({"unet": grouped})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors, METADATA))]))
    outputs = [grouped(x, t) for t in (999, 500, 250, 0)]
    engine.activate(Stack([Entry(save(tmp_path / "b.safetensors", tensors), rank=2)]))
    assert (grouped(x) - outputs[1]).abs().max() < 1e-6


def test_other_files_of_the_stack_are_not_concerned(tmp_path, tensors):
    model, x = Denoiser(), torch.randn(2, 8, 5, 5)
    other = pair("lora_unet_layer", (8, 8, 3, 3), 4, alpha=4, seed=1)
    files = [save(tmp_path / "a.safetensors", tensors, METADATA), save(tmp_path / "b.safetensors", other)]
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(files[1])]))
    assert not model._forward_pre_hooks_with_kwargs, "nothing to listen for"
    alone = model(x, 999) - cut(model, tensors, x, 0)
    engine.activate(Stack([Entry(file) for file in files]))
    assert (model(x, 999) - alone - cut(model, tensors, x, 1)).abs().max() < 1e-5
    report = engine.activate(Stack([Entry(file) for file in files], mode="merged"))
    assert dict(report.live) == {"its ranks or heads change from step to step": 1}


@pytest.mark.parametrize(
    ("name", "timesteps"),
    [
        ("FluxTransformer2DModel", (1.0, 0.75, 0.25)),
        ("ZImageTransformer2DModel", (0.0, 0.25, 0.75)),  # diffusers' pipelines pass 1 - noise to these
        ("Lumina2Transformer2DModel", (0.0, 0.25, 0.75)),
        ("MiniMaxH3Transformer3DModel", (0.0, 0.25, 0.75)),
    ],
)
def test_a_strength_by_noise_follows_the_noise_of_each_flow_model(tmp_path, tensors, name, timesteps):
    model, x = type(name, (Denoiser,), {})(), torch.randn(2, 8, 5, 5)
    tensors = {key.replace("lora_unet_", "transformer."): value for key, value in tensors.items()}
    engine = Engine({"transformer": model})
    plain = model(x)
    path = save(tmp_path / "a.safetensors", tensors)
    engine.activate(Stack([Entry(path)]))
    change = model(x) - plain
    engine.activate(Stack([Entry(path, Strength(Curve(((1.0, 1.0), (0.0, 0.0)), unit="sigma")))]))
    for timestep, noise in zip(timesteps, (1.0, 0.75, 0.25), strict=True):
        assert (model(x, torch.full((2,), timestep)) - plain - noise * change).abs().max() < 1e-5, timestep
        assert (model(x, timestep=torch.tensor([timestep])) - plain - noise * change).abs().max() < 1e-5, timestep


def test_a_real_unet_tells_its_timestep(tmp_path):
    unet, inputs = tiny_unet(0), unet_inputs(0)
    name = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
    file = save(tmp_path / "a.safetensors", pair(name, (32, 32), 4, size=0.5), METADATA)
    engine = Engine({"unet": unet})
    engine.activate(Stack([Entry(file)]))
    outputs = {t: call(unet, inputs | {"timestep": torch.tensor(t)}) for t in (900, 10)}
    engine.activate(Stack([Entry(save(tmp_path / "b.safetensors", pair(name, (32, 32), 4, size=0.5)))]))
    full = {t: call(unet, inputs | {"timestep": torch.tensor(t)}) for t in (900, 10)}
    assert (outputs[900] - full[900]).abs().max() > 1e-4
    assert (outputs[10] - full[10]).abs().max() > 1e-6, "at 10 of 1000 three ranks of four act"


@given(st.integers(1, 128), st.integers(0, 128), st.floats(0.1, 5), st.floats(-10, 1100))
def test_a_schedule_stays_in_its_bounds_and_grows_as_noise_goes(rank, least, power, timestep):
    least = min(least, rank)
    schedule = RankSchedule(rank, least, power)
    assert least <= schedule.first(timestep) <= rank
    assert schedule.first(timestep) <= schedule.first(timestep - 1)
    assert (schedule.first(1000), schedule.first(0)) == (least, rank)


@pytest.mark.parametrize(
    ("args", "kwargs", "want"),
    [
        ((1,), {}, None),
        ((torch.zeros(1), 7), {}, 7.0),
        ((torch.zeros(1), torch.tensor([0.25])), {}, 250.0),
        ((torch.zeros(1),), {"timestep": torch.tensor(1.0)}, 1.0),
        ((torch.zeros(1),), {"t": torch.tensor([3, 3])}, 3.0),
        ((torch.zeros(1), torch.empty(0)), {}, None),
        ((torch.zeros(1), "x"), {}, None),
    ],
)
def test_where_the_timestep_is(args, kwargs, want):
    assert ModelCall(args, kwargs).timestep == want


@pytest.mark.parametrize(
    ("args", "kwargs", "want"),
    [
        ((torch.zeros(3, 4), 7), {"sample": torch.zeros(5)}, 3),
        (([torch.zeros(4, 9), torch.zeros(4, 8)], 7), {}, 2),
        ((), {"timestep": torch.zeros(1), "hidden_states": torch.zeros(6, 2)}, 6),
        ((), {"sample": torch.zeros(2, 2)}, 2),
        ((), {"x": [torch.zeros(1)], "t": 3}, 1),
        ((), {"img": torch.zeros(4, 2)}, 4),
        ((), {"encoder_hidden_states": torch.zeros(4, 2)}, None),
        ((torch.tensor(1.0),), {}, None),
        ((), {}, None),
    ],
)
def test_how_many_rows_a_call_has(args, kwargs, want):
    assert ModelCall(args, kwargs).rows == want


def test_nothing_listens_once_the_engine_is_gone(tmp_path: Path, tensors):
    model = Denoiser()
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors, METADATA))]))
    del engine
    gc.collect()
    assert not model._forward_pre_hooks_with_kwargs
    assert torch.isfinite(model(torch.randn(1, 8, 5, 5), 3)).all()
