"""Kinds with a few numbers of the delta's spectrum, in places that PEFT draws from a seed."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ._config import configured, configured_count
from ._rows import taken, unfit
from .base import Adapter, At, Origin, Proportional, Rows, Site, Tensors


@dataclass(frozen=True, slots=True, eq=False)
class Spectral(Proportional):
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


@lru_cache(maxsize=64)  # layers of one shape have the same, and a draw takes memory for every entry of the weight
def drawn_places(entries: int, seed: int, count: int) -> Tensor:
    """Return the first `count` of a permutation of the entries of a flattened weight, as PEFT draws it on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(entries, generator=generator)[:count].clone()
