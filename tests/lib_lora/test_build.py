"""Effective weights of real sizes are built by blocks, and never more than a little of a second weight is alive."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack
from lib_lora.execution.dense_products import Sum
from lib_lora.execution.hooks import slot_of
from lib_lora.execution.low_rank import LowRankExecutor
from tests.fakes.kinds import SAMPLES

BY_NAME = {sample.name: sample for sample in SAMPLES}
KINDS = {sample.recipe: sample for sample in reversed(SAMPLES) if "linear" in sample.layers}
SHAPES = {"linear": (288, 264), "conv": (96, 96, 3, 3)}


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("layer", SHAPES)
@pytest.mark.parametrize("kind", ["full", "loha", "lokr", "diag_oft", "boft", "oft_diag", "set_weight", "lora+dora"])
def test_a_weight_of_many_blocks(tmp_path, monkeypatch, kind, layer, memory):
    shape = SHAPES[layer]
    if memory is torch.channels_last and layer == "linear":
        pytest.skip("a matrix has no channels last")
    if layer not in KINDS[kind].layers:
        pytest.skip("not defined there")
    made = nn.Linear(shape[1], shape[0]) if layer == "linear" else nn.Conv2d(shape[1], shape[0], 3, padding=1)
    model = nn.ModuleDict({"layer": made.to(memory_format=memory).requires_grad_(False)})
    path, tensors = KINDS[kind].write(tmp_path, shape)
    want = KINDS[kind].weight(tensors, made.weight, 0.7).reshape(shape)
    windows: list[int] = []
    blocks = Sum._blocks

    def counted(own: Sum, base: Tensor, result: Tensor) -> list[tuple[object, ...]]:
        found = blocks(own, base, result)
        windows.append(len(found))
        return found

    monkeypatch.setattr(Sum, "_blocks", counted)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, 0.7)], mode="merged"))
    assert (made.weight - want).abs().max() < 2e-5 * want.abs().max()
    assert (windows[0] > 1) == (kind not in ("diag_oft", "boft", "oft_diag")), "a rotation mixes rows"


@pytest.mark.parametrize("others", [("loha, many ranks", "lora"), ("full",), ("set weight", "bias alone")])
@pytest.mark.parametrize("mode", ["live", "merged"])
@pytest.mark.parametrize("shape", [(24, 24), (288, 264)], ids=str)
def test_kinds_that_share_no_direction_add_up(tmp_path, others, mode, shape):
    """A rotation mixes rows, so on a CPU it is not built by rows, as what goes with it is."""
    model = nn.ModuleDict({"layer": nn.Linear(shape[1], shape[0]).requires_grad_(False)})
    weight, x = model["layer"].weight.double(), torch.randn(600, shape[1])
    samples = [BY_NAME[name] for name in others] + [KINDS["diag_oft"]]
    files = [sample.write(tmp_path, shape) for sample in samples]
    pairs = list(zip(samples, files, strict=True))
    total = weight + sum(sample.weight(file[1], weight, 0.5) - weight for sample, file in pairs)
    bias = model["layer"].bias.double()
    for sample, file in pairs:
        delta = sample.bias_delta(file[1], 0.5, bias)
        bias = bias if delta is None else bias + delta
    want = nn.functional.linear(x.double(), total, bias)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path, 0.5) for path, _ in files], mode=mode))
    assert (model["layer"](x) - want).abs().max() < 2e-5 * want.abs().max()


def test_what_shares_no_direction_stays_beside_the_layer(tmp_path):
    model = nn.ModuleDict({"layer": nn.Linear(24, 24).requires_grad_(False)})
    kinds = ("full", "diag_oft", "lora+dora")
    entries = [Entry(KINDS[kind].write(tmp_path, (24, 24))[0]) for kind in kinds]
    engine = Engine({"unet": model})
    engine.activate(Stack(entries))
    slot = slot_of(model["layer"])
    assert slot is not None
    assert isinstance(slot.executor, LowRankExecutor)
