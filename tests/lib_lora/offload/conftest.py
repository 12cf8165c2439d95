"""Fixtures of the offload tests: the simulated accelerator, and what the un-offloaded model gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lib_lora import Engine, Entry, Stack
from tests.fakes.accelerator import device, simulated
from tests.fakes.models import (
    exact_arithmetic,
    kohya_lora,
    tiny_pipeline,
    tiny_text_encoder,
    tiny_unet,
    unet_inputs,
)
from tests.fakes.offloading import (
    Expected,
    cast_layerwise,
    picture,
)
from tests.fakes.schemes import (
    CPU,
    call,
)


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


@pytest.fixture(scope="module")
def cast(expected: Expected) -> Expected:
    """Return the same numbers, from the CPU, for a model stored in fp8."""
    unet = tiny_unet(0)
    cast_layerwise(unet)
    engine = Engine({"unet": unet})
    with exact_arithmetic():
        base = call(unet, expected.inputs)
        engine.activate(expected.stack)
        full = call(unet, expected.inputs)
        engine.set_multiplier(0, 0.5)
        return Expected(expected.file, expected.inputs, base, full, call(unet, expected.inputs))


@pytest.fixture(scope="module")
def pictures(expected: Expected) -> tuple[Tensor, Tensor]:
    """Without adapters, and with them; on the CPU."""
    pipe = tiny_pipeline(0)
    engine = Engine({"unet": pipe.unet, "text_encoder": pipe.text_encoder})
    with exact_arithmetic():
        base = picture(pipe, CPU)
        engine.activate(expected.stack)
        return base, picture(pipe, CPU, engine)
