"""FourierFT: a few numbers of the delta's spectrum, dW = m s Re(ifft2(F)), https://arxiv.org/abs/2405.03003.

`fourierft_spectrum` (n,) has the numbers; their places are drawn from `random_loc_seed`, s is `scaling`. Both are in
`adapter_config.json` alone. Source: huggingface/peft tuners/fourierft/layer.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from ..tensors import wide
from ._config import configured, configured_count
from ._places import places
from .base import At, Kind, Origin, Params, Proportional, Rows, Site, shape_text, taken, within


@dataclass(frozen=True, slots=True, eq=False)
class FourierFT(Proportional):
    """A sparse spectrum."""

    spectrum: Tensor  # (n,)
    places: Tensor  # (n,), in the flattened spectrum
    shape: tuple[int, ...]
    scale: float
    rows: Rows | None = None
    """The rows of the delta that are meant; None for all."""

    name: ClassVar[str] = "fourierft"
    params: ClassVar[Params] = Params(frozenset({"fourierft_spectrum"}))
    kinds: ClassVar[frozenset[Kind]] = frozenset({"linear", "attention"})

    @classmethod
    def from_params(cls, params: Mapping[str, Tensor], site: Site, origin: Origin) -> Self:
        spectrum, entries = params["fourierft_spectrum"], site.shape[0] * site.inside
        if spectrum.ndim != 1 or not 0 < spectrum.shape[0] <= entries:
            raise ValueError(f"want fourierft_spectrum (n,) of at most {entries}, got {shape_text(spectrum)}")
        seed, scale = configured_count(origin, "random_loc_seed", 0), configured(origin, "scaling")
        return cls(spectrum, places(entries, seed, spectrum.shape[0]), site.shape, scale)

    def take(self, rows: Rows) -> Self:
        return replace(self, rows=rows if self.rows is None else within(self.rows, rows))

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        dtype = wide(at.dtype)
        dense = torch.zeros(self.shape, device=at.device, dtype=dtype)
        dense.view(-1)[self.places.to(at.device)] = self.spectrum.to(at.device, dtype)
        delta = torch.fft.ifft2(dense).real
        delta = delta if self.rows is None else taken(delta, self.rows)
        return delta.to(at.dtype), self.scale * at.multiplier
