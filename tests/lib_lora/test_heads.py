"""A bank of output heads, of which each step mixes some, against the formulas of the programs that run such files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, Moment, MomentError, SchedulerClock, Stack, load_network
from lib_lora.adapters.base import Origin, Site
from lib_lora.adapters.heads import Heads
from tests.fakes.accelerator import device, simulated
from tests.fakes.contract import worst
from tests.fakes.files import pair, save
from tests.fakes.schemes import sequential_offload

HEADS, OUT, INSIDE = 8, 6, 10
BOUND = 2e-6
"""Largest error over the largest value; layers compute in fp32."""
LAYERS = {"proj_out": ("video", 12.0), "audio_proj_out": ("audio", 3.0)}
"""Layer -> its name in ComfyUI's tree, and the shift of its schedule."""


class Model(nn.Module):
    """A layer that the distilled model has a LoRA for, and the two output layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner = nn.Linear(INSIDE, INSIDE)
        self.proj_out = nn.Linear(INSIDE, OUT)
        self.audio_proj_out = nn.Linear(INSIDE, OUT)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        return torch.stack([self.proj_out(x), self.audio_proj_out(x)])


@pytest.fixture
def model() -> Model:
    return Model().requires_grad_(False)


def bank(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for layer in LAYERS:
        found[f"{layer}.weight"] = torch.randn(HEADS, OUT, INSIDE, generator=generator)
        found[f"{layer}.bias"] = torch.randn(HEADS, OUT, generator=generator)
    return found


def lora() -> dict[str, Tensor]:
    """Return a LoRA, as a file is an adapter only where it has more than the bare names of the heads."""
    return pair("transformer.inner", (INSIDE, INSIDE), 2, seed=5)


def product(tensors: dict[str, Tensor]) -> Tensor:
    """Return the delta of a LoRA, in fp64."""
    down, up = (next(value.double() for key, value in tensors.items() if part in key) for part in ("down", "up"))
    alpha = next((float(value) for key, value in tensors.items() if key.endswith("alpha")), float(len(down)))
    return alpha / len(down) * up @ down


def offsets(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a bank as ComfyUI's files have it: a head, and the differences of the others to it, in rows."""
    found = {}
    for layer in LAYERS:
        for param in ("weight", "bias"):
            value = tensors[f"{layer}.{param}"].clone()
            value[1:] -= value[0]
            found[f"transformer.{layer}.set_{param}"] = value.flatten(0, 1)
    return found


def head(weights: Tensor, start: int, stop: int, shift: float) -> Tensor:
    """Mix the heads from `start` to `stop` as ComfyUI's `_pdd_head` does, in fp64."""
    grid = torch.linspace(1.0, 0.0, HEADS + 1, dtype=torch.float64)
    lengths = (1.0 - shift * grid / (1.0 + (shift - 1.0) * grid)).diff()[start:stop]
    share = lengths / lengths.sum()
    return torch.einsum("n,n...->...", share, weights[start:stop].double())


def wanted(model: Model, tensors: dict[str, Tensor], x: Tensor, start: int, stop: int, strength: float) -> Tensor:
    """Return what a model puts out with a file at a strength, in fp64."""
    inner = model.inner.weight.double()
    if "transformer.inner.lora_down.weight" in tensors:
        inner = inner + strength * product(tensors)
    x = nn.functional.linear(x.double(), inner, model.inner.bias.double())
    found = []
    for layer, (_, shift) in LAYERS.items():
        own = model.get_submodule(layer)
        weight, bias = own.weight.double(), own.bias.double()
        weight = weight + strength * (head(tensors[f"{layer}.weight"], start, stop, shift) - weight)
        bias = bias + strength * (head(tensors[f"{layer}.bias"], start, stop, shift) - bias)
        found.append(nn.functional.linear(x, weight, bias))
    return torch.stack(found)


