"""A part of the picture: a weight for each place of it, pure values.

A grid of weights is stretched over the picture, whatever size that has and whatever resolution a layer works in, so
one region serves the first pass and a larger second one alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor

from .errors import StackError

SIZE = 64
"""Cells along each side of a region that is given in words: as many as most attention of a picture has at most."""
_MOST = 1024
_FULL = 255
_INVERTED = bytes(range(_FULL, -1, -1))


@dataclass(frozen=True, slots=True)
class Region:
    """Weights on a grid over the picture, from 0 to 1.

    Args:
        width: cells from left to right.
        height: cells from top to bottom.
        cells: row by row from the top, a byte for each; 255 is 1.

    Raises:
        StackError: no such size, or not as many cells.
    """

    width: int
    height: int
    cells: bytes

    def __post_init__(self) -> None:
        if not (0 < self.width <= _MOST and 0 < self.height <= _MOST):
            raise StackError(f"a region of {self.width} x {self.height} cells; each may be from 1 to {_MOST}")
        if len(self.cells) != self.width * self.height:
            raise StackError(f"a region of {self.width} x {self.height} cells with {len(self.cells)} weights")

    @classmethod
    def rectangle(cls, left: float, top: float, right: float, bottom: float) -> Region:
        """A rectangle; cells that it covers in part have that part for a weight.

        Args:
            left: in shares of the picture, as all four; 0 is its left edge, 1 its right one.
            top: 0 is the upper edge.
            right: more than `left`.
            bottom: more than `top`.

        Raises:
            StackError: a number is not between 0 and 1, or they are in the wrong order.
        """
        edges = left, top, right, bottom
        if not all(math.isfinite(edge) and 0 <= edge <= 1 for edge in edges) or left >= right or top >= bottom:
            text = ", ".join(f"{edge:g}" for edge in edges)
            raise StackError(f"a rectangle is left, top, right and bottom, in shares of the picture, not {text}")
        return _rectangle(*edges)

    @classmethod
    def _of(cls, weights: Tensor) -> Region:
        cells = (weights * _FULL).round().clamp(0, _FULL).to(torch.uint8)
        return cls(weights.shape[1], weights.shape[0], bytes(cells.flatten().tolist()))

    def weights(self, height: int, width: int) -> Tensor:
        """The weights of a picture of this many places, (height, width), in fp64; each is the mean over its area."""
        return _resized(self, height, width)

    @property
    def share(self) -> float:
        """How much of the picture it is."""
        return sum(self.cells) / (_FULL * len(self.cells))

    def feathered(self, width: float) -> Region:
        """The same with edges that fade over a part of the picture; not at the picture's own edge.

        Args:
            width: of the fading, in shares of the picture; 0 is none.

        Raises:
            StackError: it is not between 0 and 1.
        """
        if not 0 <= width <= 1:
            raise StackError(f"a region's edge can fade over 0 to 1 of the picture, not {width:g}")
        return self if width == 0 else _feathered(self, width)

    def __or__(self, other: Region) -> Region:
        """What is in one of them: of both weights the larger one."""
        height, width = max(self.height, other.height), max(self.width, other.width)
        return Region._of(torch.maximum(self.weights(height, width), other.weights(height, width)))

    def inverted(self) -> Region:
        """All but this."""
        return Region(self.width, self.height, self.cells.translate(_INVERTED))


# tags are read anew for every picture
@lru_cache(maxsize=256)
def _rectangle(left: float, top: float, right: float, bottom: float) -> Region:
    return Region._of(torch.outer(_covered(top, bottom), _covered(left, right)))


@lru_cache(maxsize=256)
def _feathered(region: Region, width: float) -> Region:
    weights = region.weights(max(region.height, SIZE), max(region.width, SIZE))
    for dim in (0, 1):
        weights = _faded(weights, width * weights.shape[dim], dim)
    return Region._of(weights)


def _covered(start: float, stop: float) -> Tensor:
    """How much of each cell is between two places, (SIZE,)."""
    edges = torch.arange(SIZE + 1, dtype=torch.float64, device="cpu") / SIZE
    return (edges[1:].clamp(max=stop) - edges[:-1].clamp(min=start)).clamp(min=0) * SIZE


@lru_cache(maxsize=256)
def _resized(region: Region, height: int, width: int) -> Tensor:
    own = torch.tensor(list(region.cells), dtype=torch.float64, device="cpu").view(region.height, region.width)
    return _averaging(height, region.height) @ (own / _FULL) @ _averaging(width, region.width).t()


def _averaging(places: int, cells: int) -> Tensor:
    """How much of each place is in each cell, (places, cells); rows add up to 1."""
    place = torch.arange(places + 1, dtype=torch.float64, device="cpu") / places
    cell = torch.arange(cells + 1, dtype=torch.float64, device="cpu") / cells
    last = torch.minimum(place[1:, None], cell[None, 1:])
    first = torch.maximum(place[:-1, None], cell[None, :-1])
    return (last - first).clamp(min=0) * places


def _faded(weights: Tensor, cells: float, dim: int) -> Tensor:
    """The mean over so many cells along a dimension; behind the picture's edge all is as at the edge."""
    reach = math.ceil(max(cells - 1, 0) / 2)
    if reach == 0:
        return weights
    box = torch.ones(2 * reach + 1, dtype=torch.float64, device="cpu")
    box[0] = box[-1] = (cells - (2 * reach - 1)) / 2  # the outer ones in part, so that any width is one
    lines = weights.movedim(dim, -1)
    padded = F.pad(lines.unsqueeze(0), (reach, reach), mode="replicate").squeeze(0)
    return F.conv1d(padded.unsqueeze(1), (box / box.sum()).view(1, 1, -1)).squeeze(1).movedim(-1, dim)
