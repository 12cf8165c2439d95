"""Regions of the picture, and how a layer's tokens lie in it.

A region is a grid of weights that is stretched over the picture, whatever the picture's size and a layer's resolution,
so one region serves the first pass and a larger second one.

A UNet's layers have a pixel of the latents, or 2 x 2, 4 x 4 … of them, for each token or each place of a map. A
transformer has one token for each patch, in some layers together with the prompt's tokens, before or behind the
picture's. Other input, such as the prompt's tokens for keys and values, has no place in the picture: its weight is the
region's share of the picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..compiler import uncompiled
from ..errors import StackError, check_type, shown
from ..naming.architectures.base import sizes_in_tokens

SIZE = 64
"""Cells along each side of a region that is made of numbers: as many tokens as most attention has along a side."""
_MOST = 1024
_MOST_PLACES = 16_384
_FULL = 255
_INVERTED = bytes(range(_FULL, -1, -1))


@dataclass(frozen=True, slots=True)
class Region:
    """Weights on a grid over the picture, from 0 to 1.

    A number, size or count of cells that is out of range raises StackError, another type ArgumentError.
    """

    width: int
    height: int
    cells: bytes = field(repr=False)
    """Row by row from the top, a byte for each; 255 is 1."""

    def __hash__(self) -> int:  # a layer asks for it at each call, and bytes keep theirs
        return hash(self.cells)

    def __post_init__(self) -> None:
        for name in ("width", "height"):
            check_type(getattr(self, name), int, f"the {name} of a region", "a whole number of cells")
        check_type(self.cells, bytes, "the cells of a region", "bytes, one for each cell")
        if not (0 < self.width <= _MOST and 0 < self.height <= _MOST):
            raise StackError(f"a region of {self.width} x {self.height} cells; each may be from 1 to {_MOST}")
        if len(self.cells) != self.width * self.height:
            raise StackError(f"a region of {self.width} x {self.height} cells with {len(self.cells)} weights")

    @classmethod
    def rectangle(cls, left: float, top: float, right: float, bottom: float) -> Region:
        """Return a rectangle, in shares of the picture; the weight of a cell is the part of it that is covered."""
        edges = left, top, right, bottom
        for edge in edges:
            check_type(edge, Real, "an edge of a rectangle", "a number from 0 to 1, as Region.rectangle(0, 0, 0.5, 1)")
        if not all(0 <= edge <= 1 for edge in edges) or left >= right or top >= bottom:
            text = ", ".join(map(shown, edges))
            raise StackError(f"a rectangle is left, top, right and bottom, in shares of the picture, not {text}")
        down, across = _covered(top, bottom), _covered(left, right)
        rows = {part: bytes(round(part * other * _FULL) for other in across) for part in set(down)}
        return Region(SIZE, SIZE, b"".join(map(rows.__getitem__, down)))

    @classmethod
    def _from_weights(cls, weights: Tensor) -> Region:
        cells = (weights * _FULL).round().clamp(0, _FULL).to(torch.uint8)
        return cls(weights.shape[1], weights.shape[0], bytes(cells.flatten().tolist()))

    def weights(self, height: int, width: int) -> Tensor:
        """Return the mean weight of each place of a picture, (height, width), in fp64."""
        for places in (height, width):
            if type(places) is not int or not 0 < places <= _MOST_PLACES:
                raise StackError(f"a side of a picture has 1 to {_MOST_PLACES} places, not {shown(places)}")
        cells = torch.tensor(list(self.cells), dtype=torch.float64, device="cpu").view(self.height, self.width)
        return _means(height, self.height) @ (cells / _FULL) @ _means(width, self.width).t()

    @property
    def share(self) -> float:
        """Return the share of the picture that the region covers."""
        return sum(self.cells) / (_FULL * len(self.cells))

    def feathered(self, width: float) -> Region:
        """Return the region with edges that fade over a share of the picture; not at the picture's own edge."""
        check_type(width, Real, "the width of an edge", "a number from 0 to 1, as region.feathered(0.1)")
        if not 0 <= width <= 1:
            raise StackError(f"a region's edge can fade over 0 to 1 of the picture, not {shown(width)}")
        return _feathered(self, float(width)) if width else self

    def __or__(self, other: Region) -> Region:
        """Return the union: the larger one of both weights."""
        check_type(other, Region, "what joins a region", "another Region")
        height, width = max(self.height, other.height), max(self.width, other.width)
        return Region._from_weights(torch.maximum(self.weights(height, width), other.weights(height, width)))

    def inverted(self) -> Region:
        """Return the rest of the picture."""
        return Region(self.width, self.height, self.cells.translate(_INVERTED))


