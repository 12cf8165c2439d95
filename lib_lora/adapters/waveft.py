"""WaveFT: a few numbers of the delta's wavelet transform, dW = m s waverec2(C), https://arxiv.org/abs/2505.12532.

`waveft_spectrum` (n,) has the numbers. Their places are drawn from `random_loc_seed`, s is `scaling`; with `use_idwt`
of False the numbers are entries of dW themselves. All of these are in `adapter_config.json` alone. The quarters of C
are the approximation and the horizontal, vertical and diagonal details; each number adds to a square of the filter's
length. Source: huggingface/peft tuners/waveft/layer.py and waverec2d.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from ..errors import UnsupportedError
from ..tensors import wide
from ._config import configured, configured_count
from ._places import places
from ._wavelets import FILTERS
from .base import Adapter, At, Kind, Origin, Params, Rows, Site, shape_text, taken, within


@dataclass(frozen=True, slots=True, eq=False)
class WaveFT(Adapter):
    """A sparse wavelet transform."""

    spectrum: Tensor  # (n,)
    places: Tensor  # (n,), in the flattened weight
    shape: tuple[int, ...]
    wavelet: str
    """Name of the filters; empty where the numbers are entries of the delta."""
    scale: float
    rows: Rows | None = None
    """The rows of the delta that are meant; None for all."""

    name: ClassVar[str] = "waveft"
    params: ClassVar[Params] = Params(frozenset({"waveft_spectrum"}))
    kinds: ClassVar[frozenset[Kind]] = frozenset({"linear", "attention"})
    exact: ClassVar[frozenset[str]] = frozenset({"places"})

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
        return cls(spectrum, places(entries, seed, spectrum.shape[0]), site.shape, wavelet, scale)

    def take(self, rows: Rows) -> Self:
        return replace(self, rows=rows if self.rows is None else within(self.rows, rows))

    def delta_weight(self, at: At) -> Tensor:
        dtype = wide(at.dtype)
        delta = torch.zeros(self.shape, device=at.device, dtype=dtype)
        spectrum, own = self.spectrum.to(at.device, dtype), self.places.to(at.device)
        row, column = own // self.shape[1], own % self.shape[1]
        if self.wavelet:
            low = torch.tensor(FILTERS[self.wavelet], device=at.device, dtype=dtype)
            signs = torch.ones_like(low)
            signs[1::2] = -1
            filters = torch.stack([low, signs * low.flip(0)])
            down, first = _targets(row, self.shape[0], len(low))
            across, second = _targets(column, self.shape[1], len(low))
            # of the horizontal detail, at the top and right, the filter of the rows is the high one
            values = spectrum[:, None, None] * filters[second].unsqueeze(2) * filters[first].unsqueeze(1)
            down, across = (one.expand(values.shape) for one in (down.unsqueeze(2), across.unsqueeze(1)))
            inside = (down >= 0) & (down < self.shape[0]) & (across >= 0) & (across < self.shape[1])
            row, column, spectrum = down[inside], across[inside], values[inside]
        delta.index_put_((row, column), spectrum, accumulate=True)
        delta = delta if self.rows is None else taken(delta, self.rows)
        return delta.to(at.dtype) * (self.scale * at.multiplier)


def _targets(index: Tensor, size: int, length: int) -> tuple[Tensor, Tensor]:
    """Return which rows (n, length) of the delta a coefficient reaches, and whether it is of the second half."""
    padded = size + length - 2
    padded += padded % 2
    index = index + (padded - size) // 2
    half = padded // 2
    begin = 2 * (index % half) - (length - 2) - (padded - (length - 2) - size) // 2
    return begin.unsqueeze(1) + torch.arange(length, device=index.device), index // half
