"""Draws a scene by signed distances: negative inside a thing, positive outside, in pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .world import COLOURS, GROUNDS, SIDE, Scene, Thing

Floats = npt.NDArray[np.floating[Any]]
Pixels = npt.NDArray[np.uint8]

OUTLINE_WIDTH = 4.0  # pixels
GLOW = 5.0  # pixels over which a neon glow falls to a third
STRIPE = 8  # pixels
STRIPE_SHADE = 0.66
NIGHT: tuple[int, int, int] = (14, 18, 58)
NEON: Mapping[str, tuple[int, int, int]] = {
    "red": (255, 20, 110),
    "orange": (255, 110, 10),
    "yellow": (240, 255, 20),
    "green": (40, 255, 90),
    "blue": (20, 190, 255),
    "purple": (200, 40, 255),
    "white": (220, 255, 255),
}


def draw(scene: Scene, ideas: Collection[str] = ()) -> Pixels:
    """Return the picture of a scene, (SIDE, SIDE, 3).

    Args:
        scene: what to draw.
        ideas: of "stripes", "outline", "neon", "stars" and "night", any that change how it is drawn.
    """
    picture = _ground(scene, ideas)
    for thing in scene.things:
        if "stars" in ideas and thing.shape == "circle":
            thing = Thing("star", thing.colour, thing.x, thing.y, thing.radius, thing.angle)
        _paint(picture, thing, ideas)
    return (picture.clip(0, 255) + 0.5).astype(np.uint8)


def _ground(scene: Scene, ideas: Collection[str]) -> Floats:
    picture = np.empty((SIDE, SIDE, 3), np.float32)
    picture[:] = GROUNDS[scene.ground]
    if "night" in ideas:
        picture[:] = np.asarray(NIGHT) + 0.12 * picture
    if "stripes" in ideas:
        dark = (np.arange(SIDE) // STRIPE) % 2 == 1
        shaded = picture[:, dark]
        picture[:, dark] = shaded * STRIPE_SHADE if "night" not in ideas else shaded + 45
    if "night" in ideas:
        _sky(picture, np.random.default_rng(scene.seed))
    return picture


def _sky(picture: Floats, rng: np.random.Generator) -> None:
    """Add a crescent moon to the upper right, and small lights around it."""
    x, y = _grid()
    for _ in range(9):
        distance = np.hypot(x - rng.uniform(2, SIDE - 2), y - rng.uniform(2, SIDE - 2)) - rng.uniform(1.0, 1.9)
        _blend(picture, (255, 250, 215), _coverage(distance))
    moon = np.maximum(np.hypot(x - 80, y - 16) - 10, 9 - np.hypot(x - 75, y - 13))
    _blend(picture, (255, 244, 190), _coverage(moon))


def _paint(picture: Floats, thing: Thing, ideas: Collection[str]) -> None:
    distance = _distance(thing)
    colour: tuple[int, int, int] = (NEON if "neon" in ideas else COLOURS)[thing.colour]
    if "neon" in ideas:
        _blend(picture, colour, 0.85 * np.exp(-np.maximum(distance, 0) / GLOW))
    if "outline" in ideas:
        distance = np.abs(distance + OUTLINE_WIDTH / 2) - OUTLINE_WIDTH / 2
    _blend(picture, colour, _coverage(distance))
    if "neon" in ideas:  # the tube: white where it is brightest
        _blend(picture, (255, 255, 255), 0.9 * _coverage(np.abs(distance + 2) - 1.2))
    if thing.shape == "zorp":
        _face(picture, thing)


def _face(picture: Floats, thing: Thing) -> None:
    for side in (-1, 1):
        x, y = _local(thing)
        eye = np.hypot(x - 0.28 * side, y + 0.12) * thing.radius
        _blend(picture, (255, 255, 255), _coverage(eye - 0.25 * thing.radius))
        _blend(picture, (20, 20, 30), _coverage(eye - 0.11 * thing.radius))


def _blend(picture: Floats, colour: tuple[int, int, int], alpha: Floats) -> None:
    picture += (np.asarray(colour, np.float32) - picture) * alpha[..., None].astype(np.float32)


def _coverage(distance: Floats) -> Floats:
    """Return how much of each pixel is inside, 0 to 1."""
    covered: Floats = np.clip(0.5 - distance, 0, 1)
    return covered


@lru_cache(maxsize=1)
def _grid() -> tuple[Floats, Floats]:
    y, x = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32) + 0.5
    return x, y


def _local(thing: Thing) -> tuple[Floats, Floats]:
    """Return pixel coordinates with the thing's centre at 0, its radius 1 and its angle 0."""
    x, y = _grid()
    x, y = (x - thing.x) / thing.radius, (y - thing.y) / thing.radius
    cos, sin = math.cos(thing.angle), math.sin(thing.angle)
    return x * cos + y * sin, y * cos - x * sin


