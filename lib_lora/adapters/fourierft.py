"""Kinds with a few numbers of the delta's spectrum, in places that PEFT draws from a seed.

FourierFT: dW = m s Re(ifft2(F)), https://arxiv.org/abs/2405.03003. `fourierft_spectrum` (n,) has the numbers; their
places are drawn from `random_loc_seed`, s is `scaling`. Both are in `adapter_config.json` alone. Source:
huggingface/peft tuners/fourierft/layer.py.

WaveFT: dW = m s waverec2(C), https://arxiv.org/abs/2505.12532, with `waveft_spectrum` likewise; with `use_idwt` of
False the numbers are entries of dW themselves. The quarters of C are the approximation and the horizontal, vertical and
diagonal details; each number adds to a square of the filter's length. Source: huggingface/peft tuners/waveft/layer.py
and waverec2d.py.
"""

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..tensors import TensorFields, wide
from ._rows import taken, unfit
from ._trainer import configured, configured_count
from ._wavelets import FILTERS
from .base import Adapter, At, Origin, Params, Proportional, Rows, Site, Tensors


@dataclass(frozen=True, slots=True, eq=False)
class _Spectral(Proportional):
    """The numbers, and their places in the spectrum."""

    spectrum: Tensor  # (n,)
    shape: tuple[int, ...]
    scale: float
    rows: Rows
    """The rows of the delta that are meant."""
    places: Any
    """What `places_for` returned."""

    kinds = frozenset({"linear", "attention"})
    row_fields = ("rows",)

    @classmethod
    @abstractmethod
    def places_for(cls, site: Site, seed: int, count: int, origin: Origin) -> object:
        """Return where the numbers act: a tensor, or an object that has tensors."""

    @abstractmethod
    def spread(self, at: At) -> Tensor:
        """Return the delta at scale 1."""

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        (name,) = cls.params.required
        spectrum, entries = params[name], site.shape[0] * site.inside
        if spectrum.ndim != 1 or not 0 < spectrum.shape[0] <= entries:
            raise unfit(f"{name} (n,) of at most {entries}", spectrum)
        seed, scale = configured_count(origin, "random_loc_seed", 0), configured(origin, "scaling")
        places = cls.places_for(site, seed, spectrum.shape[0], origin)
        return cls(spectrum, site.shape, scale, ((0, site.shape[0]),), places)

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        return taken(self.spread(at), self.rows), self.scale * at.multiplier


class FourierFT(_Spectral):
    name = "fourierft"
    params = Params(frozenset({"fourierft_spectrum"}))

    @classmethod
    def places_for(cls, site: Site, seed: int, count: int, origin: Origin) -> Tensor:
        return _drawn_places(site.shape[0] * site.inside, seed, count)

    def spread(self, at: At) -> Tensor:
        dtype = wide(at.dtype)
        dense = torch.zeros(self.shape, device=at.device, dtype=dtype)
        dense.view(-1)[self.places.to(at.device)] = self.spectrum.to(at.device, dtype)
        delta: Tensor = torch.fft.ifft2(dense).real.to(at.dtype)
        return delta


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


class WaveFT(_Spectral):
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


@lru_cache(maxsize=64)  # layers of one shape have the same, and a draw takes memory for every entry of the weight
def _drawn_places(entries: int, seed: int, count: int) -> Tensor:
    """Return the first `count` of a permutation of the entries of a flattened weight, as PEFT draws it on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(entries, generator=generator)[:count].clone()


@lru_cache(maxsize=64)  # layers of one shape have the same
def _reach(height: int, width: int, seed: int, count: int, wavelet: str) -> _Reach:
    """Return what numbers reach whose places are drawn from a seed; without a wavelet each is an entry."""
    drawn = _drawn_places(height * width, seed, count)
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
