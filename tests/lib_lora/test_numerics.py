"""A whole UNet and text encoder with adapters against the same model merged in fp64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lib_lora import Engine, Entry, Stack
from lib_lora.adapters.base import Factors
from lib_lora.execution.low_rank_products import USUAL, spread
from tests.fakes.files import pair, save
from tests.fakes.layers import Model
from tests.fakes.models import dense_deltas, kohya_lora, merged, tiny_text_encoder, tiny_unet, unet_inputs

BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5}
STRENGTHS = (0.8, -0.4)


def cast(inputs, dtype):
    return {k: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in inputs.items()}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loras")
    modules = {"unet": tiny_unet(0), "text_encoder": tiny_text_encoder(0)}
    return [
        kohya_lora(folder / "linear.safetensors", modules, rank=4, seed=1),
        kohya_lora(folder / "conv.safetensors", modules, rank=8, seed=2, conv=True),
    ]


def references(files):
    """Return the unet and the text encoder with both files merged in fp64."""
    modules = {"unet": tiny_unet(0), "text_encoder": tiny_text_encoder(0)}
    for path, strength in zip(files, STRENGTHS, strict=True):
        deltas = dense_deltas(path, modules)
        modules = {name: merged(module, deltas[name], strength) for name, module in modules.items()}
    return modules


def error(got, want):
    """Root mean square error relative to the reference's."""
    return float((got.double() - want).square().mean().sqrt() / want.square().mean().sqrt())


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_full_precision(files, dtype):
    pytest.importorskip("transformers", "5")  # earlier ones cannot make the mask of attention in fp64
    unet, text, inputs = tiny_unet(0).to(dtype), tiny_text_encoder(0).to(dtype), unet_inputs(3)
    ids = torch.arange(8)[None]
    plain = unet(**cast(inputs, dtype))[0]
    engine = Engine({"unet": unet, "text_encoder": text})
    engine.activate(Stack(map(Entry, files, STRENGTHS)))
    want = references(files)
    wanted = want["unet"](**cast(inputs, torch.float64))[0]
    assert error(unet(**cast(inputs, dtype))[0], wanted) < BOUNDS[dtype]
    assert error(text(ids).last_hidden_state, want["text_encoder"](ids).last_hidden_state) < BOUNDS[dtype]
    assert error(plain, wanted) > 0.01, "the adapters must show"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_no_worse_than_twice_a_careful_bake(files, dtype):
    """The bake is made in fp32 from the same half-precision weights and rounded once."""
    unet, inputs = tiny_unet(0).to(dtype), unet_inputs(3)
    exact = copy.deepcopy(unet)
    for path, strength in zip(files, STRENGTHS, strict=True):
        exact = merged(exact, dense_deltas(path, {"unet": unet})["unet"], strength)
    baked = copy.deepcopy(exact).to(torch.float32).to(dtype)
    engine = Engine({"unet": unet})
    engine.activate(Stack(map(Entry, files, STRENGTHS)))
    wanted = exact(**cast(inputs, torch.float64))[0]
    inputs = cast(inputs, dtype)
    assert error(unet(**inputs)[0], wanted) <= 2 * error(baked(**inputs)[0], wanted)


LAYERS = {
    "linear": (lambda: nn.Linear(64, 64), (64, 64), (8, 64)),
    "convolution": (lambda: nn.Conv2d(32, 32, 3), (32, 32, 3, 3), (2, 32, 6, 6)),
}


@pytest.mark.parametrize(("large", "small"), [("down", "up"), ("up", "down")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_large_and_a_small_factor_stay_finite_in_fp16(tmp_path, kind, dora, dtype, large, small):
    """Baking multiplies the pair first, in fp32, and is finite."""
    build, shape, size = LAYERS[kind]
    tensors = pair("lora_unet_layer", shape, 4, size=1.0)
    factor = 8000 if dtype is torch.float16 else 8e6  # which float16 does not hold
    tensors[f"lora_unet_layer.lora_{large}.weight"] *= factor
    tensors[f"lora_unet_layer.lora_{small}.weight"] /= 10 * factor
    if dora:
        tensors["lora_unet_layer.dora_scale"] = torch.rand(shape[0], *(1,) * (len(shape) - 1)) + 0.5
    path = save(tmp_path / "a.safetensors", {key: one.to(dtype) for key, one in tensors.items()})
    model, x = Model(build()).half().requires_grad_(False), torch.randn(size).half()
    engine = Engine({"unet": model})
    engine.activate(Stack([Entry(path)], mode="merged"))
    baked = model(x)
    if not baked.isfinite().all():
        pytest.fail("baking must be finite")
    engine.activate(Stack([Entry(path)]))
    assert error(model(x), baked.double()) < 2e-2


def test_only_components_with_large_entries_are_spread_for_fp16():
    factors = Factors(torch.randn(3, 8) * 0.1, torch.randn(6, 3) * 0.1)
    factors.down[1] *= 1e6
    moved = spread(factors, USUAL)
    assert float(moved.down.abs().max()) < 1e3
    assert torch.equal(moved.up @ moved.down, factors.up @ factors.down)
    for i in (0, 2):
        assert torch.equal(moved.down[i], factors.down[i])
        assert torch.equal(moved.up[:, i], factors.up[:, i])
