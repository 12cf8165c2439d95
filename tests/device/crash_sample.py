"""Tests of which one ends its process; `test_isolation.py` runs them."""

from __future__ import annotations

import os

import pytest
import torch

pytestmark = pytest.mark.device


def test_before(device: torch.device) -> None:
    assert (torch.ones(2, device=device) + 1).sum().item() == 4


def test_of_a_driver_that_crashes(device: torch.device) -> None:
    os.abort()


def test_after(device: torch.device) -> None:
    assert "cpu" not in str(torch.ones(2, device=device).device)
    pytest.skip("a reason")
