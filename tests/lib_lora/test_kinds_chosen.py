"""Every adapter kind on every layer in every dtype, computed as the engine chooses."""

from __future__ import annotations

import pytest

from tests.fakes.contract import BOUNDS, CASES, check_output

pytestmark = pytest.mark.design("contract of kinds", way="chosen")


@pytest.mark.parametrize(("sample", "layer"), CASES)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_output_is_that_of_the_weight_it_defines(tmp_path, sample, layer, dtype):
    check_output(tmp_path, sample, layer, dtype)