def _covered(start: float, stop: float) -> list[float]:
    """Return the part of each cell along a side that lies between two edges."""
    return [max((min((cell + 1) / SIZE, stop) - max(cell / SIZE, start)) * SIZE, 0) for cell in range(SIZE)]


@lru_cache(maxsize=256)  # a wide edge of a large region is slow, and prompts are read again
def _feathered(region: Region, width: float) -> Region:
    down, across = (_means(count, count, width) for count in (max(region.height, SIZE), max(region.width, SIZE)))
    return Region._from_weights(down @ region.weights(len(down), len(across)) @ across.t())


def _means(places: int, cells: int, width: float = 0.0) -> Tensor:
    """Return the part of each cell in the mean over each place of a side, (places, cells).

    A mean is over a share of the side around the place, at least over the place; beyond the side its last cell goes on.
    """
    pad = max(width - 1 / places, 0) / 2
    places_at, cells_at = (torch.arange(n + 1, dtype=torch.float64, device="cpu") / n for n in (places, cells))
    cells_at[0], cells_at[-1] = -1, 2
    stop = torch.minimum(places_at[1:, None] + pad, cells_at[None, 1:])
    start = torch.maximum(places_at[:-1, None] - pad, cells_at[None, :-1])
    return (stop - start).clamp(min=0) * (places / (1 + 2 * pad * places))


_SCALES = tuple(2**i for i in range(8))


@dataclass(frozen=True, slots=True)
class TokenGrid:
    """How the tokens of a layer's input lie in the picture, in order."""

    height: int
    width: int
    frames: int = 1
    """Whole pictures, one after the other."""
    before: int = 0
    """Tokens without a place in front of them."""
    behind: int = 0


