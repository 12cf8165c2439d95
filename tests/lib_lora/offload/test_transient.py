"""Effective weights built for one call, under offload."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack
from tests.fakes.models import (
    WIDTH,
    kohya_lora,
)
from tests.fakes.offloading import (
    ORDERS,
    assert_same,
)
from tests.fakes.schemes import (
    CPU,
    SCHEMES,
)


class Tower(nn.Module):
    """One block of OpenCLIP's text tower: attention that never calls its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Module()
        self.transformer.resblocks = nn.ModuleList([nn.Module()])
        self.transformer.resblocks[0].attn = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.transformer.resblocks[0].attn(x, x, x, need_weights=False)[0]
        return output


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("scheme", ["resident", "model", "group-block", "dispatched", "balanced"])
def test_attention_with_fused_weights(scheme: str, order: str, tmp_path: Path, accelerator: torch.device) -> None:
    tower = Tower().requires_grad_(False).eval()
    parts = ("q_proj", "k_proj", "v_proj", "out_proj")  # as files name them, one by one
    heads = nn.ModuleDict({f"encoder_layers_0_self_attn_{part}": nn.Linear(WIDTH, WIDTH) for part in parts})
    file = kohya_lora(tmp_path / "tower.safetensors", {"text_encoder_2": heads})
    x = torch.randn(2, 8, WIDTH)
    base = tower(x)
    engine = Engine({"text_encoder_2": tower})
    assert engine.activate(Stack([Entry(file)])).entries[0].hit == 4
    full = tower(x)
    assert (full - base).norm() > 0.05 * base.norm()
    if order == "hooks first":
        engine.deactivate()
    with SCHEMES[scheme](tower, accelerator):
        engine.activate(Stack([Entry(file)]))
        assert_same(tower(x.to(accelerator)).to(CPU), full)
        engine.deactivate()
        assert_same(tower(x.to(accelerator)).to(CPU), base)


class Grouped(nn.Module):
    """A convolution that no low-rank pair can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(4, 8, 3, padding=1, groups=2)
        self.conv_out = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.conv_out(self.conv_in(x))
        return output


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("scheme", ["resident", "model", "sequential", "group-leaf", "dispatched-spilled", "balanced"])
def test_weight_built_for_one_call(scheme: str, order: str, tmp_path: Path, accelerator: torch.device) -> None:
    model = Grouped().requires_grad_(False)
    file = kohya_lora(tmp_path / "grouped.safetensors", {"unet": model}, conv=True)
    x = torch.randn(2, 4, 8, 8)
    base = model(x)
    engine = Engine({"unet": model})
    assert engine.activate(Stack([Entry(file)])).entries[0].hit == 2
    full = model(x)
    assert (full - base).norm() > 0.05 * base.norm()
    if order == "hooks first":
        engine.deactivate()
    with SCHEMES[scheme](model, accelerator):
        engine.activate(Stack([Entry(file)]))
        assert_same(model(x.to(accelerator)).to(CPU), full)
        engine.deactivate()
        assert_same(model(x.to(accelerator)).to(CPU), base)
