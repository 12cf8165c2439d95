"""Steps in tags: what a schedule is at a step, as the extensions that had them first count."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extension.text.prompt import parse
from extension.text.steps import TagCurve, window_by_host
from lib_lora import Moment, Strength, Window

POINTS = st.lists(st.tuples(st.floats(0, 1), st.floats(-3, 3)), min_size=1, max_size=6, unique_by=lambda one: one[0])


def counter(step: int) -> int:
    """Return `state.sampling_step` of AUTOMATIC1111's web UI during a step: the web UI writes it at the end of one."""
    return max(step - 1, 0)


@given(POINTS, st.integers(3, 60), st.booleans())
def test_a_line_is_what_loractl_makes_of_it(points: list[tuple[float, float]], steps: int, whole: bool) -> None:
    """By its formula: `np.interp` over the counter, or over its share of the steps less two."""
    if whole:
        points = [(round(place * 40) + 2.0, value) for place, value in points]
        points = list({place: (place, value) for place, value in points}.values())
    curve = TagCurve(tuple(points))
    places, values = zip(*sorted(points), strict=True)
    for step in range(steps):
        at = counter(step) if whole else counter(step) / (steps - 2)
        assert math.isclose(curve.at(Moment(step, steps)), np.interp(at, places, values), abs_tol=1e-9)


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 12))
def test_its_callback_says_the_same(start: int, stop: int, steps: int) -> None:
    """It sets the multiplier in its callback before each call: to 0 in the first, and at `counter > place - 2`."""
    window = window_by_host(Window(start=start, stop=stop))
    begun, ended, found = False, False, []
    for step in range(steps):
        begun, ended = begun or counter(step) > start - 2, ended or counter(step) > stop - 2
        found.append(begun and not ended)
    assert found == [window.holds(Moment(step, steps)) for step in range(steps)]


@pytest.mark.parametrize(
    ("written", "want"),
    [
        ("1:start=1", [1, 1, 1, 1]),
        ("1:stop=1", [0, 0, 0, 0]),
        ("1:step=1-2", [1, 1, 0, 0]),
        ("1:start=2", [0, 0, 1, 1]),
        ("0@0,1@1", [0, 0, 0.5, 1]),
        ("0@1,1@2", [0, 0, 0, 1]),
        ("0@0,1@1:start=1", [0, 0, 0.5, 1]),
    ],
)
def test_a_tag_keeps_the_meaning_that_it_had(written: str, want: list[float]) -> None:
    (tag,) = parse(f"<lora:a:{written}>").tags
    strength = tag.multiplier
    assert isinstance(strength, Strength)
    assert [strength.at("unet", "mid", Moment(step, 4)) for step in range(4)] == want
