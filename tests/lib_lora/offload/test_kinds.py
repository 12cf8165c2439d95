"""Every kind under offload: the same bits as on the CPU, wherever the layer is and however it gets there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack, load_network
from tests.covering import some_of
from tests.fakes.kinds import SAMPLES
from tests.fakes.kinds.base import Sample
from tests.fakes.layers import LAYERS
from tests.fakes.offloading import ORDERS, assert_same
from tests.fakes.schemes import CPU, SCHEMES

KINDS = {sample.recipe: sample for sample in reversed(SAMPLES) if {"linear", "conv"} <= sample.layers}
"""The first sample of each recipe."""
CONV = "conv 3x3, stride"


class Block(nn.Module):
    """The layer that is adapted, among others, so that there are stretches to deal out."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.default_generator.manual_seed(0)
        self.before = nn.Identity()
        self.layer = LAYERS[kind][1]()
        self.after = nn.LeakyReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer between the others."""
        result: Tensor = self.after(self.layer(self.before(x)))
        return result


def write(folder: Path, sample: Sample, block: Block) -> Path:
    return sample.write(folder, tuple(block.layer.weight.shape))[0]


@some_of(
    ("kind", "layer", "scheme", "order"),
    sorted(KINDS),
    ["linear", CONV],
    ["resident", "model", "sequential", "group-leaf", "balanced-spilled"],
    ORDERS,
)
def test_where_the_layer_is(tmp_path, accelerator, kind, layer, scheme, order):
    block = Block(layer).requires_grad_(False).eval()
    stack = Stack([Entry(write(tmp_path, KINDS[kind], block), 0.7)])
    x = torch.randn(LAYERS[layer][2])
    base = block(x)
    engine = Engine({"unet": block})
    engine.activate(stack)
    full = block(x)
    assert (full - base).norm() > 0.01 * base.norm()
    if order == "hooks first":
        engine.deactivate()
    with SCHEMES[scheme](block, accelerator):
        engine.activate(stack)
        assert_same(block(x.to(accelerator)).to(CPU), full)
        engine.set_multiplier(0, 0.0)
        assert_same(block(x.to(accelerator)).to(CPU), base)
        engine.set_multiplier(0, 0.7)
        assert_same(block(x.to(accelerator)).to(CPU), full)
        engine.deactivate()
        assert_same(block(x.to(accelerator)).to(CPU), base)


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("factors", [torch.float32, torch.float16], ids=str)
def test_a_weight_difference_that_is_sent_to_the_cpu_in_the_middle(tmp_path, accelerator, kind, factors):
    """Where hosts die: factors in fp32 for a bf16 base on a device, the delta detached and moved while it is in use."""
    block = Block("linear").to(torch.bfloat16).requires_grad_(False).eval()
    sample = KINDS[kind]
    path, tensors = sample.write(tmp_path, tuple(block.layer.weight.shape))
    weight = block.layer.weight.double()
    want = sample.weight(tensors, weight, 1.0).reshape(weight.shape) - weight
    block.to(accelerator)
    network = load_network(path, {"unet": block})
    delta = network.delta_weight("unet", "layer")
    assert delta.detach().to(CPU).device == CPU
    assert (delta.double() - want).abs().max() < 1e-5 * max(want.abs().max().item(), 1e-6)
    engine = Engine({"unet": block})
    engine.activate(Stack([Entry(path)]))
    x = torch.randn(3, 7, 24).to(torch.bfloat16)
    there = block(x.to(accelerator)).to(CPU)
    block.to(CPU)
    assert_same(block(x), there)
    engine.set_multiplier(0, 0.5)
    block.to(accelerator)
    half = block(x.to(accelerator)).to(CPU)
    block.layer.to(CPU)
    assert_same(block(x), half)
