"""Every adapter kind on every layer, in every dtype and every way: the output is that of the weight it defines."""

from __future__ import annotations

import pytest

from lib_lora import plan
from lib_lora.execution.dense import DenseExecutor
from tests.covering import some_of
from tests.fakes.contract import BOUNDS, CASES, check_output

WAYS = ("as the engine chooses", "added to the weight for one call", "merged")


@pytest.mark.quick
@some_of(("sample", "layer", "dtype", "way"), CASES, BOUNDS, WAYS)
def test_output_is_that_of_the_weight_it_defines(tmp_path, sample, layer, dtype, way, monkeypatch):
    if way == "added to the weight for one call":
        monkeypatch.setattr(
            plan, "live_executor", lambda layer, bindings, strengths, **_: DenseExecutor(bindings, strengths)
        )
    check_output(tmp_path, sample, layer, dtype, mode="merged" if way == "merged" else "live")
