"""Merged tensors equal PEFT's, of equal tensors and an equal seed."""

from __future__ import annotations

import itertools

import pytest
import torch
from peft.utils import merge_utils

from lib_lora.saving.merging import RULES, merge_tensors, orthogonal_factors

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


@pytest.mark.parametrize("rule", RULES)
def test_equals_peft(rule: str) -> None:
    for density, dtype in itertools.product((0.05, 0.5, 0.93), (torch.float32, torch.float64)):
        tensors = _tensors(dtype)
        before = torch.random.get_rng_state()
        merged = merge_tensors(tensors, STRENGTHS, rule, density, torch.Generator().manual_seed(7))
        assert torch.equal(before, torch.random.get_rng_state()), (density, dtype)
        assert torch.equal(merged, _of_peft(tensors, rule, density)), (density, dtype)


def test_what_changes_share_is_taken_out() -> None:
    changes = torch.stack(_tensors(torch.float64)).flatten(1)
    changes[1] += 0.7 * changes[0]
    changes[2] = 3 * changes[0] - changes[1]
    taken = [changes[0]]
    taken.append(changes[1] - (changes[1] @ changes[0]) / (changes[0] @ changes[0]) * changes[0])
    for count in (1, 2, 3):  # of the third, nothing is left
        gram = changes[:count] @ changes[:count].T
        found = torch.tensor(orthogonal_factors(gram), dtype=torch.float64) @ changes[:count]
        torch.testing.assert_close(found, torch.stack(taken[:count]).sum(0), rtol=0, atol=1e-12)


def test_a_change_of_zeros_shares_nothing() -> None:
    assert orthogonal_factors(torch.diag(torch.tensor([0.0, 2.0], dtype=torch.float64))) == [1.0, 1.0]
