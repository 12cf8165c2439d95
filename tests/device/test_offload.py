"""However a host moves its model about, a strength that changes and a LoRA that goes are exact, to the bit.

A picture under a scheme has the bits of a model that lies on the device, and those are near the numbers of fp64.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from diffusers.hooks import apply_layerwise_casting
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack
from tests.covering import some_of
from tests.device.conftest import needs_float8
from tests.fakes.forge import ForgeOperations, ManualCast
from tests.fakes.net import exactly, net, net_inputs, net_lora
from tests.fakes.offloading import ORDERS, assert_same, fingerprint
from tests.fakes.schemes import CPU, ON_DISK, SCHEMES, STREAMING, call

pytestmark = pytest.mark.device

BOUNDS = {torch.float32: 1e-5, torch.float16: 1e-2}
"""Largest error over the largest value."""
STRENGTHS = (1.0, 1.1, 0.0, 1.0)


class Resident(NamedTuple):
    """What a model that lies on the device gives without LoRA, and at each strength."""

    base: Tensor
    at: dict[float, Tensor]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return net_lora(tmp_path_factory.mktemp("offload") / "lora.safetensors")


@pytest.fixture(scope="module", params=BOUNDS, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(scope="module")
def resident(device: torch.device, dtype: torch.dtype, file: Path) -> Resident:
    return on_device(net(), dtype, file, device)


def on_device(model: nn.Module, dtype: torch.dtype, file: Path, device: torch.device) -> Resident:
    """Compute what is expected of a model, and hold it against fp64."""
    with torch.no_grad():
        model, inputs = model.to(device, dtype), net_inputs(dtype)
        base, at = call(model, inputs, device), {}
        engine = Engine({"unet": model})
        for strength in STRENGTHS:
            engine.activate(Stack([Entry(file, strength)]))
            at[strength] = call(model, inputs, device)
        engine.close()
        assert_same(call(model, inputs, device), base)
        for strength, got in (*at.items(), (0.0, base)):
            want = exactly(file, strength, dtype)
            assert (got.double() - want).abs().max() < BOUNDS[dtype] * want.abs().max()
    assert (at[1.0] - base).norm() > 0.3 * base.norm()
    assert (at[1.1] - at[1.0]).norm() > 0.03 * base.norm()
    assert_same(at[0.0], base)
    return Resident(base, at)


def available(device: torch.device) -> dict[str, object]:
    """Return the schemes that a device has; streams belong to CUDA and XPU."""
    return SCHEMES | ON_DISK | (STREAMING if device.type in ("cuda", "xpu") else {})


@some_of(("scheme", "order"), [*SCHEMES, *ON_DISK, *STREAMING], ORDERS, strength=1)
def test_scheme(
    scheme: str, order: str, resident: Resident, dtype: torch.dtype, file: Path, device: torch.device
) -> None:
    if scheme not in available(device):
        pytest.skip("streams are CUDA's and XPU's")
    model, inputs = net().to(dtype), net_inputs(dtype)
    before, engine = fingerprint(model), Engine({"unet": model})
    with ExitStack() as hooks:
        if order == "adapters first":
            engine.activate(Stack([Entry(file, 1.0)]))
        hooks.enter_context(available(device)[scheme](model, device))
        if order == "hooks first":
            assert_same(call(model, inputs, device), resident.base)
            engine.activate(Stack([Entry(file, 1.0)]))
        for strength in STRENGTHS:
            engine.set_multiplier(0, strength)
            assert_same(call(model, inputs, device), resident.at[strength])
        engine.deactivate()
        assert_same(call(model, inputs, device), resident.base)
    assert fingerprint(model) == before


@pytest.mark.parametrize("first", ["down_blocks.0.conv", "mid_block.to_out", "up_blocks.1"])
def test_parts_move_in_the_middle_of_a_generation(
    first: str, resident: Resident, dtype: torch.dtype, file: Path, device: torch.device
) -> None:
    """Out of the device and back, by `to` and by `param.data`, while the strength changes; inputs follow the layer."""
    model, inputs = net().to(device, dtype), net_inputs(dtype)
    part = model.get_submodule(first)
    for module in part.modules():
        if any(True for _ in module.parameters(recurse=False)):
            module.register_forward_pre_hook(lambda layer, args: tuple(one.to(layer.weight.device) for one in args))
            module.register_forward_hook(lambda _, __, output: output.to(device))
    part.to(CPU)
    mixed_base = call(model, inputs, device)
    part.to(device)
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(file, 1.0)]))
    for turn, strength in enumerate(STRENGTHS):
        engine.set_multiplier(0, strength)
        assert_same(call(model, inputs, device), resident.at[strength])
        if turn % 2:
            part.to(CPU)
        else:
            for parameter in part.parameters():
                parameter.data = parameter.data.to(CPU)
        want = exactly(file, strength, dtype)
        got = call(model, inputs, device)
        assert (got.double() - want).abs().max() < BOUNDS[dtype] * want.abs().max()
        if strength == 0.0:
            assert_same(got, mixed_base)
        part.to(device)
    part.to(CPU)
    engine.deactivate()
    assert_same(call(model, inputs, device), mixed_base)
    part.to(device)
    assert_same(call(model, inputs, device), resident.base)


MOVES: dict[str, Callable[[nn.Module, torch.device], object]] = {
    "there": lambda model, device: model.to(device),
    "there and back": lambda model, device: model.to(device).to(CPU),
    "there, cast and back": lambda model, device: model.to(device).to(torch.bfloat16).to(CPU),
    "by new memory": lambda model, device: [setattr(one, "data", one.data.to(device)) for one in model.parameters()],
}


@pytest.mark.filterwarnings("ignore:torchvulkan")  # it computes bf16 on the CPU
@pytest.mark.parametrize("moves", MOVES)
@pytest.mark.parametrize("merged_on", ["cpu", "device"])
def test_a_merged_model_that_moves_is_restored(
    moves: str, merged_on: str, dtype: torch.dtype, file: Path, device: torch.device
) -> None:
    model, want = net().to(dtype), net().to(dtype)
    engine = Engine({"unet": model})
    if merged_on == "device":
        model.to(device)
    assert engine.activate(Stack([Entry(file, 1.0)], mode="merged")).merged
    for one in (model, want):
        MOVES[moves](one, device)
    engine.set_multiplier(0, 0.5)
    assert fingerprint(model.to(CPU)) != fingerprint(want.to(CPU))
    model.to(device)
    engine.deactivate()
    assert fingerprint(model.to(CPU)) == fingerprint(want)


@pytest.fixture(scope="module", params=[ForgeOperations, ManualCast], ids=["forge", "reforge"])
def ops(request: pytest.FixtureRequest) -> type:
    return request.param


@pytest.fixture(scope="module")
def cast_at_each_call(ops: type, dtype: torch.dtype, file: Path, device: torch.device) -> Resident:
    return on_device(net(ops), dtype, file, device)


@pytest.mark.parametrize("count", [0, 3, 6])
def test_partial_loading_of_forge_and_neo(
    count: int, ops: type, cast_at_each_call: Resident, dtype: torch.dtype, file: Path, device: torch.device
) -> None:
    """Their layers fetch weights that do not fit at each call; the loader moves more to the device, and gives back."""
    model, inputs, expected = net(ops).to(dtype), net_inputs(dtype), cast_at_each_call
    blocks = [model.time_embedding, *model.down_blocks, model.mid_block, *model.up_blocks]

    def load(number: int) -> None:
        for i, block in enumerate(blocks):
            block.to(device if i < number else CPU)
        for layer in model.modules():
            if isinstance(layer, nn.GroupNorm):
                layer.to(device)

    engine = Engine({"unet": model})
    load(count)
    engine.activate(Stack([Entry(file, 1.0)]))
    for strength in STRENGTHS:
        engine.set_multiplier(0, strength)
        assert_same(call(model, inputs, device), expected.at[strength])
        load((count + 2) % (len(blocks) + 1))
        assert_same(call(model, inputs, device), expected.at[strength])
        load(count)
    engine.deactivate()
    assert_same(call(model, inputs, device), expected.base)


@pytest.mark.filterwarnings("ignore:torchvulkan .* Falling back to CPU for copy")
@pytest.mark.parametrize("scheme", ["resident", "model", "group-block", "group-leaf"])
def test_layerwise_casting(scheme: str, file: Path, device: torch.device) -> None:
    """Weights in fp8 between two calls; the LoRA are never in it."""
    needs_float8(device)

    def cast() -> nn.Module:
        model = net()
        apply_layerwise_casting(model, torch.float8_e4m3fn, torch.float32)
        return model

    wanted, base, inputs = cast(), cast(), net_inputs()
    engine = Engine({"unet": wanted})
    engine.activate(Stack([Entry(file, 1.0)]))
    want, plain = call(wanted, inputs), call(base, inputs)
    model = cast()
    with SCHEMES[scheme](model, device):
        before = call(model, inputs, device)
        own = Engine({"unet": model})
        own.activate(Stack([Entry(file, 1.0)]))
        got = call(model, inputs, device)
        assert (got - want).abs().max() < BOUNDS[torch.float32] * want.abs().max()
        own.deactivate()
        assert_same(call(model, inputs, device), before)
    assert (before - plain).abs().max() < BOUNDS[torch.float32] * plain.abs().max()
