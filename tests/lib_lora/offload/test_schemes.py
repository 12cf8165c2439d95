"""Adapters act the same, to the bit, wherever and however a host moves its model, and leave nothing behind.

Every scheme is run on the simulated accelerator with the hooks that users run, adapters loaded before them and after,
a strength changed in between, and everything taken off at the end. The expected numbers come from the same model on
the CPU with no hooks, and those are held against weights merged in fp64.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack
from tests.covering import some_of
from tests.fakes.accelerator import device
from tests.fakes.models import (
    dense_deltas,
    merged,
    tiny_pipeline,
    tiny_text_encoder,
    tiny_unet,
)
from tests.fakes.offloading import (
    IDS,
    ORDERS,
    PIPELINE_MODES,
    Expected,
    assert_same,
    cast_layerwise,
    fingerprint,
    picture,
    placed_on,
    ways,
)
from tests.fakes.schemes import (
    CPU,
    SCHEMES,
    Balanced,
    call,
    dispatched,
    manual_cast,
)


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
            assert_same(call(unet, expected.inputs, accelerator), expected.base)
            engine.activate(expected.stack)
        assert_same(call(unet, expected.inputs, accelerator), expected.full)
        engine.set_multiplier(0, 0.5)
        assert_same(call(unet, expected.inputs, accelerator), expected.half)
        engine.deactivate()
        assert_same(call(unet, expected.inputs, accelerator), expected.base)
        engine.activate(expected.stack)
        assert_same(call(unet, expected.inputs, accelerator), expected.full)
    assert_same(call(unet, expected.inputs), expected.full)
    engine.deactivate()
    assert_same(call(unet, expected.inputs), expected.base)
    assert fingerprint(unet) == before


@some_of(("scheme", "order"), SCHEMES, ORDERS, strength=1)
def test_merged_weights_come_off_under_each_scheme(
    scheme: str, order: str, expected: Expected, accelerator: torch.device
) -> None:
    unet = tiny_unet(0)
    before = fingerprint(unet)
    engine = Engine({"unet": unet})
    stack = replace(expected.stack, mode="merged")
    with ExitStack() as hooks:
        if order == "adapters first":
            engine.activate(stack)
        hooks.enter_context(SCHEMES[scheme](unet, accelerator))
        if order == "hooks first":
            assert_same(call(unet, expected.inputs, accelerator), expected.base)
            engine.activate(stack)
        for _ in range(2):
            got = call(unet, expected.inputs, accelerator)
            assert (got - expected.full).abs().max() < 1e-5 * expected.full.abs().max()
        engine.deactivate()
        assert_same(call(unet, expected.inputs, accelerator), expected.base)
    assert_same(call(unet, expected.inputs), expected.base)
    assert fingerprint(unet) == before


def test_hooks_come_and_go_between_calls(expected: Expected, accelerator: torch.device) -> None:
    unet = tiny_unet(0)
    engine = Engine({"unet": unet})
    engine.activate(expected.stack)
    for i, scheme in enumerate(SCHEMES.values()):
        engine.set_multiplier(0, (1.0, 0.5)[i % 2])
        want = (expected.full, expected.half)[i % 2]
        with scheme(unet, accelerator):
            assert_same(call(unet, expected.inputs, accelerator), want)
        assert_same(call(unet, expected.inputs), want)
    engine.deactivate()
    assert_same(call(unet, expected.inputs), expected.base)


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
        assert_same(call(unet, expected.inputs), expected.full)
    unet.to(accelerator, dtype)
    if order == "hooks first":
        engine.activate(expected.stack)
    assert_same(call(unet, inputs, accelerator), low)
    # base weights were rounded once; adapters come from the file again, so they lost nothing
    assert_same(call(unet.float(), expected.inputs, accelerator), full)
    engine.deactivate()
    assert_same(call(unet.to(dtype), inputs, accelerator), base)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("assign", [True, False], ids=["assign", "to_empty"])
def test_through_meta_and_back(order: str, assign: bool, expected: Expected, accelerator: torch.device) -> None:
    unet = tiny_unet(0).to(accelerator)
    engine = Engine({"unet": unet})
    if order == "adapters first":
        engine.activate(expected.stack)
        assert_same(call(unet, expected.inputs, accelerator), expected.full)
    state = {name: tensor.clone() for name, tensor in unet.state_dict().items()}
    unet.to("meta")
    assert placed_on(unet) <= {None}
    if order == "hooks first":
        engine.activate(expected.stack)  # resolved by sizes alone
        assert placed_on(unet) == {None}
    if not assign:
        unet.to_empty(device=accelerator)
    unet.load_state_dict(state, assign=assign)
    assert_same(call(unet, expected.inputs, accelerator), expected.full)
    engine.set_multiplier(0, 0.5)
    assert_same(call(unet, expected.inputs, accelerator), expected.half)
    engine.deactivate()
    assert_same(call(unet, expected.inputs, accelerator), expected.base)


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
        assert_same(call(unet, cast.inputs, accelerator), cast.full)
        computed = {way._placed.dtype for way in ways(unet).values() if way._placed is not None}
        assert computed <= {torch.float32}
        assert unet.mid_block.attentions[0].proj_in.weight.dtype == torch.float8_e4m3fn
        engine.set_multiplier(0, 0.5)
        assert_same(call(unet, cast.inputs, accelerator), cast.half)
        engine.deactivate()
        assert_same(call(unet, cast.inputs, accelerator), cast.base)
    assert_same(call(unet, cast.inputs), cast.base)


def test_manual_cast_around_every_call(cast: Expected, accelerator: torch.device) -> None:
    unet = tiny_unet(0)
    engine = Engine({"unet": unet})
    engine.activate(cast.stack)
    cast_layerwise(unet)  # only to have the same layers in fp8 as the expected numbers have
    stored = {name: tensor.dtype for name, tensor in unet.named_parameters()}
    unet = tiny_unet(0).to(accelerator)
    for name, parameter in unet.named_parameters():
        parameter.data = parameter.data.to(stored[name])
    engine.components = {"unet": unet}
    engine.activate(cast.stack)
    for strength, want in ((1.0, cast.full), (0.5, cast.half), (1.0, cast.full)):
        engine.set_multiplier(0, strength)
        with manual_cast(torch.float32):
            assert_same(call(unet, cast.inputs, accelerator), want)
    engine.deactivate()
    with manual_cast(torch.float32):
        assert_same(call(unet, cast.inputs, accelerator), cast.base)


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
        assert_same(encoder(IDS.to(accelerator))[0].to(CPU), plain[0.0])
        engine.activate(expected.stack)
    for strength in (1.0, 0.5, 1.0):
        engine.set_multiplier(0, strength)
        assert_same(encoder(IDS.to(accelerator))[0].to(CPU), plain[strength])
        for _ in range(2):
            assert_same(call(unet, expected.inputs, accelerator), want[strength])
    engine.deactivate()
    assert_same(encoder(IDS.to(accelerator))[0].to(CPU), plain[0.0])
    assert_same(call(unet, expected.inputs, accelerator), expected.base)
    mode.stop()


def test_components_on_different_devices(expected: Expected, accelerator: torch.device) -> None:
    unet, encoder = tiny_unet(0).to(accelerator), tiny_text_encoder(0)
    base = encoder(IDS)[0]
    engine = Engine({"unet": unet, "text_encoder": encoder})
    engine.activate(Stack([Entry(expected.file, multiplier={"unet": 1.0, "text_encoder": 0.25})]))
    quarter = encoder(IDS)[0]
    assert not torch.equal(quarter, base)
    assert_same(call(unet, expected.inputs, accelerator), expected.full)
    engine.set_multiplier(0, {"unet": 0.5, "text_encoder": 0.25})
    assert_same(call(unet, expected.inputs, accelerator), expected.half)
    assert_same(encoder(IDS)[0], quarter)
    encoder.to(device(1))
    assert_same(encoder(IDS.to(device(1)))[0].to(CPU), quarter)
    engine.deactivate()
    assert_same(encoder(IDS.to(device(1)))[0].to(CPU), base)
    assert_same(call(unet, expected.inputs, accelerator), expected.base)


@pytest.mark.parametrize("order", ORDERS)
def test_one_component_over_two_devices(order: str, expected: Expected, accelerator: torch.device) -> None:
    unet = tiny_unet(0)
    engine = Engine({"unet": unet})
    if order == "adapters first":
        engine.activate(expected.stack)
    with dispatched(unet, accelerator, device(1)):
        if order == "hooks first":
            engine.activate(expected.stack)
        assert_same(call(unet, expected.inputs, accelerator), expected.full)
        assert placed_on(unet) == {accelerator, device(1)}
        for path, way in ways(unet).items():
            assert way.account.device == unet.get_submodule(path).weight.device
        engine.set_multiplier(0, 0.5)
        assert_same(call(unet, expected.inputs, accelerator), expected.half)
        engine.deactivate()
        assert_same(call(unet, expected.inputs, accelerator), expected.base)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mode", PIPELINE_MODES)
def test_whole_pipeline(
    mode: str, order: str, expected: Expected, pictures: tuple[Tensor, Tensor], accelerator: torch.device
) -> None:
    base, adapted = pictures
    assert (adapted - base).abs().max() > 0.05
    pipe = tiny_pipeline(0)
    engine = Engine({"unet": pipe.unet, "text_encoder": pipe.text_encoder})
    if order == "adapters first":
        engine.activate(expected.stack)
    PIPELINE_MODES[mode](pipe, accelerator)
    if order == "hooks first":
        assert_same(picture(pipe, accelerator), base)
        engine.activate(expected.stack)
    assert_same(picture(pipe, accelerator, engine), adapted)
    engine.deactivate()
    assert_same(picture(pipe, accelerator), base)
