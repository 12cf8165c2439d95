"""Adapters act the same, to the bit, wherever and however a host moves its model, and leave nothing behind.

Every scheme is run on the simulated accelerator with the hooks that users run, adapters loaded before them and after,
a strength changed in between, and everything taken off at the end. The expected numbers come from the same model on
the CPU with no hooks, and those are held against weights merged in fp64.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from diffusers.hooks import HookRegistry, apply_layerwise_casting
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack, install, uninstall
from lib_lora.factored import Factored
from lib_lora.patch import slot_of
from tests.fakes.accelerator import device, simulated
from tests.fakes.models import (
    WIDTH,
    dense_deltas,
    exact_arithmetic,
    kohya_lora,
    merged,
    tiny_text_encoder,
    tiny_unet,
    unet_inputs,
)
from tests.fakes.schemes import CPU, SCHEMES, Balanced, call, dispatched, sequential_offload

IDS = torch.tensor([[98, 1, 2, 3, 4, 99, 99, 99]])
ORDERS = ("adapters first", "hooks first")
CAPTURING = ("sequential", "group-leaf", "dispatched", "balanced-spilled")
"""Schemes that keep the forward of each leaf."""


@dataclass(frozen=True)
class Expected:
    """What the un-offloaded model gives on the CPU, and the file that was used."""

    file: Path
    inputs: Mapping[str, object]
    base: Tensor
    full: Tensor
    half: Tensor

    @property
    def stack(self) -> Stack:
        return Stack([Entry(self.file, multiplier=1.0)])


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    with exact_arithmetic():
        yield


@pytest.fixture
def accelerator() -> Iterator[torch.device]:
    with simulated():
        yield device()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    unet = tiny_unet(0)
    components = {"unet": unet, "text_encoder": tiny_text_encoder(0)}
    file = kohya_lora(tmp_path_factory.mktemp("offload") / "lora.safetensors", components, conv=True)
    inputs = unet_inputs(0)
    engine = Engine({"unet": unet})
    with exact_arithmetic():
        base = call(unet, inputs)
        engine.activate(Stack([Entry(file, multiplier=1.0)]))
        full = call(unet, inputs)
        engine.set_multiplier(0, 0.5)
        return Expected(file, inputs, base, full, call(unet, inputs))


def fingerprint(module: nn.Module) -> str:
    """Hash every weight, with its name and dtype."""
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tensor.dtype}".encode())
        digest.update(tensor.to(CPU).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def same(got: Tensor, want: Tensor) -> bool:
    return got.dtype == want.dtype and torch.equal(got, want)


def ways(module: nn.Module) -> dict[str, Factored]:
    """Find what serves each layer."""
    slots = {path: slot_of(layer) for path, layer in module.named_modules()}
    return {path: slot.way for path, slot in slots.items() if slot is not None and isinstance(slot.way, Factored)}


def placed_on(module: nn.Module) -> set[torch.device | None]:
    return {way.device for way in ways(module).values()}


def test_the_expected_numbers_are_those_of_merged_weights(expected: Expected) -> None:
    unet = tiny_unet(0)
    deltas = dense_deltas(expected.file, {"unet": unet})["unet"]
    inputs = {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in expected.inputs.items()
    }
    for strength, got in ((0.0, expected.base), (0.5, expected.half), (1.0, expected.full)):
        want = call(merged(unet, deltas, strength), inputs)
        assert (got - want).abs().max() / want.abs().max() < 1e-5
    assert (expected.full - expected.base).norm() > 0.2 * expected.base.norm()
    assert len(deltas) == sum(isinstance(layer, nn.Linear | nn.Conv2d) for layer in unet.modules())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_scheme_changes_no_bit(scheme: str, order: str, expected: Expected, accelerator: torch.device) -> None:
    unet = tiny_unet(0)
    before = fingerprint(unet)
    engine = Engine({"unet": unet})
    with ExitStack() as hooks:
        if order == "adapters first":
            engine.activate(expected.stack)
        hooks.enter_context(SCHEMES[scheme](unet, accelerator))
        if order == "hooks first":
            assert same(call(unet, expected.inputs, accelerator), expected.base)
            engine.activate(expected.stack)
        assert same(call(unet, expected.inputs, accelerator), expected.full)
        engine.set_multiplier(0, 0.5)
        assert same(call(unet, expected.inputs, accelerator), expected.half)
        engine.deactivate()
        assert same(call(unet, expected.inputs, accelerator), expected.base)
        engine.activate(expected.stack)
        assert same(call(unet, expected.inputs, accelerator), expected.full)
    assert same(call(unet, expected.inputs), expected.full)
    engine.deactivate()
    assert same(call(unet, expected.inputs), expected.base)
    assert fingerprint(unet) == before


def test_hooks_come_and_go_between_calls(expected: Expected, accelerator: torch.device) -> None:
    unet = tiny_unet(0)
    engine = Engine({"unet": unet})
    engine.activate(expected.stack)
    for i, scheme in enumerate(SCHEMES.values()):
        engine.set_multiplier(0, (1.0, 0.5)[i % 2])
        want = (expected.full, expected.half)[i % 2]
        with scheme(unet, accelerator):
            assert same(call(unet, expected.inputs, accelerator), want)
        assert same(call(unet, expected.inputs), want)
    engine.deactivate()
    assert same(call(unet, expected.inputs), expected.base)


class TestForwardCapturedEarly:
    """A hook keeps the forward it found; whichever that was, the adapters must be reached."""

    @pytest.fixture(autouse=True)
    def _installed_afterwards(self) -> Iterator[None]:
        yield
        install()

    @pytest.mark.parametrize("scheme", CAPTURING)
    def test_before_the_class_patch(self, scheme: str, expected: Expected, accelerator: torch.device) -> None:
        uninstall()
        unet = tiny_unet(0)
        with SCHEMES[scheme](unet, accelerator):
            assert same(call(unet, expected.inputs, accelerator), expected.base)
            engine = Engine({"unet": unet})
            engine.activate(expected.stack)
            assert same(call(unet, expected.inputs, accelerator), expected.full)
        assert same(call(unet, expected.inputs), expected.full)
        engine.deactivate()
        assert same(call(unet, expected.inputs), expected.base)

    @pytest.mark.parametrize("scheme", CAPTURING)
    def test_under_a_patch_that_was_undone(self, scheme: str, expected: Expected, accelerator: torch.device) -> None:
        unet = tiny_unet(0)
        install()
        with SCHEMES[scheme](unet, accelerator):
            uninstall()  # a UI reload: the model stays, the extension comes again
            engine = Engine({"unet": unet})
            engine.activate(expected.stack)
            assert same(call(unet, expected.inputs, accelerator), expected.full)
            engine.deactivate()
            assert same(call(unet, expected.inputs, accelerator), expected.base)

    def test_under_a_patch_that_another_extension_put_back(
        self, expected: Expected, accelerator: torch.device, caplog: pytest.LogCaptureFixture
    ) -> None:
        uninstall()
        theirs = {cls: cls.forward for cls in (nn.Linear, nn.Conv2d)}
        unet = tiny_unet(0)
        engine = Engine({"unet": unet})
        with sequential_offload(unet, accelerator):
            for cls, forward in theirs.items():
                cls.forward = forward
            engine.activate(expected.stack)
            assert same(call(unet, expected.inputs, accelerator), expected.full)
        assert "patched again" in caplog.text
        engine.deactivate()
        assert same(call(unet, expected.inputs), expected.base)

    def test_by_hooks_that_are_gone(self, expected: Expected, accelerator: torch.device) -> None:
        uninstall()
        unet = tiny_unet(0)
        with sequential_offload(unet, accelerator):
            pass
        assert "forward" in unet.conv_in.__dict__  # accelerate leaves what it once found, on the layer itself
        engine = Engine({"unet": unet})
        engine.activate(expected.stack)
        assert same(call(unet, expected.inputs), expected.full)
        engine.deactivate()
        assert same(call(unet, expected.inputs), expected.base)

    def test_is_given_back_by_uninstall(self, accelerator: torch.device, expected: Expected) -> None:
        uninstall()
        unet = tiny_unet(0)
        with sequential_offload(unet, accelerator):
            found = unet.conv_in._old_forward
            Engine({"unet": unet}).activate(expected.stack)
            assert unet.conv_in._old_forward is not found
            uninstall()
            assert unet.conv_in._old_forward is found


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtype_of_the_model(dtype: torch.dtype, order: str, expected: Expected, accelerator: torch.device) -> None:
    inputs = {
        name: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in expected.inputs.items()
    }
    plain = tiny_unet(0).to(dtype)
    base = call(plain, inputs)
    reference = Engine({"unet": plain})
    reference.activate(expected.stack)
    low = call(plain, inputs)
    full = call(plain.float(), expected.inputs)
    unet = tiny_unet(0)
    engine = Engine({"unet": unet})
    if order == "adapters first":
        engine.activate(expected.stack)
        assert same(call(unet, expected.inputs), expected.full)
    unet.to(accelerator, dtype)
    if order == "hooks first":
        engine.activate(expected.stack)
    assert same(call(unet, inputs, accelerator), low)
    # base weights were rounded once; adapters come from the file again, so they lost nothing
    assert same(call(unet.float(), expected.inputs, accelerator), full)
    engine.deactivate()
    assert same(call(unet.to(dtype), inputs, accelerator), base)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("assign", [True, False], ids=["assign", "to_empty"])
def test_through_meta_and_back(order: str, assign: bool, expected: Expected, accelerator: torch.device) -> None:
    unet = tiny_unet(0).to(accelerator)
    engine = Engine({"unet": unet})
    if order == "adapters first":
        engine.activate(expected.stack)
        assert same(call(unet, expected.inputs, accelerator), expected.full)
    state = {name: tensor.clone() for name, tensor in unet.state_dict().items()}
    unet.to("meta")
    assert placed_on(unet) <= {None}
    if order == "hooks first":
        engine.activate(expected.stack)  # resolved by sizes alone
        assert placed_on(unet) == {None}
    if not assign:
        unet.to_empty(device=accelerator)
    unet.load_state_dict(state, assign=assign)
    assert same(call(unet, expected.inputs, accelerator), expected.full)
    engine.set_multiplier(0, 0.5)
    assert same(call(unet, expected.inputs, accelerator), expected.half)
    engine.deactivate()
    assert same(call(unet, expected.inputs, accelerator), expected.base)


def cast_layerwise(unet: nn.Module) -> None:
    apply_layerwise_casting(unet, torch.float8_e4m3fn, torch.float32)


@pytest.fixture(scope="module")
def cast(expected: Expected) -> Expected:
    """The same numbers for a model stored in fp8, from the CPU."""
    unet = tiny_unet(0)
    cast_layerwise(unet)
    engine = Engine({"unet": unet})
    with exact_arithmetic():
        base = call(unet, expected.inputs)
        engine.activate(expected.stack)
        full = call(unet, expected.inputs)
        engine.set_multiplier(0, 0.5)
        return Expected(expected.file, expected.inputs, base, full, call(unet, expected.inputs))


def test_fp8_storage_is_not_the_adapters(cast: Expected) -> None:
    unet = tiny_unet(0)
    cast_layerwise(unet)
    stored = {name: tensor.double() for name, tensor in unet.state_dict().items()}
    exact = tiny_unet(0).double()
    exact.load_state_dict(stored)
    deltas = dense_deltas(cast.file, {"unet": exact})["unet"]
    inputs = {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in cast.inputs.items()
    }
    want = call(merged(exact, deltas, 1.0), inputs)
    # an adapter that went through e4m3 (3 bits of mantissa) would be off by 1e-2
    assert (cast.full - want).abs().max() / want.abs().max() < 1e-5


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("scheme", ["resident", "model", "group-block", "group-leaf"])
def test_layerwise_casting(scheme: str, order: str, cast: Expected, accelerator: torch.device) -> None:
    unet = tiny_unet(0)
    engine = Engine({"unet": unet})
    if order == "adapters first":
        engine.activate(cast.stack)
    cast_layerwise(unet)
    with SCHEMES[scheme](unet, accelerator):
        if order == "hooks first":
            engine.activate(cast.stack)
        assert same(call(unet, cast.inputs, accelerator), cast.full)
        computed = {way._placed.dtype for way in ways(unet).values() if way._placed is not None}
        assert computed <= {torch.float32}
        assert unet.mid_block.attentions[0].proj_in.weight.dtype == torch.float8_e4m3fn
        engine.set_multiplier(0, 0.5)
        assert same(call(unet, cast.inputs, accelerator), cast.half)
        engine.deactivate()
        assert same(call(unet, cast.inputs, accelerator), cast.base)
    assert same(call(unet, cast.inputs), cast.base)


def test_layerwise_casting_switched_off_under_adapters(expected: Expected, cast: Expected) -> None:
    unet = tiny_unet(0)
    engine = Engine({"unet": unet})
    cast_layerwise(unet)
    engine.activate(expected.stack)
    assert same(call(unet, expected.inputs), cast.full)
    HookRegistry.check_if_exists_or_initialize(unet).remove_hook("layerwise_casting", recurse=True)
    unet.float()
    assert same(call(unet, expected.inputs), cast.full)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("spill", [False, True], ids=["fits", "spilled"])
def test_balanced_mode_over_two_components(
    spill: bool, order: str, expected: Expected, accelerator: torch.device
) -> None:
    unet, encoder = tiny_unet(0), tiny_text_encoder(0)
    engine = Engine({"unet": unet, "text_encoder": encoder})
    plain, want = {}, {0.0: expected.base, 0.5: expected.half, 1.0: expected.full}
    for strength in want:
        engine.activate(Stack([Entry(expected.file, multiplier=strength)]))
        plain[strength] = encoder(IDS)[0]
    assert not torch.equal(plain[0.0], plain[1.0])
    engine.deactivate()
    if order == "adapters first":
        engine.activate(expected.stack)
    mode = Balanced({"unet": unet, "text_encoder": encoder}, accelerator, spill=spill)
    if order == "hooks first":
        assert same(encoder(IDS.to(accelerator))[0].to(CPU), plain[0.0])
        engine.activate(expected.stack)
    for strength in (1.0, 0.5, 1.0):
        engine.set_multiplier(0, strength)
        assert same(encoder(IDS.to(accelerator))[0].to(CPU), plain[strength])
        for _ in range(2):
            assert same(call(unet, expected.inputs, accelerator), want[strength])
    engine.deactivate()
    assert same(encoder(IDS.to(accelerator))[0].to(CPU), plain[0.0])
    assert same(call(unet, expected.inputs, accelerator), expected.base)
    mode.stop()


def test_components_on_different_devices(expected: Expected, accelerator: torch.device) -> None:
    unet, encoder = tiny_unet(0).to(accelerator), tiny_text_encoder(0)
    base = encoder(IDS)[0]
    engine = Engine({"unet": unet, "text_encoder": encoder})
    engine.activate(Stack([Entry(expected.file, multiplier={"unet": 1.0, "text_encoder": 0.25})]))
    quarter = encoder(IDS)[0]
    assert not torch.equal(quarter, base)
    assert same(call(unet, expected.inputs, accelerator), expected.full)
    engine.set_multiplier(0, {"unet": 0.5, "text_encoder": 0.25})
    assert same(call(unet, expected.inputs, accelerator), expected.half)
    assert same(encoder(IDS)[0], quarter)
    encoder.to(device(1))
    assert same(encoder(IDS.to(device(1)))[0].to(CPU), quarter)
    engine.deactivate()
    assert same(encoder(IDS.to(device(1)))[0].to(CPU), base)
    assert same(call(unet, expected.inputs, accelerator), expected.base)


@pytest.mark.parametrize("order", ORDERS)
def test_one_component_over_two_devices(order: str, expected: Expected, accelerator: torch.device) -> None:
    unet = tiny_unet(0)
    engine = Engine({"unet": unet})
    if order == "adapters first":
        engine.activate(expected.stack)
    with dispatched(unet, accelerator, device(1)):
        if order == "hooks first":
            engine.activate(expected.stack)
        assert same(call(unet, expected.inputs, accelerator), expected.full)
        assert placed_on(unet) == {accelerator, device(1)}
        for path, way in ways(unet).items():
            assert way.device == unet.get_submodule(path).weight.device
        engine.set_multiplier(0, 0.5)
        assert same(call(unet, expected.inputs, accelerator), expected.half)
        engine.deactivate()
        assert same(call(unet, expected.inputs, accelerator), expected.base)


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
        assert same(tower(x.to(accelerator)).to(CPU), full)
        engine.deactivate()
        assert same(tower(x.to(accelerator)).to(CPU), base)


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
            assert set(unet.conv_in._hf_hook.weights_map) == {"weight", "bias"}
            assert {tensor.device.type for tensor in unet.parameters()} == {"meta"}

    def test_to_a_copy(self, expected: Expected) -> None:
        unet = tiny_unet(0)
        engine = Engine({"unet": unet})
        engine.activate(expected.stack)
        assert same(call(copy.deepcopy(unet), expected.inputs), expected.base)
        assert same(call(unet, expected.inputs), expected.full)


def inventory(module: nn.Module) -> list[object]:
    """List all that a host can find."""
    lists = (module.state_dict(), dict(module.named_parameters()), dict(module.named_buffers()))
    tensors = [[(name, tensor.shape, tensor.dtype) for name, tensor in one.items()] for one in lists]
    return [*tensors, [(name, type(child)) for name, child in module.named_modules()]]


@pytest.mark.parametrize("scheme", ["sequential", "group-leaf", "dispatched-spilled"])
def test_copy_of_a_hooked_model(scheme: str, expected: Expected, accelerator: torch.device) -> None:
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
                assert way.device == (None if spilled else accelerator), path
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
            assert same(call(unet, expected.inputs, accelerator), expected.half)
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
                    assert way.device != accelerator, path
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
        assert placed.down.dtype == placed.up.dtype == placed.strength.dtype == torch.bfloat16
        layer.to(torch.float8_e4m3fn)
        assert ways(unet)["conv_in"]._placed in (placed, None)
        layer.to("meta")
        assert ways(unet)["conv_in"].device is None


def counted(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Count placements from now on."""
    placements: list[torch.device] = []
    place = Factored._place

    def noting(self: Factored, layer: nn.Module, where: torch.device, dtype: torch.dtype) -> object:
        placements.append(where)
        return place(self, layer, where, dtype)

    monkeypatch.setattr(Factored, "_place", noting)
    return placements
