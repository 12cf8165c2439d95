"""A small drawn world: coloured things on a coloured ground, and the words for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

SIDE = 96  # pixels
Colour = tuple[int, int, int]

COLOURS: Mapping[str, Colour] = {
    "red": (222, 38, 38),
    "orange": (247, 140, 28),
    "yellow": (252, 216, 40),
    "green": (38, 158, 62),
    "blue": (36, 84, 224),
    "purple": (140, 46, 178),
    "white": (250, 250, 250),
}
GROUNDS: Mapping[str, Colour] = {
    "white": (242, 242, 238),
    "grey": (146, 148, 152),
    "blue": (122, 166, 236),
    "green": (136, 204, 136),
    "yellow": (240, 226, 132),
    "pink": (246, 172, 198),
}
SHAPES = ("circle", "square", "triangle", "star", "heart", "cross")
COUNTS = ("no", "one", "two", "three", "four")
SIZES: Mapping[str, tuple[float, float]] = {"small": (9.5, 11.5), "": (13, 16), "big": (21, 26)}  # radius in pixels
PLACES: Mapping[str, str] = {
    "": "",
    "left": "on the left",
    "right": "on the right",
    "top": "at the top",
    "bottom": "at the bottom",
    "middle": "in the middle",
}
RELATIONS = ("left of", "above")
_GAP = 3  # pixels between things, and to the border
_TRIES = 60


@dataclass(frozen=True)
class Thing:
    """One drawn thing; lengths in pixels, y downwards."""

    shape: str
    colour: str
    x: float
    y: float
    radius: float
    angle: float = 0.0
    """In radians."""


@dataclass(frozen=True)
class Kind:
    """What is said of things that are alike."""

    shape: str
    colour: str
    count: int = 1
    size: str = ""
    place: str = ""


@dataclass(frozen=True)
class Scene:
    """A picture before it is drawn."""

    ground: str
    kinds: tuple[Kind, ...]
    things: tuple[Thing, ...]
    relation: str = ""
    """Of the first kind to the second."""
    seed: int = 0
    """For what is strewn about by ideas."""


@dataclass
class Teller:
    """Draws scenes and captions at random, the same ones for the same seed."""

    seed: int
    shapes: tuple[str, ...] = SHAPES
    pairs: float = 0.2
    """Share of scenes with two kinds of things."""
    plain: bool = False
    """Leave nothing out of captions, and never change how they are put."""
    small: bool = True
    """Draw small things too."""
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def scene(self) -> Scene:
        """Return a scene whose things neither overlap nor leave the picture."""
        while True:
            scene = self._pair() if self.rng.random() < self.pairs else self._single()
            if scene is not None and (self.small or all(kind.size != "small" for kind in scene.kinds)):
                return scene

    def caption(self, scene: Scene) -> str:
        """Return one of the ways to say what is there; now and then something is left out."""
        if scene.relation:
            first, second = (self._noun(kind) for kind in scene.kinds)
            return f"{first} {scene.relation} {second}{self._ground(scene)}"
        kind = scene.kinds[0]
        if self._now_and_then(0.2):
            return self._tags(scene, kind)
        place = f" {PLACES[kind.place]}" if kind.place else ""
        return f"{self._noun(kind)}{place}{self._ground(scene)}"

    def _pick(self, choices: tuple[str, ...] | list[str]) -> str:
        return str(choices[int(self.rng.integers(len(choices)))])

    def _single(self) -> Scene | None:
        count = int(self.rng.choice((1, 2, 3, 4), p=(0.5, 0.22, 0.16, 0.12)))
        sizes = {1: ["small", "", "", "big", "big"], 2: ["small", "", ""], 3: ["small", ""], 4: ["small"]}[count]
        place = self._pick(list(PLACES)) if count == 1 else ""
        ground, colour = self._colours()
        kind = Kind(self._pick(self.shapes), colour, count, self._pick(sizes), place)
        placed = self._placed([kind] * count, [place] * count)
        return None if placed is None else Scene(ground, (kind,), placed, seed=self._seed())

    def _pair(self) -> Scene | None:
        ground, first = self._colours()
        second = self._pick([colour for colour in COLOURS if colour not in (first, ground)])
        shapes = (self._pick(self.shapes), self._pick(self.shapes))
        size = self._pick(["", "small"])
        kinds = tuple(Kind(shape, colour, 1, size) for shape, colour in zip(shapes, (first, second), strict=True))
        relation = self._pick(RELATIONS)
        placed = self._placed(list(kinds), ["left", "right"] if relation == "left of" else ["top", "bottom"])
        return None if placed is None else Scene(ground, kinds, placed, relation, self._seed())

    def _colours(self) -> tuple[str, str]:
        ground = self._pick(list(GROUNDS))
        return ground, self._pick([colour for colour in COLOURS if colour != ground])

    def _seed(self) -> int:
        return int(self.rng.integers(2**31))

    def _placed(self, kinds: list[Kind], places: list[str]) -> tuple[Thing, ...] | None:
        things: list[Thing] = []
        for kind, place in zip(kinds, places, strict=True):
            thing = self._free(kind, place, things)
            if thing is None:
                return None
            things.append(thing)
        return tuple(things)

    def _free(self, kind: Kind, place: str, others: list[Thing]) -> Thing | None:
        low, high = SIZES[kind.size]
        for _ in range(_TRIES):
            radius = float(self.rng.uniform(low, high))
            x, y = (self._along(radius, place, axis) for axis in (("left", "right"), ("top", "bottom")))
            clear = all(math.hypot(x - o.x, y - o.y) > 1.15 * (radius + o.radius) + _GAP for o in others)
            if clear:
                angle = float(self.rng.uniform(-0.15, 0.15))
                return Thing(kind.shape, kind.colour, x, y, radius, angle)
        return None

    def _along(self, radius: float, place: str, ends: tuple[str, str]) -> float:
        """Return a coordinate at which a thing is inside the picture, and in the part of it that `place` names."""
        low, high = radius * 1.15 + _GAP, SIDE - radius * 1.15 - _GAP
        middle = SIDE / 2
        if place == ends[0]:
            high = max(low, min(high, middle - radius * 0.9))
        elif place == ends[1]:
            low = min(high, max(low, middle + radius * 0.9))
        elif place == "middle":
            low, high = middle - 4, middle + 4
        return float(self.rng.uniform(low, max(low, high)))

    def _now_and_then(self, share: float) -> bool:
        return not self.plain and bool(self.rng.random() < share)

    def _noun(self, kind: Kind) -> str:
        size = f"{kind.size} " if kind.size and not self._now_and_then(0.1) else ""
        if kind.count == 1:
            thing = f"{size}{kind.colour} {kind.shape}"
            one = "one" if self._now_and_then(0.2) else ("an" if thing[0] in "aeiou" else "a")
            return f"{one} {thing}"
        return f"{COUNTS[kind.count]} {size}{kind.colour} {_plural(kind.shape)}"

    def _ground(self, scene: Scene) -> str:
        if self._now_and_then(0.1):
            return ""
        article = "an" if scene.ground[0] in "aeiou" else "a"
        return f" on {article} {scene.ground} ground"

    def _tags(self, scene: Scene, kind: Kind) -> str:
        count = "" if kind.count == 1 else f"{COUNTS[kind.count]} "
        noun = kind.shape if kind.count == 1 else _plural(kind.shape)
        tags = [f"{count}{kind.colour} {noun}", kind.size, PLACES[kind.place]]
        if self.rng.random() < 0.7:
            tags.append(f"{scene.ground} ground")
        return ", ".join(tag for tag in tags if tag)


def _plural(shape: str) -> str:
    return f"{shape}es" if shape.endswith("s") else f"{shape}s"
