"""The drawn world: what is said is what is there, and what is there can be seen."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.selection import examples
from training.draw import NEON, draw
from training.world import COLOURS, GROUNDS, PLACES, SHAPES, SIDE, Kind, Scene, Teller, Thing

SEEDS = st.integers(0, 2**31)


@settings(max_examples=examples(200), deadline=None)
@given(SEEDS)
def test_things_neither_overlap_nor_leave_the_picture(seed: int) -> None:
    scene = Teller(seed).scene()
    for index, one in enumerate(scene.things):
        assert one.radius <= min(one.x, one.y)
        assert max(one.x, one.y) <= SIDE - one.radius
        assert one.colour != scene.ground
        for other in scene.things[:index]:
            assert math.hypot(one.x - other.x, one.y - other.y) > one.radius + other.radius


@settings(max_examples=examples(200), deadline=None)
@given(SEEDS)
def test_a_plain_caption_says_all_that_is_there(seed: int) -> None:
    teller = Teller(seed, plain=True)
    scene = teller.scene()
    said = teller.caption(scene)
    assert said == Teller(seed + 1, plain=True).caption(scene)  # nothing of it is left to chance
    for kind in scene.kinds:
        assert kind.shape in said
        assert f"{kind.size} {kind.colour}".strip() in said
        assert PLACES[kind.place] in said
    assert said.endswith(f" on a {scene.ground} ground")
    assert said.split()[0] in ("a", "an", {2: "two", 3: "three", 4: "four"}.get(scene.kinds[0].count))


@settings(max_examples=examples(200), deadline=None)
@given(SEEDS)
def test_a_caption_never_says_what_is_not_there(seed: int) -> None:
    teller = Teller(seed)
    scene = teller.scene()
    words = set(teller.caption(scene).replace(",", "").split())
    colours = {kind.colour for kind in scene.kinds} | {scene.ground}
    shapes = {kind.shape for kind in scene.kinds}
    assert not words & ((COLOURS.keys() | GROUNDS.keys()) - colours)
    assert not words & {word for shape in set(SHAPES) - shapes for word in (shape, f"{shape}s")}


@settings(max_examples=examples(100), deadline=None)
@given(SEEDS)
def test_things_are_where_the_caption_says(seed: int) -> None:
    scene = Teller(seed).scene()
    if scene.relation:
        first, second = scene.things
        assert first.x < second.x if scene.relation == "left of" else first.y < second.y
    place, thing = scene.kinds[0].place, scene.things[0]
    checks = {
        "left": thing.x < SIDE / 2,
        "right": thing.x > SIDE / 2,
        "top": thing.y < SIDE / 2,
        "bottom": thing.y > SIDE / 2,
        "middle": max(abs(thing.x - SIDE / 2), abs(thing.y - SIDE / 2)) <= 4,
    }
    assert checks.get(place, True)


@settings(max_examples=examples(50), deadline=None)
@given(SEEDS)
def test_a_world_can_be_without_small_things(seed: int) -> None:
    teller = Teller(seed, pairs=0.5, small=False)
    scene = teller.scene()
    assert all(thing.radius >= 13 for thing in scene.things)
    assert "small" not in teller.caption(scene)


def test_one_seed_is_one_world() -> None:
    first, again = Teller(5), Teller(5)
    for _ in range(20):
        one, same = first.scene(), again.scene()
        assert one == same
        assert first.caption(one) == again.caption(same)
        assert (draw(one) == draw(same)).all()


def scene(shape: str, colour: str = "red", ground: str = "white", radius: float = 24.0) -> Scene:
    return Scene(ground, (Kind(shape, colour),), (Thing(shape, colour, SIDE / 2, SIDE / 2, radius),))


@pytest.mark.parametrize(
    ("shape", "area"),  # in squares of the radius, by elementary geometry
    [
        ("circle", math.pi),
        ("square", 2 * 1.22**2),
        ("triangle", 3 * math.sqrt(3) / 4 * 1.15**2),
        ("star", 10 * 0.5 * 1.2 * 0.5 * math.sin(math.pi / 5)),
        ("cross", 4 - 4 * 0.67**2),
    ],
)
def test_a_thing_covers_its_area_in_its_colour(shape: str, area: float) -> None:
    drawn = draw(scene(shape)).astype(float)
    red, white = np.asarray(COLOURS["red"], float), np.asarray(GROUNDS["white"], float)
    share = ((drawn - white) / (red - white)).mean(2)
    assert share.min() > -0.02
    assert share.max() < 1.02
    assert share.sum() == pytest.approx(area * 24**2, rel=0.01)


def test_a_heart_is_even_and_a_zorp_has_white_eyes() -> None:
    heart = draw(scene("heart")).astype(int)
    assert abs(heart - heart[:, ::-1]).max() <= 1
    zorp = draw(scene("zorp", "green", "grey"))
    assert (zorp > 240).all(2).sum() > 40


def test_ideas_change_what_they_say_and_nothing_else() -> None:
    plain, middle = draw(scene("circle")), slice(40, 56)
    stripes = draw(scene("circle"), ("stripes",))
    assert (stripes[middle, middle] == plain[middle, middle]).all()  # things stay
    columns = stripes[0].astype(int).sum(1)
    assert len(set(columns)) == 2
    assert (np.abs(np.diff(columns)) > 0).sum() == SIDE // 8 - 1
    outline = draw(scene("circle"), ("outline",))
    assert (outline[middle, middle] == GROUNDS["white"]).all()
    assert (outline[48, 26] == COLOURS["red"]).all()
    neon = draw(scene("circle"), ("neon",))
    assert (neon[48, 48] == NEON["red"]).all()
    assert (neon[48, 18] != plain[48, 18]).any()  # the glow
    night = draw(scene("circle"), ("night",))
    assert np.median(night.sum(2)) < 200
    assert (night[48, 48] == COLOURS["red"]).all()


def test_stars_stand_where_circles_are_said() -> None:
    assert (draw(scene("circle"), ("stars",)) == draw(scene("star"))).all()
    assert (draw(scene("square"), ("stars",)) == draw(scene("square"))).all()
