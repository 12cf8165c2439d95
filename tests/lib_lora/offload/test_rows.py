"""Rows with LoRA of their own on a device: wherever the adapters are, the same bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lib_lora import Engine, Entry, PerImage, Stack
from tests.fakes.models import tiny_unet, unet_inputs
from tests.fakes.offloading import Expected
from tests.fakes.schemes import CPU, call

OWN = PerImage((1.0, 0.0, -0.5))


def mixed(expected: Expected, where: torch.device, **options: object) -> tuple[Tensor, int]:
    """Three images on a device, after a change of strengths and of the order of rows; and how many layers streamed."""
    unet, inputs = tiny_unet(0).to(where), unet_inputs(0, batch=3)
    engine = Engine({"unet": unet}, **options)
    engine.activate(Stack([Entry(expected.file, PerImage((0.1, 0.2, 0.3)))]))
    call(unet, inputs, where)
    engine.set_rows(lambda rows: [2, 0, 1])
    call(unet, inputs, where)
    engine.set_multiplier(0, OWN)
    engine.set_rows(None)
    outputs = [call(unet, inputs, where) for _ in range(2)]
    assert torch.equal(*outputs)
    streaming = engine.memory().streaming
    engine.close()
    unet.to(CPU)
    return outputs[0], streaming


@pytest.mark.parametrize("storage", ["file", "float8"])
@pytest.mark.parametrize("budget", [None, 40_000, 0])
def test_on_a_device_with_any_budget(
    expected: Expected, accelerator: torch.device, storage: str, budget: int | None
) -> None:
    want, _ = mixed(expected, CPU, storage=storage)
    got, streaming = mixed(expected, accelerator, storage=storage, device_budget=budget)
    assert torch.equal(got, want)
    assert (streaming > 0) == (budget is not None)
