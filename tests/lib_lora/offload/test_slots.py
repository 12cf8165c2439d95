"""Slots are invisible to hosts, and placed pairs are where, and only as long as, they are needed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lib_lora import Engine
from tests.fakes.accelerator import device
from tests.fakes.models import (
    tiny_unet,
)
from tests.fakes.offloading import (
    Expected,
    assert_same,
    counted,
    placed_on,
    ways,
)
from tests.fakes.schemes import (
    CPU,
    SCHEMES,
    call,
    sequential_offload,
)


def inventory(module: nn.Module) -> list[object]:
    """List all that a host can find."""
    lists = (module.state_dict(), dict(module.named_parameters()), dict(module.named_buffers()))
    tensors = [[(name, tensor.shape, tensor.dtype) for name, tensor in one.items()] for one in lists]
    return [*tensors, [(name, type(child)) for name, child in module.named_modules()]]


class TestInvisible:
    """Hosts walk a model's parameters, buffers, modules and state: ours are in none of them."""

    def test_to_whoever_lists_the_model(self, expected: Expected, accelerator: torch.device) -> None:
        unet = tiny_unet(0)
        before = inventory(unet)
        engine = Engine({"unet": unet})
        engine.activate(expected.stack)
        call(unet, expected.inputs)
        assert len(ways(unet)) == sum(isinstance(layer, nn.Linear | nn.Conv2d) for layer in unet.modules())
        assert inventory(unet) == before
        unet.to(accelerator)
        call(unet, expected.inputs, accelerator)
        assert inventory(unet) == before

    def test_to_weight_maps_of_accelerate(self, expected: Expected, accelerator: torch.device) -> None:
        unet = tiny_unet(0)
        engine = Engine({"unet": unet})
        engine.activate(expected.stack)
        with sequential_offload(unet, accelerator):
            assert set(unet.conv_in._hf_hook.weights_map.dataset) == set(unet.state_dict())
            assert {tensor.device.type for tensor in unet.parameters()} == {"meta"}

    def test_to_a_copy(self, expected: Expected) -> None:
        unet = tiny_unet(0)
        engine = Engine({"unet": unet})
        engine.activate(expected.stack)
        assert_same(call(copy.deepcopy(unet), expected.inputs), expected.base)
        assert_same(call(unet, expected.inputs), expected.full)


@pytest.mark.parametrize("scheme", ["resident", "sequential", "dispatched"])  # diffusers' groups cannot be copied
def test_copy_of_a_hooked_layer(scheme: str, expected: Expected, accelerator: torch.device) -> None:
    unet = tiny_unet(0)
    engine = Engine({"unet": unet})
    engine.activate(expected.stack)
    with SCHEMES[scheme](unet, accelerator):
        layer = unet.mid_block.attentions[0].proj_in
        x = torch.randn(1, *layer.weight.shape[1:2], 1, 1, device=accelerator)
        adapted = layer(x)
        twin = copy.deepcopy(layer)
        plain = twin(x)
        assert not torch.equal(plain, adapted)
        assert torch.equal(layer(x), adapted)
        engine.deactivate()
        assert torch.equal(layer(x), plain)


class TestResidency:
    """Where pairs lie: beside a layer that stays, nowhere when its scheme takes the weights away after each call."""

    @pytest.mark.parametrize("scheme", ["sequential", "group-leaf"])
    def test_dropped_after_each_call(self, scheme: str, expected: Expected, accelerator: torch.device) -> None:
        unet = tiny_unet(0)
        engine = Engine({"unet": unet})
        engine.activate(expected.stack)
        with SCHEMES[scheme](unet, accelerator):
            for _ in range(2):
                call(unet, expected.inputs, accelerator)
                assert accelerator not in placed_on(unet)

    def test_dropped_for_spilled_layers_only(self, expected: Expected, accelerator: torch.device) -> None:
        unet = tiny_unet(0)
        engine = Engine({"unet": unet})
        engine.activate(expected.stack)
        with SCHEMES["dispatched-spilled"](unet, accelerator):
            call(unet, expected.inputs, accelerator)
            for path, way in ways(unet).items():
                spilled = unet.get_submodule(path).weight.device.type == "meta"
                assert way.account.device == (None if spilled else accelerator), path
            assert None in placed_on(unet)

    @pytest.mark.parametrize("scheme", ["resident", "model", "dispatched", "balanced"])
    def test_kept_between_calls(
        self, scheme: str, expected: Expected, accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unet = tiny_unet(0)
        engine = Engine({"unet": unet})
        engine.activate(expected.stack)
        with SCHEMES[scheme](unet, accelerator):
            call(unet, expected.inputs, accelerator)
            assert placed_on(unet) == {accelerator}
            placements = counted(monkeypatch)
            engine.set_multiplier(0, 0.5)
            assert_same(call(unet, expected.inputs, accelerator), expected.half)
            assert placements == []

    @pytest.mark.parametrize("scheme", ["model", "group-block", "lowvram", "balanced"])
    def test_leaves_the_device_with_its_layer(self, scheme: str, expected: Expected, accelerator: torch.device) -> None:
        unet = tiny_unet(0)
        engine = Engine({"unet": unet})
        engine.activate(expected.stack)
        with SCHEMES[scheme](unet, accelerator):
            call(unet, expected.inputs, accelerator)
            for path, way in ways(unet).items():
                if unet.get_submodule(path).weight.device == CPU:
                    assert way.account.device != accelerator, path
        assert accelerator not in placed_on(unet)

    def test_leaving_the_device_copies_nothing(
        self, expected: Expected, accelerator: torch.device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unet = tiny_unet(0).to(accelerator)
        engine = Engine({"unet": unet})
        engine.activate(expected.stack)
        call(unet, expected.inputs, accelerator)
        placements = counted(monkeypatch)
        unet.to(CPU)
        assert placements == []
        assert placed_on(unet) == {None}

    def test_follows_the_device_before_the_call(self, expected: Expected, accelerator: torch.device) -> None:
        unet = tiny_unet(0).to(accelerator)
        engine = Engine({"unet": unet})
        engine.activate(expected.stack)
        assert placed_on(unet) == {accelerator}
        unet.to(device(1))
        assert placed_on(unet) == {device(1)}

    def test_dtype_is_that_of_the_base_output(self, expected: Expected, accelerator: torch.device) -> None:
        unet = tiny_unet(0).to(accelerator)
        engine = Engine({"unet": unet})
        engine.activate(expected.stack)
        unet.to(torch.bfloat16)  # moved, not called yet: nobody knows what it will compute in
        assert {way._placed.dtype for way in ways(unet).values() if way._placed} == {torch.float32}
        layer = unet.conv_in
        layer(torch.randn(1, 4, 8, 8, device=accelerator, dtype=torch.bfloat16))
        placed = ways(unet)["conv_in"]._placed
        assert placed is not None
        pair = placed.get().pair
        assert pair is not None
        assert pair.down.dtype == pair.up.dtype == placed.strengths.alike[0].dtype == torch.bfloat16
        layer.to(torch.float8_e4m3fn)
        assert ways(unet)["conv_in"]._placed in (placed, None)
        layer.to("meta")
        assert ways(unet)["conv_in"].account.device is None
