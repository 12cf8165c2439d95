"""Every adapter kind on every layer in every dtype, added to the weight for one call."""

from __future__ import annotations

import pytest

from lib_lora import plan
from lib_lora.execution.dense import DenseExecutor
from tests.fakes.contract import BOUNDS, CASES, check_output

pytestmark = pytest.mark.design("contract of kinds", way="dense")


@pytest.mark.parametrize(("sample", "layer"), CASES)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_output_is_that_of_the_weight_it_defines(tmp_path, sample, layer, dtype, monkeypatch):
    monkeypatch.setattr(
        plan, "live_executor", lambda layer, bindings, strengths, **_: DenseExecutor(bindings, strengths)
    )
    check_output(tmp_path, sample, layer, dtype)
