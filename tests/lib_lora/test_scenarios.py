"""Scenarios that users reported, by their numbers; more are in offload/, and those of web UIs in tests/extension/."""

from __future__ import annotations

import copy
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack, install
from tests.conftest import TORCH
from tests.fakes.files import pair, save
from tests.fakes.models import tiny_unet, unet_inputs
from tests.fakes.quantized import layerwise_cast

WIDTH = 32


@pytest.fixture
def model() -> nn.Module:
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    return nn.ModuleDict({f"block{i}": layer for i, layer in enumerate(layers)}).requires_grad_(False).eval()


def lora(folder: Path, name: str, seed: int, rank: int = 4) -> Path:
    tensors: dict[str, Tensor] = {}
    for i in range(4):
        tensors |= pair(f"lora_unet_block{i}", (WIDTH, WIDTH), rank, seed=seed + i, size=0.3)
    return save(folder / f"{name}.safetensors", tensors)


def run(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        for layer in model.children():
            x = torch.tanh(layer(x))
    return x


def test_t8_on_an_fp8_base_the_order_of_two_loras_makes_no_difference_and_both_act(
    model: nn.Module, tmp_path: Path
) -> None:
    for name, layer in list(model.named_children()):
        setattr(model, name, layerwise_cast(torch.float8_e4m3fn)(layer))
    a, b = Entry(lora(tmp_path, "a", 1)), Entry(lora(tmp_path, "b", 9))
    x, engine = torch.randn(3, WIDTH), Engine({"unet": model})
    plain = run(model, x)
    outputs = []
    for stack in ([a, b], [b, a], [a], [b]):
        engine.activate(Stack(stack))
        outputs.append(run(model, x))
    both, turned, only_a, only_b = outputs
    assert torch.equal(both, turned)
    assert min((both - one).abs().max() for one in (only_a, only_b, plain)) > 1e-2
    engine.deactivate()
    assert torch.equal(run(model, x), plain)


@pytest.mark.skipif(TORCH < (2, 3), reason="compilations are counted as torch 2.3 and later make them")
@torch.no_grad()
def test_t12_a_compiled_model_with_a_lora_without_with_again_at_other_strengths_and_of_another_rank(
    model: nn.Module, tmp_path: Path
) -> None:
    testing = pytest.importorskip("torch._dynamo.testing")
    torch._dynamo.reset()
    install()
    counter = testing.CompileCounter()
    whole = nn.Sequential(*model.children())
    compiled = torch.compile(whole, backend=counter, fullgraph=True)
    x, engine = torch.randn(3, WIDTH), Engine({"unet": model})
    first, larger = lora(tmp_path, "first", 1), lora(tmp_path, "larger", 5, rank=8)

    def compilations(stack: Stack) -> int:
        engine.activate(stack)
        want = whole(x)
        assert (compiled(x) - want).abs().max() <= 1e-6 * want.abs().max()
        return int(counter.frame_count)

    assert compilations(Stack()) == 1
    assert compilations(Stack([Entry(first, 1.0)])) == 2
    assert compilations(Stack()) == 2
    assert [compilations(Stack([Entry(first, strength)])) for strength in (1.0, 0.8, 0.9)] == [2, 2, 2]
    assert compilations(Stack([Entry(larger, 1.0)])) == 3, "a new rank compiles once"
    assert [compilations(Stack([Entry(file, 0.5)])) for file in (first, larger)] == [3, 3]


def test_t14_twenty_loras_one_after_the_other_then_none(model: nn.Module, tmp_path: Path) -> None:
    """The memory after it is that before, and the files that may be kept; a copy of base weights is never made."""
    files = [lora(tmp_path, str(i), i) for i in range(20)]
    limit = 2 * files[0].stat().st_size
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    addresses = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    x, engine = torch.randn(3, WIDTH), Engine({"unet": model}, cache_bytes=limit)
    plain = run(model, x)
    memory = psutil.Process().memory_info().rss
    for file in files:
        engine.activate(Stack([Entry(file)]))
        run(model, x)
        used = engine.memory()
        assert used.files <= limit
        assert used.backups == 0
    engine.deactivate()
    used = engine.memory()
    assert (used.placed, used.backups, used.host_copies) == ({}, 0, 0)
    assert torch.equal(run(model, x), plain)
    for name, tensor in model.state_dict().items():
        assert tensor.data_ptr() == addresses[name]
        assert torch.equal(tensor, before[name])
    assert psutil.Process().memory_info().rss - memory < 64 << 20


SPELLINGS = {
    "kohya": ("lora_unet_{flat}.lora_down.weight", "lora_unet_{flat}.lora_up.weight"),
    "LyCORIS": ("lycoris_{flat}.lora_down.weight", "lycoris_{flat}.lora_up.weight"),
    "diffusers, first": ("unet.{path}.lora.down.weight", "unet.{path}.lora.up.weight"),
    "diffusers": ("unet.{path}.lora_A.weight", "unet.{path}.lora_B.weight"),
    "PEFT": ("base_model.model.{path}.lora_A.weight", "base_model.model.{path}.lora_B.weight"),
    "PEFT, named": ("base_model.model.{path}.lora_A.default.weight", "base_model.model.{path}.lora_B.default.weight"),
}


def test_t15_the_same_adapter_in_every_spelling_has_the_same_output_and_a_partial_file_says_so(tmp_path: Path) -> None:
    """On a UNet of SD 1.5's kind; keys of a layer that is not there are listed, the others act."""
    unet = tiny_unet(0)
    paths = [
        name
        for name, layer in unet.named_modules()
        if isinstance(layer, nn.Linear) and name.endswith(("to_q", "to_out.0", "proj"))
    ]
    shapes = {path: unet.get_submodule(path).get_parameter("weight").shape for path in paths}
    sides = {path: (torch.randn(4, inside), torch.randn(out, 4)) for path, (out, inside) in shapes.items()}
    inputs, outputs = unet_inputs(0), {}
    for spelling, keys in SPELLINGS.items():
        tensors = {
            key.format(path=path, flat=path.replace(".", "_")): tensor
            for path, pair_of_path in {**sides, "no_such.layer": (torch.randn(4, 8), torch.randn(8, 4))}.items()
            for key, tensor in zip(keys, pair_of_path, strict=True)
        }
        engine = Engine({"unet": unet})
        report = engine.activate(Stack([Entry(save(tmp_path / f"{spelling}.safetensors", tensors))])).entries[0]
        with torch.no_grad():
            outputs[spelling] = unet(**inputs)[0]
        assert report.hit == len(paths), spelling
        assert {unused.key for unused in report.unused} == {
            key.format(path="no_such.layer", flat="no_such_layer") for key in keys
        }
        engine.deactivate()
    assert all(torch.equal(output, outputs["kohya"]) for output in outputs.values())


def test_t20_two_experts_have_theirs_and_are_as_they_were_after_removal(model: nn.Module, tmp_path: Path) -> None:
    experts = {"transformer": copy.deepcopy(model), "transformer_2": copy.deepcopy(model)}
    tensors = {
        f"{stage}.block{i}.lora_{side}.weight": torch.randn(*shape)
        for stage in experts
        for i in range(4)
        for side, shape in (("A", (4, WIDTH)), ("B", (WIDTH, 4)))
    }
    file = save(tmp_path / "both.safetensors", tensors)
    engine, x = Engine(experts), torch.randn(3, WIDTH)

    def outputs() -> dict[str, Tensor]:
        return {stage: run(expert, x) for stage, expert in experts.items()}

    plain = outputs()
    report = engine.activate(Stack([Entry(file)]))
    assert report.entries[0].components == experts.keys()
    both = outputs()
    assert all((both[stage] - plain[stage]).abs().max() > 1e-2 for stage in experts)
    for stage, other in (("transformer", "transformer_2"), ("transformer_2", "transformer")):
        engine.activate(Stack([Entry(file, {stage: 1.0, other: 0.0})]))
        alone = outputs()
        assert torch.equal(alone[stage], both[stage])
        assert torch.equal(alone[other], plain[other])
    engine.deactivate()
    after = outputs()
    for stage, expert in experts.items():
        assert torch.equal(after[stage], plain[stage])
        assert all(torch.equal(mine, own) for mine, own in zip(expert.parameters(), model.parameters(), strict=True))