def _distance(thing: Thing) -> Floats:
    x, y = _local(thing)
    if thing.shape in _CURVED:
        return _CURVED[thing.shape](x, y) * thing.radius
    return _to_polygon(x, y, _CORNERS[thing.shape]) * thing.radius


def _to_polygon(x: Floats, y: Floats, corners: Floats) -> Floats:
    """Return the signed distance to a polygon, (corners, 2)."""
    squared = np.full(x.shape, np.inf, np.float32)
    inside = np.zeros(x.shape, bool)
    for (ax, ay), (bx, by) in zip(corners, np.roll(corners, -1, 0), strict=True):
        ex, ey = bx - ax, by - ay
        along = np.clip(((x - ax) * ex + (y - ay) * ey) / (ex * ex + ey * ey), 0, 1)
        squared = np.minimum(squared, (x - ax - along * ex) ** 2 + (y - ay - along * ey) ** 2)
        if ey != 0:
            inside ^= ((ay > y) != (by > y)) & (x < ax + (y - ay) / ey * ex)
    return np.where(inside, -1, 1) * np.sqrt(squared)


def _circle(x: Floats, y: Floats) -> Floats:
    distance: Floats = np.hypot(x, y) - 1
    return distance


def _zorp(x: Floats, y: Floats) -> Floats:
    """Return the distance to a made-up animal: a round body with three legs and two feelers."""
    parts: list[Floats] = [np.hypot(x, y) - 0.68]
    parts += [_rod(x, y, 0.4 * leg, 0.45, 0.5 * leg, 0.98) - 0.13 for leg in (-1, 0, 1)]
    for side in (-1, 1):
        parts.append(_rod(x, y, 0.3 * side, -0.5, 0.55 * side, -0.95) - 0.07)
        parts.append(np.hypot(x - 0.55 * side, y + 0.98) - 0.16)
    nearest: Floats = np.minimum.reduce(parts)
    return nearest


def _rod(x: Floats, y: Floats, ax: float, ay: float, bx: float, by: float) -> Floats:
    ex, ey = bx - ax, by - ay
    along = np.clip(((x - ax) * ex + (y - ay) * ey) / (ex * ex + ey * ey), 0, 1)
    distance: Floats = np.hypot(x - ax - along * ex, y - ay - along * ey)
    return distance


def _ring(radii: tuple[float, ...], count: int) -> Floats:
    """Return corners at equal angles, the first at the top, on circles of these radii by turns."""
    angles = np.arange(count) * 2 * np.pi / count - np.pi / 2
    corners: Floats = np.stack([np.cos(angles), np.sin(angles)], 1) * np.resize(radii, count)[:, None]
    return corners


def _heart() -> Floats:
    t = np.linspace(0, 2 * np.pi, 28, endpoint=False)
    x = 16 * np.sin(t) ** 3
    y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)) - 2
    return (np.stack([x, y], 1) / 15.5).astype(np.float32)


def _cross(arm: float = 0.33) -> Floats:
    quarter = [(arm, -1.0), (arm, -arm), (1.0, -arm)]
    corners = []
    for _ in range(4):
        corners += quarter
        quarter = [(-y, x) for x, y in quarter]
    return np.asarray(corners, np.float32)


_CURVED: Mapping[str, Callable[[Floats, Floats], Floats]] = {"circle": _circle, "zorp": _zorp}
_CORNERS: Mapping[str, Floats] = {
    "square": _ring((1.22,), 4) @ np.asarray([[0.7071, 0.7071], [-0.7071, 0.7071]], np.float32),
    "triangle": _ring((1.15,), 3) + np.asarray([0, 0.15], np.float32),
    "star": _ring((1.2, 0.5), 10),
    "heart": _heart(),
    "cross": _cross(),
}
