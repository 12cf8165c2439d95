"""Scenarios that users reported of offloaded models, by their numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack
from tests.fakes.accelerator import OutOfMemoryError, short_of_memory
from tests.fakes.models import kohya_lora, tiny_unet
from tests.fakes.offloading import Expected, assert_same, fingerprint
from tests.fakes.schemes import SCHEMES, call


def generate(engine: Engine, stack: Stack, unet: nn.Module, expected: Expected, where: torch.device) -> Tensor:
    engine.activate(stack)
    return call(unet, expected.inputs, where)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_t6_ten_generations_each_with_another_strength_or_lora_then_out_of_memory(
    scheme: str, expected: Expected, accelerator: torch.device, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No device or meta error, and every result is that of the model that is not offloaded."""
    plain = tiny_unet(0)
    other = kohya_lora(tmp_path_factory.mktemp("t6") / "other.safetensors", {"unet": plain}, seed=9)
    stacks = [
        Stack([Entry(file, strength)]) for strength in (1.0, 1.1, 0.2, -0.5, 1.0) for file in (expected.file, other)
    ]
    reference = Engine({"unet": plain})
    unet = tiny_unet(0)
    before = fingerprint(unet)
    engine = Engine({"unet": unet})
    with SCHEMES[scheme](unet, accelerator):
        for stack in stacks:
            reference.activate(stack)
            got = generate(engine, stack, unet, expected, accelerator)
            assert_same(got, call(plain, expected.inputs))
        with short_of_memory(*range(1, 400)), pytest.raises(OutOfMemoryError):
            generate(engine, Stack([Entry(other, 0.7), Entry(expected.file, 0.3)]), unet, expected, accelerator)
        engine.activate(stacks[0])
        reference.activate(stacks[0])
        assert_same(call(unet, expected.inputs, accelerator), call(plain, expected.inputs))
        engine.deactivate()
        assert_same(call(unet, expected.inputs, accelerator), expected.base)
    assert fingerprint(unet) == before
