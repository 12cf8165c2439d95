"""Regions as values: rectangles, grids, fading edges, and any resolution."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lib_lora import Region, StackError

LEFT = Region.rectangle(0, 0, 0.5, 1)

shares = st.floats(0, 1, allow_nan=False)
grids = st.tuples(st.integers(1, 12), st.integers(1, 12)).flatmap(
    lambda size: st.binary(min_size=size[0] * size[1], max_size=size[0] * size[1]).map(
        lambda cells: Region(size[0], size[1], cells)
    )
)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (64, 64), (13, 7), (1, 2), (128, 96)])
def test_the_left_half_is_the_left_half_at_any_size(height, width):
    want = torch.zeros(height, width, dtype=torch.float64)
    want[:, : width // 2] = 1.0
    if width % 2:
        want[:, width // 2] = 0.5
    # a byte for each weight
    assert (LEFT.weights(height, width) - want).abs().max() <= 0.5 / 255 + 1e-12


@given(shares, shares, shares, shares)
def test_a_rectangle_covers_its_share(left, top, right, bottom):
    left, right = sorted((left, right))
    top, bottom = sorted((top, bottom))
    if left == right or top == bottom:
        with pytest.raises(StackError, match="a rectangle is"):
            Region.rectangle(left, top, right, bottom)
        return
    region = Region.rectangle(left, top, right, bottom)
    assert region.share == pytest.approx((right - left) * (bottom - top), abs=1 / 255)


@pytest.mark.parametrize("edges", [(0.5, 0, 0.2, 1), (0, 0, 1.1, 1), (-0.1, 0, 1, 1), (0, math.nan, 1, 1)])
def test_what_is_no_rectangle_is_an_error(edges):
    with pytest.raises(StackError, match="left, top, right and bottom"):
        Region.rectangle(*edges)


@given(grids, st.integers(1, 40), st.integers(1, 40))
def test_every_size_keeps_the_mean(region, height, width):
    weights = region.weights(height, width)
    assert weights.shape == (height, width)
    assert 0.0 <= weights.min() <= weights.max() <= 1.0 + 1e-12
    assert weights.mean().item() == pytest.approx(region.share, abs=1e-9)


def slow(region: Region, height: int, width: int) -> Tensor:
    """Return the mean over the area of each token, cell by cell."""
    found = torch.zeros(height, width, dtype=torch.float64)
    for y in range(height):
        for x in range(width):
            for row in range(region.height):
                for column in range(region.width):
                    tall = min((y + 1) / height, (row + 1) / region.height) - max(y / height, row / region.height)
                    wide = min((x + 1) / width, (column + 1) / region.width) - max(x / width, column / region.width)
                    if tall > 0 and wide > 0:
                        cell = region.cells[row * region.width + column] / 255
                        found[y, x] += cell * tall * wide * height * width
    return found


@given(grids, st.integers(1, 9), st.integers(1, 9))
def test_each_place_is_the_mean_over_its_area(region, height, width):
    assert (region.weights(height, width) - slow(region, height, width)).abs().max() < 1e-12


@pytest.mark.parametrize("width", [0.05, 0.1, 0.25, 0.5])
def test_a_feathered_edge_is_a_ramp_of_that_width(width):
    row = LEFT.feathered(width).weights(64, 64)[10]
    place = (torch.arange(64, dtype=torch.float64) + 0.5) / 64
    ramp = (0.5 - (place - 0.5) / width).clamp(0, 1)
    assert (row - ramp).abs().max() < 0.5 / (64 * width) + 2 / 255
    assert (row[0], row[-1]) == (1.0, 0.0), "at the picture's own edge nothing fades"
    assert torch.equal(row, LEFT.feathered(width).weights(64, 64)[63]), "nor does it there"


def test_no_feather_is_the_same():
    assert LEFT.feathered(0) == LEFT
    with pytest.raises(StackError, match="0 to 1 of the picture"):
        LEFT.feathered(1.5)


@given(grids, grids)
def test_a_union_has_both_and_no_more(first, second):
    height, width = max(first.height, second.height), max(first.width, second.width)
    both = (first | second).weights(height, width)
    want = torch.maximum(first.weights(height, width), second.weights(height, width))
    assert (both - want).abs().max() <= 0.5 / 255 + 1e-12


@given(grids)
def test_inverted_twice_is_the_same(region):
    assert region.inverted().inverted() == region
    assert region.inverted().share == pytest.approx(1 - region.share)


@pytest.mark.parametrize(("width", "height", "cells"), [(2, 2, b"abc"), (0, 1, b""), (2000, 1, b"a" * 2000)])
def test_a_grid_that_is_none_is_an_error(width, height, cells):
    with pytest.raises(StackError, match="a region of"):
        Region(width, height, cells)
