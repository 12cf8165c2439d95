"""The demo's pictures on a device, in each way that diffusers and accelerate move its model.

Every picture is one step at a small size, in latents: with a LoRA of the demo whose strength was changed, and without.
The pictures of a pipeline that was moved with `to` are near the CPU's, and the others have their bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from diffusers.hooks import apply_layerwise_casting
from torch import Tensor

from extension.standalone.demo import find_demo
from lib_lora import Engine, Entry, Stack
from tests.device.conftest import needs_float8
from tests.fakes.demo import demo_pipeline
from tests.fakes.offloading import assert_same, fingerprint
from tests.fakes.schemes import dispatched

pytestmark = pytest.mark.device

PROMPT = "two red circles on a blue ground"
BOUND = 1e-4
"""Of the largest value, between a device and the CPU."""


@contextmanager
def over(pipe: Any, device: torch.device) -> Iterator[None]:
    """accelerate's device map of the UNet, with the CPU and a disk; the other components lie on the device."""
    pipe.to(device)
    with dispatched(pipe.unet.to("cpu"), device, "cpu", "disk"):
        yield


def group(pipe: Any, device: torch.device, level: str) -> None:
    blocks = {"num_blocks_per_group": 1} if level == "block_level" else {}
    pipe.enable_group_offload(onload_device=device, offload_type=level, **blocks)


WAYS: dict[str, Callable[[Any, torch.device], object]] = {
    "model": lambda pipe, device: pipe.enable_model_cpu_offload(device=device),
    "sequential": lambda pipe, device: pipe.enable_sequential_cpu_offload(device=device),
    "group, leaf": partial(group, level="leaf_level"),
    "group, block": partial(group, level="block_level"),
    "map with the CPU and a disk": over,
}


def picture(pipe: Any) -> Tensor:
    latents = pipe(
        PROMPT,
        num_inference_steps=1,
        height=32,
        width=32,
        guidance_scale=1.0,
        generator=torch.Generator().manual_seed(1),
        output_type="latent",
    ).images
    found: Tensor = latents.cpu()
    return found


def pictures(pipe: Any, engine: Engine) -> list[Tensor]:
    """Make a picture at another strength than at first, and one when the LoRA is taken off."""
    engine.activate(Stack([Entry(find_demo().loras / "stripes.safetensors", 0.1)]))
    engine.set_multiplier(0, 1.1)
    made = picture(pipe)
    engine.deactivate()
    return [made, picture(pipe)]


def engine_of(pipe: Any) -> Engine:
    return Engine({"unet": pipe.unet, "text_encoder": pipe.text_encoder})


@pytest.fixture(scope="module")
def expected(device: torch.device) -> list[Tensor]:
    """Return the pictures of a pipeline that lies on the device, which are near those of the CPU."""
    with torch.no_grad():
        pipe = demo_pipeline()
        wanted = pictures(pipe, engine_of(pipe))
        pipe.to(device)
        base = picture(pipe)
        found = pictures(pipe, engine_of(pipe))
    for got, want in zip(found, wanted, strict=True):
        assert (got - want).abs().max() < BOUND * want.abs().max()
    more, none = found
    assert_same(none, base)
    assert (more - base).norm() > 0.005 * base.norm()
    return found


@pytest.mark.parametrize("way", WAYS)
def test_a_way_changes_no_bit(way: str, expected: list[Tensor], device: torch.device) -> None:
    pipe = demo_pipeline()
    before, engine = fingerprint(pipe.unet), engine_of(pipe)
    with ExitStack() as stack:
        entered = WAYS[way](pipe, device)
        if isinstance(entered, AbstractContextManager):
            stack.enter_context(entered)
        for got, want in zip(pictures(pipe, engine), expected, strict=True):
            assert_same(got, want)
    if not way.startswith("group"):  # its hooks put the weights back when they are next called
        pipe.remove_all_hooks()
        assert fingerprint(pipe.unet) == before


@pytest.mark.filterwarnings("ignore:torchvulkan .* Falling back to CPU for copy")
def test_layerwise_casting(device: torch.device) -> None:
    needs_float8(device)
    pipe, other = demo_pipeline(), demo_pipeline()
    for one in (pipe, other):
        apply_layerwise_casting(one.unet, torch.float8_e4m3fn, torch.float32)
    wanted = pictures(other, engine_of(other))
    pipe.to(device)
    base = picture(pipe)
    found = pictures(pipe, engine_of(pipe))
    for got, want in zip(found, wanted, strict=True):
        assert (got - want).abs().max() < BOUND * want.abs().max()
    assert_same(found[-1], base)
