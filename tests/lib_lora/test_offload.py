"""Adapters act the same, to the bit, wherever and however a host moves its model, and leave nothing behind.

Every scheme is run on the simulated accelerator with the hooks that users run, adapters loaded before them and after,
a strength changed in between, and everything taken off at the end. The expected numbers come from the same model on
the CPU with no hooks, and those are held against weights merged in fp64.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusionPipeline
from diffusers.hooks import apply_layerwise_casting
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack, install, uninstall
from lib_lora.factored import Factored
from lib_lora.patch import CLASSES, slot_of
from tests.fakes.accelerator import device, simulated
from tests.fakes.models import (
    WIDTH,
    dense_deltas,
    exact_arithmetic,
    kohya_lora,
    merged,
    tiny_pipeline,
    tiny_text_encoder,
    tiny_unet,
    unet_inputs,
)
from tests.fakes.schemes import (
    CPU,
    SCHEMES,
    STREAMING,
    Balanced,
    call,
    dispatched,
    manual_cast,
    sequential_offload,
)

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


def assert_same(got: Tensor, want: Tensor) -> None:
    """Compare bit for bit; a failure says by how much, without printing the tensors."""
    __tracebackhide__ = True
    assert got.dtype == want.dtype
    if not torch.equal(got, want):
        pytest.fail(f"differs by {(got - want).abs().max():.3g}, of {want.abs().max():.3g}")


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


class TestForwardCapturedEarly:
    """A hook keeps the forward it found; whichever that was, the adapters must be reached."""

    @pytest.fixture(autouse=True)
    def _installed_afterwards(self) -> Iterator[None]:
        uninstall()
        found = {cls: dict(vars(cls)) for cls in CLASSES}
        yield
        uninstall()
        left = {cls.__name__: set(vars(cls)) ^ set(attributes) for cls, attributes in found.items()}
        for cls, attributes in found.items():  # so that no other test pays for what is found wrong here
            for name in set(vars(cls)) - set(attributes):
                delattr(cls, name)
            cls.forward = attributes["forward"]
        install()
        assert not any(left.values()), left

    @pytest.mark.parametrize("scheme", CAPTURING)
    def test_before_the_class_patch(self, scheme: str, expected: Expected, accelerator: torch.device) -> None:
        unet = tiny_unet(0)
        with SCHEMES[scheme](unet, accelerator):
            assert_same(call(unet, expected.inputs, accelerator), expected.base)
            engine = Engine({"unet": unet})
            engine.activate(expected.stack)
            assert_same(call(unet, expected.inputs, accelerator), expected.full)
        assert_same(call(unet, expected.inputs), expected.full)
        engine.deactivate()
        assert_same(call(unet, expected.inputs), expected.base)

    @pytest.mark.parametrize("scheme", CAPTURING)
    def test_under_a_patch_that_was_undone(self, scheme: str, expected: Expected, accelerator: torch.device) -> None:
        install()
        unet = tiny_unet(0)
        with SCHEMES[scheme](unet, accelerator):
            assert_same(call(unet, expected.inputs, accelerator), expected.base)
            uninstall()  # a UI reload: the model stays, the extension comes again
            engine = Engine({"unet": unet})
            engine.activate(expected.stack)
            assert_same(call(unet, expected.inputs, accelerator), expected.full)
            engine.deactivate()
            assert_same(call(unet, expected.inputs, accelerator), expected.base)

    def test_under_a_patch_that_another_extension_put_back(
        self, expected: Expected, accelerator: torch.device, caplog: pytest.LogCaptureFixture
    ) -> None:
        theirs = {cls: cls.forward for cls in (nn.Linear, nn.Conv2d)}
        unet = tiny_unet(0)
        engine = Engine({"unet": unet})
        with sequential_offload(unet, accelerator):
            for cls, forward in theirs.items():
                cls.forward = forward
            engine.activate(expected.stack)
            assert_same(call(unet, expected.inputs, accelerator), expected.full)
        assert "patched again" in caplog.text
        engine.deactivate()
        assert_same(call(unet, expected.inputs), expected.base)

    def test_by_hooks_that_are_gone(self, expected: Expected, accelerator: torch.device) -> None:
        unet = tiny_unet(0)
        with sequential_offload(unet, accelerator):
            pass
        assert "forward" in unet.conv_in.__dict__  # accelerate leaves what it once found, on the layer itself
        engine = Engine({"unet": unet})
        engine.activate(expected.stack)
        assert_same(call(unet, expected.inputs), expected.full)
        engine.deactivate()
        assert_same(call(unet, expected.inputs), expected.base)

    def test_is_given_back_by_uninstall(self, accelerator: torch.device, expected: Expected) -> None:
        unet = tiny_unet(0)
        with sequential_offload(unet, accelerator):
            found = unet.conv_in._old_forward
            Engine({"unet": unet}).activate(expected.stack)
            assert unet.conv_in._old_forward != found
            uninstall()
            assert unet.conv_in._old_forward == found

    def test_is_not_given_back_to_hooks_that_are_gone(self, accelerator: torch.device, expected: Expected) -> None:
        unet = tiny_unet(0)
        with sequential_offload(unet, accelerator):
            Engine({"unet": unet}).activate(expected.stack)
        uninstall()
        assert not hasattr(unet.conv_in, "_old_forward")
        assert same_function(unet.conv_in.forward, nn.Conv2d.forward)

    def test_does_not_keep_the_model_alive(self, accelerator: torch.device, expected: Expected) -> None:
        unet = tiny_unet(0)
        engine = Engine({"unet": unet})
        uninstall()
        with sequential_offload(unet, accelerator):
            engine.activate(expected.stack)
            call(unet, expected.inputs, accelerator)
        layer = weakref.ref(unet.conv_in)
        del unet
        gc.collect()
        assert layer() is None


def same_function(bound: Callable[..., object], function: Callable[..., object]) -> bool:
    return getattr(bound, "__func__", None) is function


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
            assert way.device == unet.get_submodule(path).weight.device
        engine.set_multiplier(0, 0.5)
        assert_same(call(unet, expected.inputs, accelerator), expected.half)
        engine.deactivate()
        assert_same(call(unet, expected.inputs, accelerator), expected.base)


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


PIPELINE_MODES: dict[str, Callable[[StableDiffusionPipeline, torch.device], object]] = {
    "model": lambda pipe, where: pipe.enable_model_cpu_offload(device=where),
    "sequential": lambda pipe, where: pipe.enable_sequential_cpu_offload(device=where),
    "group": lambda pipe, where: pipe.enable_group_offload(onload_device=where, offload_type="leaf_level"),
}


def picture(pipe: StableDiffusionPipeline, where: torch.device, engine: Engine | None = None) -> Tensor:
    """Make two latents in three steps, the text encoded under the adapters; with an engine, halve in the middle."""

    def halve(_: object, step: int, __: object, state: dict[str, Tensor]) -> dict[str, Tensor]:
        if engine is not None and step == 1:
            engine.set_multiplier(0, 0.5)
        return state

    prompt = pipe.text_encoder(IDS.repeat(2, 1).to(where))[0]
    output = pipe(
        prompt_embeds=prompt,
        negative_prompt_embeds=torch.zeros_like(prompt),
        num_inference_steps=3,
        height=8,
        width=8,
        latents=torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1)),
        output_type="latent",
        callback_on_step_end=halve,
    )
    images: Tensor = output.images.to(CPU)
    return images


@pytest.fixture(scope="module")
def pictures(expected: Expected) -> tuple[Tensor, Tensor]:
    """Without adapters, and with them; on the CPU."""
    pipe = tiny_pipeline(0)
    engine = Engine({"unet": pipe.unet, "text_encoder": pipe.text_encoder})
    with exact_arithmetic():
        base = picture(pipe, CPU)
        engine.activate(expected.stack)
        return base, picture(pipe, CPU, engine)


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


def inventory(module: nn.Module) -> list[object]:
    """List all that a host can find."""
    lists = (module.state_dict(), dict(module.named_parameters()), dict(module.named_buffers()))
    tensors = [[(name, tensor.shape, tensor.dtype) for name, tensor in one.items()] for one in lists]
    return [*tensors, [(name, type(child)) for name, child in module.named_modules()]]


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


@pytest.mark.gpu
class TestCuda:
    """The same on hardware, streams included: the CPU's numbers within rounding, and no bit of the base changed."""

    BOUND = 1e-4  # relative; other kernels, the same precision

    @pytest.fixture(autouse=True)
    def _full_precision(self) -> Iterator[None]:
        with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
            yield

    @pytest.fixture
    def cuda(self) -> torch.device:
        return torch.device("cuda", 0)

    def near(self, got: Tensor, want: Tensor) -> bool:
        return bool((got - want).abs().max() <= self.BOUND * want.abs().max())

    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("scheme", [*SCHEMES, *STREAMING])
    def test_scheme(self, scheme: str, order: str, expected: Expected, cuda: torch.device) -> None:
        unet = tiny_unet(0)
        before = fingerprint(unet)
        engine = Engine({"unet": unet})
        base = call(tiny_unet(0).to(cuda), expected.inputs, cuda)
        with ExitStack() as hooks:
            if order == "adapters first":
                engine.activate(expected.stack)
            hooks.enter_context({**SCHEMES, **STREAMING}[scheme](unet, cuda))
            engine.activate(expected.stack)
            for _ in range(2):  # with streams, the first call only learns the order of the layers
                assert self.near(call(unet, expected.inputs, cuda), expected.full)
            engine.set_multiplier(0, 0.5)
            assert self.near(call(unet, expected.inputs, cuda), expected.half)
            engine.deactivate()
            assert_same(call(unet, expected.inputs, cuda), base)
        assert self.near(call(unet, expected.inputs), expected.base)
        assert fingerprint(unet) == before

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_dtype_of_the_model(self, dtype: torch.dtype, expected: Expected, cuda: torch.device) -> None:
        unet = tiny_unet(0).to(cuda, dtype)
        inputs = {
            name: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
            for name, value in expected.inputs.items()
        }
        base = call(unet, inputs, cuda)
        engine = Engine({"unet": unet})
        engine.activate(expected.stack)
        full = call(unet, inputs, cuda)
        assert (full.float() - expected.full).norm() < 0.05 * expected.full.norm()
        assert {way.device for way in ways(unet).values()} == {cuda}
        engine.deactivate()
        assert_same(call(unet, inputs, cuda), base)

    def test_layerwise_casting(self, cast: Expected, cuda: torch.device) -> None:
        unet = tiny_unet(0)
        engine = Engine({"unet": unet})
        engine.activate(cast.stack)
        cast_layerwise(unet)
        with SCHEMES["group-leaf"](unet, cuda):
            assert self.near(call(unet, cast.inputs, cuda), cast.full)
            engine.deactivate()
            assert self.near(call(unet, cast.inputs, cuda), cast.base)

    @pytest.mark.parametrize("mode", PIPELINE_MODES)
    def test_whole_pipeline(
        self, mode: str, expected: Expected, pictures: tuple[Tensor, Tensor], cuda: torch.device
    ) -> None:
        pipe = tiny_pipeline(0)
        engine = Engine({"unet": pipe.unet, "text_encoder": pipe.text_encoder})
        PIPELINE_MODES[mode](pipe, cuda)
        base = picture(pipe, cuda)
        assert (base - pictures[0]).abs().max() < 1e-3
        engine.activate(expected.stack)
        assert (picture(pipe, cuda, engine) - pictures[1]).abs().max() < 1e-3
        engine.deactivate()
        assert_same(picture(pipe, cuda), base)

    def test_memory_is_given_back(self, expected: Expected, cuda: torch.device) -> None:
        unet = tiny_unet(0)
        engine = Engine({"unet": unet})
        with sequential_offload(unet, cuda):
            call(unet, expected.inputs, cuda)
            before = torch.cuda.memory_allocated(cuda)
            engine.activate(expected.stack)
            for _ in range(3):
                call(unet, expected.inputs, cuda)
            rank_vectors = 1 << 16  # bytes; strengths stay on the device
            assert torch.cuda.memory_allocated(cuda) <= before + rank_vectors
