"""The server's half of the cases of regions; regions.test.js is the browser's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from extension.text.regions import NAMED, RegionTextError, checked_name, read_mask
from lib_lora import Region

CASES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "regions.json").read_text("utf-8"))
NEAR = 0.0001  # the cases have four decimals


def test_the_regions_that_come_along_are_these() -> None:
    assert {name: Region.rectangle(*edges) for name, edges in CASES["named"].items()} == NAMED


@pytest.mark.parametrize(("mask", "feather", "share", "cells"), CASES["weights"])
def test_a_text_stands_for_weights(mask: str, feather: float, share: float, cells: list[list[float]]) -> None:
    region = read_mask(mask, feather, {}).region
    assert region is not None
    weights = region.weights(64, 64)
    assert region.share == pytest.approx(share, abs=NEAR)
    assert [float(weights[y, x]) for x, y, _ in cells] == pytest.approx([weight for *_, weight in cells], abs=NEAR)


@pytest.mark.parametrize("mask", CASES["refused"])
def test_a_text_that_stands_for_nothing_is_refused(mask: str) -> None:
    with pytest.raises(RegionTextError):
        read_mask(mask, 0, {})


def test_a_name_is_kept_or_refused() -> None:
    assert [checked_name(name) for name in CASES["names"]] == CASES["names"]
    for name in CASES["refused_names"]:
        with pytest.raises(RegionTextError):
            checked_name(name)