def spans(steps: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last interval of each step; ComfyUI has it so for the shifts of the model."""
    for step in range(steps):
        start = min(round(HEADS * step / steps), HEADS - 1)
        yield start, max(round(HEADS * (step + 1) / steps), start + 1)


@pytest.mark.parametrize("comfy", [False, True])
@pytest.mark.parametrize("strength", [1.0, 0.5])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 8, 20])
def test_each_step_mixes_the_heads_that_it_spans(
    tmp_path: Path, model: Model, steps: int, strength: float, comfy: bool
):
    tensors, x = bank() | lora(), torch.randn(7, INSIDE)
    before = model(x)
    path = save(tmp_path / "a.safetensors", offsets(bank()) | lora() if comfy else tensors)
    engine = Engine({"transformer": model})
    report = engine.activate(Stack([Entry(path, strength)]))
    assert not report.entries[0].unused
    for step, (start, stop) in enumerate(spans(steps)):
        engine.set_moment(Moment(step, steps))
        assert worst(model(x), wanted(model, tensors, x, start, stop, strength)) < BOUND
    engine.activate(Stack())
    assert torch.equal(model(x), before)


def test_a_lora_on_the_same_layer_adds_up(tmp_path: Path, model: Model):
    tensors, x = bank(), torch.randn(7, INSIDE)
    also = pair("transformer.audio_proj_out", (OUT, INSIDE), 2, seed=9)
    files = [save(tmp_path / "a.safetensors", offsets(tensors)), save(tmp_path / "b.safetensors", also)]
    engine = Engine({"transformer": model})
    engine.activate(Stack([Entry(files[0], 0.7), Entry(files[1], 0.4)]))
    engine.set_moment(Moment(1, 4))
    want = wanted(model, tensors, x, 2, 4, 0.7)
    inner = nn.functional.linear(x.double(), model.inner.weight.double(), model.inner.bias.double())
    want[1] += 0.4 * inner @ product(also).T
    assert worst(model(x), want) < BOUND


def test_heads_follow_an_offloaded_layer(tmp_path: Path, model: Model):
    tensors, x = bank() | lora(), torch.randn(7, INSIDE)
    want = [wanted(model, tensors, x, start, stop, 0.5) for start, stop in spans(4)]
    before = model(x)
    with simulated(), sequential_offload(model, device()):
        engine = Engine({"transformer": model})
        engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", tensors), 0.5)]))
        for step in range(4):
            engine.set_moment(Moment(step, 4))
            assert worst(model(x.to(device())).cpu(), want[step]) < BOUND
        engine.deactivate()
    assert torch.equal(model(x), before)


def test_the_real_model_and_its_scheduler_tell_the_step(tmp_path: Path):
    diffusers = pytest.importorskip("diffusers", minversion="0.42")
    torch.manual_seed(3)
    model = diffusers.MiniMaxH3Transformer3DModel(
        num_attention_heads=2,
        attention_head_dim=24,
        hidden_size=INSIDE,
        num_layers=1,
        num_refiner_layers=1,
        ffn_dim=16,
        in_channels=3,
        audio_in_channels=12,
        patch_size=(1, 2, 2),
        text_dim=8,
        freq_dim=8,
        time_embed_hidden_dim=8,
        time_embed_dim=8,
        rope_freq_dim=4,
    ).requires_grad_(False)
    generator, tensors = torch.Generator().manual_seed(4), {}
    for layer in LAYERS:
        tensors[f"{layer}.weight"] = torch.randn(HEADS, 12, INSIDE, generator=generator)
        tensors[f"{layer}.bias"] = torch.randn(HEADS, 12, generator=generator)
    inner = pair("transformer.transformer_blocks.0.attn.to_q", (48, INSIDE), 2, seed=5)
    path = save(tmp_path / "a.safetensors", tensors | inner, {"pdd_num_steps": str(HEADS), "pdd_block_size": "2"})
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    for layer in LAYERS:
        model.get_submodule(layer).register_forward_hook(
            lambda _, args, y, layer=layer: seen.update({layer: (args[0], y)})
        )
    scheduler = diffusers.MiniMaxH3Scheduler()
    engine = Engine({"transformer": model})
    engine.set_clock(SchedulerClock(lambda: scheduler))
    assert not engine.activate(Stack([Entry(path, 0.5)])).entries[0].unused
    scheduler.set_timesteps(5)  # the last of these is the picture, so there are four steps
    latents, audio, text = torch.randn(1, 4, 12), torch.randn(1, 2, 12), torch.randn(1, 3, 8)
    rows = torch.arange(9)
    for timestep, (start, stop) in zip(scheduler.timesteps, spans(4), strict=True):
        model(
            latents,
            audio,
            text,
            timestep=torch.stack([timestep, torch.tensor(1.0)]),
            timestep_indices=torch.tensor([1] * 3 + [0] * 6),
            token_tags=torch.tensor([0] * 3 + [1] * 4 + [2] * 2),
            position_ids=rows.unsqueeze(1).expand(9, 3),
            video_indices=rows[3:7],
            audio_indices=rows[7:],
            text_indices=rows[:3],
        )
        for layer, (_, shift) in LAYERS.items():
            own, (x, got) = model.get_submodule(layer), seen[layer]
            weight, bias = (
                one.double() + 0.5 * (head(tensors[f"{layer}.{name}"], start, stop, shift) - one.double())
                for name, one in (("weight", own.weight), ("bias", own.bias))
            )
            assert worst(got, nn.functional.linear(x.double(), weight, bias)) < BOUND
        latents = scheduler.step(torch.randn(latents.shape), timestep, latents).prev_sample


@pytest.mark.parametrize(("alpha", "scale"), [("4.0", 2.0), ("1", 0.5)])
def test_the_header_tells_the_alpha_of_the_lora(tmp_path: Path, model: Model, alpha: str, scale: float):
    factors = {key: value for key, value in lora().items() if not key.endswith("alpha")}
    path = save(tmp_path / "a.safetensors", bank() | factors, {"pdd_num_steps": str(HEADS), "lora_alpha": alpha})
    network = load_network(path, {"transformer": model})
    assert worst(network.delta_weight("transformer", "inner"), scale * product(factors)) < BOUND


def test_an_alpha_in_the_header_that_is_no_number_is_said(tmp_path: Path, model: Model):
    path = save(tmp_path / "a.safetensors", bank() | lora(), {"pdd_num_steps": "8", "lora_alpha": "many"})
    notes = load_network(path, {"transformer": model}).report.notes
    assert notes[0] == "lora_alpha in its header is no number, 'many'"


def test_without_a_step_it_is_refused(tmp_path: Path, model: Model):
    engine = Engine({"transformer": model})
    engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", offsets(bank())))]))
    with pytest.raises(MomentError, match="the heads in a file depend on the step, but the step"):
        model(torch.randn(7, INSIDE))


def test_it_is_not_merged(tmp_path: Path, model: Model):
    engine, x = Engine({"transformer": model}), torch.randn(7, INSIDE)
    report = engine.activate(Stack([Entry(save(tmp_path / "a.safetensors", offsets(bank())))], mode="merged"))
    assert dict(report.live) == {"its ranks or heads change from step to step": 2}
    engine.set_moment(Moment(3, 4))
    assert worst(model(x), wanted(model, bank(), x, 6, 8, 1.0)) < BOUND


def test_some_rows_of_the_heads():
    heads = Heads.from_params(
        {"heads.weight": torch.randn(HEADS, OUT, INSIDE), "heads.bias": torch.randn(HEADS, OUT)},
        Site((OUT, INSIDE)),
        Origin(module="proj_out"),
    )
    some = heads.take(((1, 3), (5, 6)))
    assert torch.equal(some.heads, heads.heads[:, [1, 2, 5]])
    assert some.bias is not None
    assert heads.bias is not None
    assert torch.equal(some.bias, heads.bias[:, [1, 2, 5]])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"proj_out.weight": torch.randn(OUT, INSIDE)}, r"want heads.weight \(heads, 6, 10\), got \(6, 10\)"),
        ({"proj_out.bias": torch.randn(HEADS, OUT + 1)}, r"want heads.bias \(8, 6\), got \(8, 7\)"),
    ],
)
def test_what_is_no_bank_is_said(tmp_path: Path, model: Model, change: dict[str, Tensor], said: str):
    path = save(tmp_path / "a.safetensors", bank() | lora() | change)
    assert re.search(said, str(load_network(path, {"transformer": model}).report.unused))
