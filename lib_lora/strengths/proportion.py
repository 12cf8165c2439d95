"""Images of a batch whose strengths are multiples of each other's: they have one sum of weights, scaled for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_DIGITS = 14
"""To which strengths in the same proportion are the same, with the largest as 1: doubles have 15."""


@dataclass(frozen=True, slots=True)
class Proportion:
    """Images with strengths in the same proportion."""

    images: tuple[int, ...]
    """That with the largest strengths first."""
    ratios: tuple[float, ...]
    """What the strengths of each are, in units of those of the first: from 1 to -1, by falling size."""
    acting: frozenset[int]
    """The cells that are not 0."""


def proportions(strengths: Sequence[Sequence[float]], images: Iterable[int], cells: Iterable[int]) -> list[Proportion]:
    """Images by the proportion of their strengths; those that have none at all are in one, too.

    Args:
        strengths: of each image, of every cell.
        images: those in question.
        cells: likewise.
    """
    cells = tuple(dict.fromkeys(cells))
    found: dict[tuple[float, ...], list[tuple[float, int]]] = {}
    for image in dict.fromkeys(images):
        own = [strengths[image][cell] for cell in cells]
        largest = max(own, key=abs) or 1.0
        shape = tuple(round(one / largest, _DIGITS) for one in own)
        found.setdefault(shape, []).append((largest, image))
    return [_made(members, cells, shape) for shape, members in found.items()]


def _made(members: Iterable[tuple[float, int]], cells: Sequence[int], shape: Sequence[float]) -> Proportion:
    ordered = sorted(members, key=lambda one: -abs(one[0]))
    unit = ordered[0][0]
    acting = frozenset(cell for cell, one in zip(cells, shape, strict=True) if one)
    return Proportion(tuple(image for _, image in ordered), tuple(size / unit for size, _ in ordered), acting)
