"""Curves and windows: what they are at a step, from 0."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_lora import Curve, Moment, MomentError, StackError, Window
from lib_lora.naming.architectures.base import sigma_of

POINTS = st.lists(st.tuples(st.floats(0, 1), st.floats(-3, 3)), min_size=1, max_size=6, unique_by=lambda one: one[0])


@given(POINTS, st.integers(2, 60), st.booleans())
def test_a_line_is_interpolated_over_the_steps(points: list[tuple[float, float]], steps: int, whole: bool) -> None:
    if whole:
        points = [(round(place * 40) + 2.0, value) for place, value in points]
        points = list({place: (place, value) for place, value in points}.values())
    curve = Curve(tuple(points))
    places, values = zip(*sorted(points), strict=True)
    for step in range(steps):
        at = step if whole else step / (steps - 1)
        assert math.isclose(curve.at(Moment(step, steps)), np.interp(at, places, values), abs_tol=1e-9)


@pytest.mark.parametrize(("steps", "want"), [(1, [1.0]), (2, [1.0, 0.0])])
def test_short_passes_go_from_end_to_end(steps: int, want: list[float]) -> None:
    curve = Curve(((0, 1), (1, 0)))
    assert [curve.at(Moment(step, steps)) for step in range(steps)] == want


@pytest.mark.parametrize(
    ("shape", "want"),
    [("linear", [0, 0.5, 1, 1.5, 2]), ("step", [0, 0, 0, 0, 2]), ("cosine", [0, 0.292893, 1, 1.707107, 2])],
)
def test_shapes(shape, want) -> None:
    curve = Curve(((0, 0), (4, 2)), shape=shape)
    assert [round(curve.value(place), 6) for place in range(5)] == pytest.approx(want, abs=1e-6)
    assert (curve.value(-1), curve.value(9)) == (0, 2)


def test_a_jump_is_two_points_at_one_place() -> None:
    curve = Curve(((0, 0.0), (0.5, 0.0), (0.5, 1.0), (1, 1.0)))
    assert [curve.value(place) for place in (0.0, 0.49, 0.5, 0.9)] == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("window", "acting"),
    [
        (Window(), range(8)),
        (Window(stop=2), [0, 1]),
        (Window(start=1, stop=2), [1]),
        (Window(start=1), range(1, 8)),
        (Window(start=2), range(2, 8)),
        (Window(start=2, stop=5), [2, 3, 4]),
        (Window(stop=1), [0]),
        (Window(stop=0), []),
        (Window(start=0), range(8)),
        (Window(start=0.5), range(4, 8)),
        (Window(stop=0.25), [0, 1]),
        (Window(start=9), []),
    ],
)
def test_windows_of_steps(window: Window, acting) -> None:
    assert [step for step in range(8) if window.holds(Moment(step, 8))] == list(acting)


def test_windows_and_curves_of_noise() -> None:
    window = Window(high=10.0, low=1.0)
    assert [window.holds(Moment(sigma=sigma)) for sigma in (11.0, 10.0, 5.0, 1.0, 0.5)] == [
        False,
        True,
        True,
        True,
        False,
    ]
    curve = Curve(((10, 1.0), (0, 0.0)), unit="sigma")
    assert curve.at(Moment(sigma=5.0)) == 0.5
    assert curve.at(None) == 1.0  # the most noise is at the beginning
    assert Curve(((1000, 2.0), (0, 0.0)), unit="timestep").at(Moment(timestep=250)) == 0.5
    assert Curve(((0, 2.0), (1, 0.0))).at(None) == 2.0


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (Curve(((0, 0), (1, 1))), Moment(step=3)),
        (Curve(((0, 0), (9, 1))), Moment(sigma=3.0)),
        (Curve(((0, 0), (9, 1)), unit="sigma"), Moment(3, 8)),
        (Window(start=2), Moment()),
        (Window(low=2), Moment(3, 8)),
    ],
)
def test_what_nobody_tells_is_an_error(asked, told) -> None:
    with pytest.raises(MomentError, match="of a model call is unknown"):
        asked.at(told) if isinstance(asked, Curve) else asked.holds(told)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Curve(()),
        lambda: Curve(((0, math.nan),)),
        lambda: Curve(((math.inf, 1),)),
        lambda: Curve(((0, 1),), unit="minute"),
        lambda: Curve(((0, 1),), shape="wave"),
        lambda: Window(start=-1),
        lambda: Window(low=math.inf),
    ],
)
def test_what_is_none_is_refused(make) -> None:
    with pytest.raises(StackError):
        make()


def test_noise_by_the_schedule_of_stable_diffusion() -> None:
    """The ends are those that k-diffusion works with for its models."""
    assert sigma_of(999, flow=False) == pytest.approx(14.6146, abs=1e-3)
    assert sigma_of(0, flow=False) == pytest.approx(0.0292, abs=1e-4)
    assert sigma_of(1200, flow=False) == sigma_of(999, flow=False)
    assert sigma_of(500.5, flow=False) == pytest.approx(
        math.sqrt(sigma_of(500, flow=False) * sigma_of(501, flow=False)), rel=1e-12
    )
    assert sigma_of(250, flow=True) == 0.25
