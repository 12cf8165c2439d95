"""Merged tensors equal PEFT's, of equal tensors and an equal seed."""

from __future__ import annotations

import pytest
import torch
from peft.utils import merge_utils

from lib_lora.saving.merging import RULES, merge_tensors, without_shared

STRENGTHS = [0.8, -0.5, 1.3]


def _tensors(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(24, 18, generator=generator, dtype=dtype) for _ in STRENGTHS]


def _of_peft(tensors: list[torch.Tensor], rule: str, density: float) -> torch.Tensor:
    strengths = torch.tensor(STRENGTHS, dtype=tensors[0].dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        if rule == "linear":
            merged: torch.Tensor = merge_utils.task_arithmetic(tensors, strengths)
        else:
            merged = getattr(merge_utils, rule)(tensors, strengths, density)
        return merged


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("density", [0.05, 0.5, 0.93])
@pytest.mark.parametrize("rule", RULES)
def test_equals_peft(rule: str, density: float, dtype: torch.dtype) -> None:
    tensors = _tensors(dtype)
    before = torch.random.get_rng_state()
    merged = merge_tensors(tensors, STRENGTHS, rule, density, torch.Generator().manual_seed(7))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(merged, _of_peft(tensors, rule, density))


@pytest.mark.parametrize(
    ("rule", "density", "count", "words"),
    [
        ("mean", 0.5, 3, "no rule"),
        ("ties", 0.0, 3, "density"),
        ("ties", float("nan"), 3, "density"),
        ("ties", 0.5, 2, "one for each"),
    ],
)
def test_wrong_wishes_are_said(rule: str, density: float, count: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        merge_tensors(_tensors(torch.float64), STRENGTHS[:count], rule, density, torch.Generator())


def test_what_two_share_is_taken_out() -> None:
    first, second, _ = _tensors(torch.float64)
    rest = without_shared(first + 0.7 * second, second)
    assert abs(float((rest * second).sum())) <= 1e-12 * float(second.square().sum())
    torch.testing.assert_close(rest, without_shared(first, second), rtol=0, atol=1e-13)
    assert torch.equal(without_shared(first, torch.zeros_like(first)), first)