@dataclass(frozen=True, slots=True)
class LatentGrid:
    """The latents of one model call; in tokens where the call has tokens."""

    rows: int
    frames: int
    """Of each row; 1 for still pictures."""
    height: int
    width: int
    patch: int = 0
    """Places along each side that make one token; 0 where layers differ, as in a UNet."""
    references: int = 0
    """Tokens of other pictures behind the picture's own."""
    image_first: bool = False
    """Whether the tokens of the prompt are behind the picture's where they are together."""

    @classmethod
    def from_input(
        cls, x: object, kwargs: Mapping[str, Any], patch: int, *, image_first: bool = False
    ) -> LatentGrid | None:
        """Return the grid of a call that denoises `x`; None where it does not tell its height and width."""
        if isinstance(x, list | tuple):  # a tensor (channels, frames, height, width) for each picture
            shapes = {tuple(one.shape) for one in x if isinstance(one, Tensor)}
            rows, x = len(x), x[0].unsqueeze(0) if len(shapes) == 1 else None
        else:
            rows = len(x) if isinstance(x, Tensor) and x.ndim else 0
        if not isinstance(x, Tensor):
            return None
        if x.ndim in (4, 5):
            frames = x.shape[2] if x.ndim == 5 else 1
            return cls(rows, frames, x.shape[-2], x.shape[-1], patch, image_first=image_first)
        sizes = sizes_in_tokens(kwargs, x.shape[1]) if x.ndim == 3 else None
        if sizes is None:
            return None
        frames, height, width = sizes
        references = x.shape[1] - frames * height * width
        return cls(rows, frames, height, width, 1, references, image_first)

    def token_grid(self, count: int) -> TokenGrid | None:
        """Return the grid of this many tokens; None where they are not of the picture."""
        if not self.patch:
            for scale in _SCALES:  # as layers round either way
                for height, width in (
                    (-(-self.height // scale), -(-self.width // scale)),
                    (max(self.height // scale, 1), max(self.width // scale, 1)),
                ):
                    if height * width == count:
                        return TokenGrid(height, width)
            return None
        height, width = -(-self.height // self.patch), -(-self.width // self.patch)
        others = count - height * width * self.frames
        if others < 0:
            return None
        if self.image_first or others in (0, self.references):
            return TokenGrid(height, width, self.frames, 0, others)
        return TokenGrid(height, width, self.frames, others - self.references, self.references)


class TokenLayout(NamedTuple):
    """How rows and tokens lie in the input or the output of a layer."""

    grid: TokenGrid | None
    """None where no token has a place in the picture."""
    sizes: tuple[int, ...]
    """Sizes of the tensor without the batch and the channels; 1 where a dimension has no tokens."""
    repeats: int
    """Rows of the tensor for each row of the model call, one after the other."""
    channels_first: bool


# a graph can neither keep such an object nor use the cache
@uncompiled
@lru_cache(maxsize=4096)
def token_layout(shape: tuple[int, ...], latents: LatentGrid | None, *, spatial: int, of_text: bool) -> TokenLayout:
    """Return how tokens lie in a layer's input or output of a shape.

    `spatial` is the number of dimensions behind the channels, and `of_text` whether no token has a place.
    """
    middle = shape[2:] if spatial else shape[1:-1]
    repeats, left = (1, 1) if latents is None else divmod(shape[0], latents.rows)
    nowhere = TokenLayout(None, (1,) * len(middle), max(repeats, 1), spatial > 0)
    if latents is None or left or of_text or not middle or repeats not in (1, latents.frames):
        return nowhere
    ones = (1,) * len(middle)
    if spatial:
        if len(middle) not in (2, 3):
            return nowhere
        return TokenLayout(TokenGrid(middle[-2], middle[-1]), (*ones[:-2], *middle[-2:]), repeats, True)
    if len(middle) > 1:  # rows and columns of tokens
        grid = latents.token_grid(middle[-2] * middle[-1])
        if grid is not None and (grid.height, grid.width) == middle[-2:]:
            return TokenLayout(grid, (*ones[:-2], *middle[-2:]), repeats, False)
    for i, count in enumerate(middle):  # tokens in one dimension, as there may be heads in another
        grid = latents.token_grid(count)
        if grid is not None and count > 1:
            return TokenLayout(grid, (*ones[:i], count, *ones[i + 1 :]), repeats, False)
    return nowhere


RegionPart: TypeAlias = "tuple[Region | None, int | None]"
"""A region, None for the whole picture, and the part of the prompt that describes it, None where none does."""
ALL_PLACES: RegionPart = (None, None)
NOWHERE = Region(1, 1, bytes(1))
RowRegions: TypeAlias = "tuple[tuple[Region | None, ...], ...]"
"""For each row, the region of each range of factors."""


def region_on_row(region: RegionPart, grid: TokenGrid | None, part: int | None) -> Region | None:
    """Return the region that weighs a row; by the part of the prompt where a layer is given the prompt.

    The part of a row is None where it is not known, as for a negative one. A part without a region is its rows alone.
    """
    place, described = region
    if place is None and described is not None:
        return None if described == part else NOWHERE
    if grid is not None or described is None or part is None:
        return place
    return None if described == part else NOWHERE


def weights_at(grid: TokenGrid | None, rows: RowRegions, counts: Sequence[int]) -> Tensor:
    """Return the weights of the regions of ranges of so many factors, (rows, factors, places), in fp64.

    Without a grid, there is a single place outside the picture.
    """
    of_region = dict[Region | None, Tensor]()
    for region in dict.fromkeys([region for row in rows for region in row]):
        share = 1.0 if region is None else region.share  # of places outside the picture
        places = 1 if grid is None else grid.before + grid.height * grid.width * grid.frames + grid.behind
        weights = of_region[region] = torch.full((places,), share, dtype=torch.float64, device="cpu")
        if region is not None and grid is not None:
            picture = region.weights(grid.height, grid.width).flatten().repeat(grid.frames)
            weights[grid.before : grid.before + len(picture)] = picture
    each = torch.stack([torch.stack(list(map(of_region.__getitem__, row))) for row in rows])
    return each.repeat_interleave(torch.tensor(counts, device="cpu"), 1)
