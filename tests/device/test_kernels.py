"""A kernel of our own on the devices that it is for."""

from __future__ import annotations

import logging

import pytest
import torch

from lib_lora.tuning.kernels import Chooser
from tests.lib_lora.test_kernels import exact, numbers

pytestmark = pytest.mark.device


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [77, 4096])
def test_a_gpu_chooses_by_its_own_clock(
    dtype: torch.dtype, rows: int, device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    if device.type != "cuda":
        pytest.skip("Triton's kernels are for CUDA")
    y, x, down, up, strength = numbers(rows, 640, 1280, 32, 1, dtype, device)
    want = exact(y, x, down, up, strength)
    with caplog.at_level(logging.WARNING):
        added = Chooser().add_pair_(y, x, down, up, strength[0])
    assert not caplog.text
    if added:
        assert (y.double() - want).abs().max() < 2 * torch.finfo(dtype).eps * want.abs().max()
