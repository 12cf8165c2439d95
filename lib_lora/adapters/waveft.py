"""WaveFT: a few numbers of the delta's wavelet transform, dW = m s waverec2(C), https://arxiv.org/abs/2505.12532.

`waveft_spectrum` (n,) has the numbers. Their places are drawn from `random_loc_seed`, s is `scaling`; with `use_idwt`
of False the numbers are entries of dW themselves. All of these are in `adapter_config.json` alone. The quarters of C
are the approximation and the horizontal, vertical and diagonal details; each number adds to a square of the filter's
length. Source: huggingface/peft tuners/waveft/layer.py and waverec2d.py.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..tensors import TensorFields
from ._spectral import Spectral, drawn_places
from ._wavelets import FILTERS
from .base import At, Origin, Params, Site


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

    exact = frozenset({"factors"})


class WaveFT(Spectral):
    """A sparse wavelet transform."""

    name = "waveft"
    params = Params(frozenset({"waveft_spectrum"}))

    @classmethod
    def places_for(cls, site: Site, seed: int, count: int, origin: Origin) -> _Reach:
        wavelet = str(origin.config.get("wavelet_family", "db1")).lower().replace("haar", "db1")
        if not origin.config.get("use_idwt", True):
            wavelet = ""
        elif wavelet not in FILTERS:
            raise UnsupportedError(
                f"of WaveFT with the wavelet {wavelet[:20]}, which is not among {', '.join(FILTERS)}"
            )
        return _reach(site.shape[0], site.inside, seed, count, wavelet)

    def spread(self, at: At) -> Tensor:
        reach: _Reach = self.places
        delta = torch.zeros(reach.shape, device=at.device, dtype=at.dtype)
        values = at.put(reach.factors)[reach.quarters.to(at.device)] * at.put(self.spectrum).unsqueeze(1)
        entries = reach.begins.to(at.device).unsqueeze(1) + reach.offsets.to(at.device)
        delta.view(-1).index_put_((entries,), values, accumulate=True)
        return delta[reach.margin :, reach.margin :][: self.shape[0], : self.shape[1]]


@lru_cache(maxsize=64)  # layers of one shape have the same
def _reach(height: int, width: int, seed: int, count: int, wavelet: str) -> _Reach:
    """Return what numbers reach whose places are drawn from a seed; without a wavelet each is an entry."""
    drawn = drawn_places(height * width, seed, count)
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
