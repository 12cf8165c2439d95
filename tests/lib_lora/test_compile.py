"""A compiled model takes adapters, and a change of strength recompiles nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lib_lora import Engine, Entry, Stack, install
from tests.fakes.files import pair, save

testing = pytest.importorskip("torch._dynamo.testing")


@torch.no_grad()
def test_strengths_removal_and_swap_are_seen_by_compiled_code(tmp_path):
    torch._dynamo.reset()
    install()
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8)).requires_grad_(False)
    files = [
        save(tmp_path / f"{i}.safetensors", pair("lora_unet_0", (12, 8), 4, seed=i) | pair("lora_unet_2", (8, 12), 4))
        for i in range(2)
    ]
    counter = testing.CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    x = torch.randn(3, 8)
    engine = Engine({"unet": model})

    def same() -> torch.Tensor:
        got = compiled(x)
        assert torch.equal(got, model(x))
        return got

    plain = same()
    assert counter.frame_count == 1
    engine.activate(Stack([Entry(files[0], 0.5)]))
    outputs = [same()]
    assert counter.frame_count == 2, "compiled once more, with the adapters in"
    for multiplier in (0.9, -1.0, 0.0):
        engine.set_multiplier(0, multiplier)
        outputs.append(same())
    engine.activate(Stack([Entry(files[1], 0.5)]))  # another file of the same rank
    outputs.append(same())
    assert torch.equal(outputs[3], plain)
    assert len({tuple(output.flatten().tolist()) for output in outputs}) == 5
    engine.deactivate()
    assert torch.equal(same(), plain)
    assert counter.frame_count == 2, "neither strength, nor swap, nor removal compiled again"


@torch.no_grad()
@pytest.mark.parametrize("storage", ["bfloat16", "float8"])
def test_a_storage_of_fewer_bytes_is_widened_in_the_graph(tmp_path, storage):
    torch._dynamo.reset()
    install()
    model = nn.Sequential(nn.Linear(8, 12)).requires_grad_(False)
    file = save(tmp_path / "a.safetensors", pair("lora_unet_0", (12, 8), 4))
    engine = Engine({"unet": model}, storage=storage)
    engine.activate(Stack([Entry(file, 0.5)]))
    counter = testing.CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    x = torch.randn(3, 8)
    for multiplier in (1.0, -0.3, 0.0):
        engine.set_multiplier(0, multiplier)
        assert torch.equal(compiled(x), model(x))
    assert counter.frame_count == 1
