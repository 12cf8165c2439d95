"""Every kind in compiled code: the same numbers, and a strength changes nothing but numbers.

What acts beside its layer is part of the graph. An effective weight is built by a single operation in it; before
torch 2.4 the graph is broken there.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lib_lora import Engine, Entry, Stack, install
from lib_lora.execution.hooks import slot_of
from lib_lora.execution.low_rank import LowRankExecutor
from tests.conftest import TORCH
from tests.fakes.kinds import SAMPLES

testing = pytest.importorskip("torch._dynamo.testing")
pytestmark = pytest.mark.skipif(TORCH < (2, 3), reason="compilations are counted as torch 2.3 and later make them")

KINDS = {sample.recipe: sample for sample in reversed(SAMPLES) if {"linear", "conv"} <= sample.layers}


@pytest.mark.parametrize("kind", sorted(KINDS))
@torch.no_grad()
def test_a_kind_is_one_graph_and_strengths_are_inputs(tmp_path, kind):
    torch._dynamo.reset()
    install()
    model = nn.ModuleDict({"layer": nn.Linear(24, 48)}).requires_grad_(False)
    path, _ = KINDS[kind].write(tmp_path, (48, 24))
    counter = testing.CompileCounter()
    x = torch.randn(3, 24)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, 0.5)]))
    beside = isinstance(slot_of(model["layer"]).executor, LowRankExecutor)
    engine.deactivate()
    one_graph = beside or TORCH >= (2, 4)
    compiled = torch.compile(lambda x: model["layer"](x), backend=counter, fullgraph=one_graph)
    plain = compiled(x)
    engine.activate(Stack([Entry(path, 0.5)]))
    model["layer"](x)
    for multiplier in (0.5, -1.0, 0.0, 2.0):
        engine.set_multiplier(0, multiplier)
        want = model["layer"](x)
        assert (compiled(x) - want).abs().max() < 1e-5 * want.abs().max()
    compilations = counter.frame_count
    assert compilations == 2 or not one_graph, "the base once, and once with the adapter"
    engine.set_multiplier(0, 0.3)
    compiled(x)
    engine.deactivate()
    assert torch.equal(compiled(x), plain)
    assert counter.frame_count == compilations or not one_graph
