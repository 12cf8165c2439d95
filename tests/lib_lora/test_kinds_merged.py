"""Every adapter kind on every layer in every dtype, merged into the weight."""

from __future__ import annotations

import pytest

from tests.fakes.contract import BOUNDS, CASES, check_output

pytestmark = pytest.mark.design("contract of kinds", way="merged")


@pytest.mark.parametrize(("sample", "layer"), CASES)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_output_is_that_of_the_weight_it_defines(tmp_path, sample, layer, dtype):
    check_output(tmp_path, sample, layer, dtype, mode="merged")
