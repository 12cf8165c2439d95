"""The strengths of a layer's parts as one call needs them: alike everywhere, or by rows of the batch and by places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from torch import Tensor

from ..compiler import uncompiled
from .table import FactorView
from .token_grid import Grid, Picture


class Live(NamedTuple):
    """The strengths of a layer's parts: of one image, or of each row of the batch and each place."""

    pair: Tensor  # (R, *ones), or (rows, …, R, *ones); as many ones as a kernel has dimensions, or its places
    inputs: tuple[Tensor, ...]  # each (1,), or (rows, …) with the dimensions of the input
    outputs: tuple[Tensor, ...]  # likewise
    bias: Tensor  # (n,), or (rows, …, n)
    spot: Spot | None = None
    """Of the output, where places differ."""

    def change_of_bias(self, bias: Tensor, spatial: int) -> Tensor:
        """The change of an output by changes of the bias, (n, out)."""
        change = self.bias @ bias
        if self.spot is not None and self.spot.channels_first:
            return change.transpose(1, 2).reshape(change.shape[0], -1, *self.spot.lead)
        return behind(change, (1,) * spatial)


@dataclass(frozen=True, slots=True)
class Spot:
    """How the rows and places of a tensor lie in it."""

    grid: Grid | None
    """None where all of it is of no place."""
    lead: tuple[int, ...]
    """Its sizes but for those of the batch and the channels, ones where they make no difference."""
    parts: int
    """Rows of it for each row of the model call, all of one after the other."""
    channels_first: bool
    """Whether the channels are second, and not last."""

    @classmethod
    def of(cls, shape: Sequence[int], picture: Picture | None, *, spatial: int, of_text: bool) -> Spot:
        """That of a layer's input or output.

        Args:
            shape: with the channels.
            picture: of the call; None where nothing tells.
            spatial: dimensions behind the channels, of convolutions.
            of_text: whether the layer is given no places in any case.
        """
        spot: Spot = _spot(tuple(shape), picture, spatial, of_text)
        return spot


# a graph can neither keep such an object nor what was made already
@uncompiled
@lru_cache(maxsize=4096)
def _spot(shape: tuple[int, ...], picture: Picture | None, spatial: int, of_text: bool) -> Spot:
    middle = shape[2:] if spatial else shape[1:-1]
    parts, left = (1, 1) if picture is None else divmod(shape[0], picture.rows)
    nowhere = Spot(None, (1,) * len(middle), max(parts, 1), spatial > 0)
    if picture is None or left or of_text or not middle or parts not in (1, picture.frames):
        return nowhere
    if spatial:
        grid = picture.of_map(shape)
        return nowhere if grid is None else Spot(grid, (*(1,) * (len(middle) - 2), *middle[-2:]), parts, True)
    return _among_tokens(middle, picture, parts) or nowhere


def _among_tokens(middle: tuple[int, ...], picture: Picture, parts: int) -> Spot | None:
    """Tokens are in one dimension, as there may be heads in another; or rows and columns of them in two."""
    ones = (1,) * len(middle)
    if len(middle) > 1:
        grid = picture.of_tokens(middle[-2] * middle[-1])
        if grid is not None and (grid.height, grid.width) == middle[-2:]:
            return Spot(grid, (*ones[:-2], *middle[-2:]), parts, False)
    for i, count in enumerate(middle):
        grid = picture.of_tokens(count)
        if grid is not None and count > 1:
            return Spot(grid, (*ones[:i], count, *ones[i + 1 :]), parts, False)
    return None


class Windows(NamedTuple):
    """The strengths where `Strengths` writes them."""

    pair: FactorView
    inputs: tuple[FactorView, ...]
    outputs: tuple[FactorView, ...]
    bias: FactorView

    def live(self, spatial: int) -> Live:
        """Those of one image; views, so that what is written shows."""
        return Live(
            behind(self.pair.factors, (1,) * spatial),
            tuple(one.factors for one in self.inputs),
            tuple(one.factors for one in self.outputs),
            self.bias.factors,
        )

    def of_rows(self, parts: int, ndim: int, spatial: int) -> Live:
        """Those of each row, for a layer that has several parts for each.

        Args:
            parts: rows of the layer's input for each row of the model call, all of one after the other.
            ndim: dimensions of the output.
            spatial: those of them that are behind the channels.
        """
        ones, last = (1,) * (ndim - spatial - 2), (1,) * spatial

        def shaped(window: FactorView) -> Tensor:
            rows = _repeated(window.of_rows(), parts)
            return rows.view(rows.shape[0], *ones, rows.shape[1])

        return Live(
            behind(shaped(self.pair), last),
            tuple(behind(shaped(one), last) for one in self.inputs),
            tuple(behind(shaped(one), last) for one in self.outputs),
            shaped(self.bias),
        )

    def of_places(self, spot: Spot) -> Live:
        """Those of each place of an output; see `inputs_at` for the changes of the input."""
        spatial = len(spot.lead) if spot.channels_first else 0
        pair = spread(self.pair, spot)
        return Live(
            behind(pair, (1,) * spatial) if pair.ndim == 1 else pair,
            (),
            tuple(spread(one, spot) for one in self.outputs),
            _repeated(self.bias.of_places(spot.grid), spot.parts) if spot.channels_first else spread(self.bias, spot),
            spot,
        )

    def inputs_at(self, spot: Spot) -> tuple[Tensor, ...]:
        """Those of the changes of the input, for each place of it."""
        return tuple(spread(one, spot) for one in self.inputs)


def spread(window: FactorView, spot: Spot) -> Tensor:
    """The factors of each place, with the dimensions of the tensor whose places they are.

    Those of a single place are as if there were none: what is computed with one number is cheaper.
    """
    return by_places(window.of_places(spot.grid, channels_first=spot.channels_first), spot)


def by_places(weights: Tensor, spot: Spot) -> Tensor:
    """Return numbers for the rows of a call and the places of a tensor, with the dimensions of the tensor.

    Args:
        weights: as `FactorView.of_places` gives them.
        spot: of the tensor.
    """
    weights = _repeated(weights, spot.parts)
    if spot.grid is None and weights.shape[0] == 1:
        return weights.flatten()
    if spot.channels_first:
        return weights.view(*weights.shape[:2], *spot.lead)
    return weights.view(weights.shape[0], *spot.lead, weights.shape[2])


def behind(tensor: Tensor, ones: tuple[int, ...]) -> Tensor:
    """The same with dimensions of one more."""
    return tensor.view(*tensor.shape, *ones)


def _repeated(rows: Tensor, parts: int) -> Tensor:
    """Each row so often, if there are several."""
    if parts == 1 or rows.shape[0] == 1:
        return rows
    return rows.repeat_interleave(parts, 0)
