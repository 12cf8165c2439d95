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


@pytest.mark.parametrize(
    ("prompt", "steps", "said"),
    [
        ("<lora:a:1:start=35>", 20, "acts in no step: it begins after step 35, and the picture has 20 steps"),
        ("<lora:a:1:30-40>", 20, "acts in no step: it begins after step 30, and the picture has 20 steps"),
        ("<lora:a:1:start=20>", 20, "acts in no step: it begins after step 20, and the picture has 20 steps"),
        ("<lora:a:1:start=2>", 1, "acts in no step: it begins after step 2, and the picture has 1 step"),
        ("<lora:a:1:start=25:stop=0.9>", 20, "acts in no step: it begins after step 25, and the picture has 20 steps"),
        ("[cat:<lora:a:1>:35]", 20, "acts in no step: it begins after step 35, and the picture has 20 steps"),
        ("[[<lora:a:1>:5]:35]", 20, "acts in no step: it begins after step 35, and the picture has 20 steps"),
        ("[<lora:a:1>::35]", 20, "acts until the end: it is to stop at step 35, and the picture has 20 steps"),
        ("[<lora:a:1>:cat:35]", 20, "acts until the end: it is to stop at step 35, and the picture has 20 steps"),
        ("<lora:a:1:stop=35>", 20, "acts until the end: it is to stop at step 35, and the picture has 20 steps"),
        ("<lora:a:0@0,0.8@40>", 20, "has a schedule up to step 40, and the picture has 20 steps"),
        ("<lora:a:1:in=0@0,0.8@40>", 20, "has a schedule up to step 40, and the picture has 20 steps"),
        ("<lora:a:1:start=35>", 40, ""),
        ("<lora:a:1:start=19:stop=20>", 20, ""),
        ("<lora:a:1:step=0.5-0.9>", 20, ""),
        ("<lora:a:1:start=1>", 1, ""),
        ("<lora:a:1:start=40:stop=30>", 20, ""),
        ("<lora:a:0@0,1@1>", 1, ""),
        ("<lora:a:0@0,0.8@40:by=sigma>", 20, ""),
        ("<lora:a:1:start=35:pass=hires>", 20, ""),
        ("[<lora:a:1>:0.99]", 20, ""),
        ("[<lora:a:1>|<lora:b:1>]", 1, ""),
    ],
)
def test_a_schedule_beyond_the_last_step_is_said(prompt: str, steps: int, said: str) -> None:
    assert parse(prompt, on=True).tags[0].unreached(steps) == said


@given(st.integers(0, 30), st.integers(1, 30))
def test_what_is_said_to_act_in_no_step_does_so(start: int, steps: int) -> None:
    tag = parse(f"<lora:a:1:start={start}>").tags[0]
    window = window_by_host(tag.during)
    assert tag.unreached(steps).startswith("acts in no step") != any(
        window.holds(Moment(step, steps)) for step in range(steps)
    )
