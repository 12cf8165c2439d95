"""WaveFT: a few numbers of the delta's wavelet transform, dW = m s waverec2(C), https://arxiv.org/abs/2505.12532.

`waveft_spectrum` (n,) has the numbers. Their places are drawn from `random_loc_seed`, s is `scaling`; with `use_idwt`
of False the numbers are entries of dW themselves. All of these are in `adapter_config.json` alone. The quarters of C
are the approximation and the horizontal, vertical and diagonal details; each number adds to a square of the filter's
length. Source: huggingface/peft tuners/waveft/layer.py and waverec2d.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from ..errors import UnsupportedError
from ..tensors import TensorFields
from ._config import configured, configured_count
from ._places import places
from ._wavelets import FILTERS
from .base import At, Kind, Origin, Params, Proportional, Rows, Site, shape_text, taken, within


@dataclass(frozen=True, slots=True, eq=False)
class _Reach(TensorFields):
    """What each of n numbers is added to, in a delta with a margin: so that none reaches outside."""

    begins: Tensor  # (n,), the first entry, in the flattened delta
    quarters: Tensor  # (n,)
    offsets: Tensor  # (l * l,), from the first entry
    factors: Tensor  # (4, l * l), for each quarter
    shape: tuple[int, int]
    """Of the delta with its margin."""
    margin: int
    """Rows and columns before the delta."""

    exact: ClassVar[frozenset[str]] = frozenset({"factors"})


@dataclass(frozen=True, slots=True, eq=False)
class WaveFT(Proportional):
    """A sparse wavelet transform."""

    spectrum: Tensor  # (n,)
    reach: _Reach
    shape: tuple[int, ...]
    scale: float
    rows: Rows | None = None
    """The rows of the delta that are meant; None for all."""

    name: ClassVar[str] = "waveft"
    params: ClassVar[Params] = Params(frozenset({"waveft_spectrum"}))
    kinds: ClassVar[frozenset[Kind]] = frozenset({"linear", "attention"})

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Self:
        spectrum, entries = params["waveft_spectrum"], site.shape[0] * site.inside
        if spectrum.ndim != 1 or not 0 < spectrum.shape[0] <= entries:
            raise ValueError(f"want waveft_spectrum (n,) of at most {entries}, got {shape_text(spectrum)}")
        seed, scale = configured_count(origin, "random_loc_seed", 0), configured(origin, "scaling")
        wavelet = str(origin.config.get("wavelet_family", "db1")).lower().replace("haar", "db1")
        if not origin.config.get("use_idwt", True):
            wavelet = ""
        elif wavelet not in FILTERS:
            raise UnsupportedError(
                f"of WaveFT with the wavelet {wavelet[:20]}, which is not among {', '.join(FILTERS)}"
            )
        return cls(spectrum, _reach(site.shape[0], site.inside, seed, spectrum.shape[0], wavelet), site.shape, scale)

    def take(self, rows: Rows) -> Self:
        return replace(self, rows=rows if self.rows is None else within(self.rows, rows))

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        reach = self.reach
        delta = torch.zeros(reach.shape, device=at.device, dtype=at.dtype)
        values = at.put(reach.factors)[reach.quarters.to(at.device)] * at.put(self.spectrum).unsqueeze(1)
        entries = reach.begins.to(at.device).unsqueeze(1) + reach.offsets.to(at.device)
        delta.view(-1).index_put_((entries,), values, accumulate=True)
        delta = delta[reach.margin :, reach.margin :][: self.shape[0], : self.shape[1]]
        return delta if self.rows is None else taken(delta, self.rows), self.scale * at.multiplier


@lru_cache(maxsize=64)  # layers of one shape have the same
def _reach(height: int, width: int, seed: int, count: int, wavelet: str) -> _Reach:
    """Return what numbers reach whose places are drawn from a seed; without a wavelet each is an entry."""
    drawn = places(height * width, seed, count)
    row, column = drawn // width, drawn % width
    low = torch.tensor(FILTERS[wavelet] if wavelet else (1.0,), dtype=torch.float64)
    length, margin = len(low), max(len(low) - 2, 0)
    high = low.flip(0)
    high[1::2] *= -1
    filters = torch.stack([low, high])
    first = second = torch.zeros_like(row)
    if wavelet:
        row, first = _begins(row, height, length)
        column, second = _begins(column, width, length)
    full = height + 2 * margin + 1, width + 2 * margin + 1
    steps = torch.arange(length)
    offsets = (steps.unsqueeze(1) * full[1] + steps).flatten()
    # of the horizontal detail, at the top and right, the filter of the rows is the high one
    pairs = ((0, 0), (0, 1), (1, 0), (1, 1))
    factors = torch.stack([torch.outer(filters[across], filters[down]).flatten() for down, across in pairs])
    return _Reach(row * full[1] + column, 2 * first + second, offsets, factors, full, margin)


def _begins(index: Tensor, size: int, length: int) -> tuple[Tensor, Tensor]:
    """Return the first row (n,) that a coefficient reaches, behind a margin, and whether it is of the second half."""
    padded = size + length - 2
    padded += padded % 2
    index = index + (padded - size) // 2
    half = padded // 2
    return 2 * (index % half), index // half
