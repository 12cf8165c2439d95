"""The one record of an adapter on a weight, and the weights that are one in a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..adapters._part import PartOf
from ..adapters.base import Adapter
from ..files.file import AdapterFile
from ..weights.originals import WeightMark, mark_weight
from ..weights.readers.base import read_base_weight
from .index import LayerIndex
from .places import Place, Target


class FusedWeight:
    """Weights of a model in the order in which a file has them as one, held weakly.

    Reading them raises ComponentError where a layer is gone, or its weight cannot be read.
    """

    def __init__(self, place: Place, index: LayerIndex) -> None:
        self._windows, self._shape, self._index = place.windows, place.shape, index
        self._known: dict[tuple[int, int | None], tuple[Adapter, Adapter]] = {}
        self._marks: list[WeightMark | None] = []  # of the weights that these were worked out of

    @property
    def layers(self) -> list[nn.Module]:
        """Return the layers that are still there."""
        paths = {one.path for one in self._windows}
        return [layer for path in paths if (layer := self._index.get(path)) is not None]

    def known(self, adapter: Adapter, rank: int | None, private: Callable[[Adapter], Adapter]) -> Adapter:
        """Return what `on` makes of a part for one of them; it reads the weights once for all of them.

        Args:
            adapter: with `reads_whole`, so a part.
            rank: how many rank components are used, if not all.
            private: as `AdapterFile.private`.
        """
        assert isinstance(adapter, PartOf)
        inner = adapter.inner
        marks = self.marks()
        if marks != self._marks:
            self._known, self._marks = {}, marks
        key = id(inner), rank  # kept, so that no other has this id
        if key not in self._known:
            self._known[key] = inner, private(inner).on(self.read, rank)
        return adapter.of(self._known[key][1], self.read)

    def marks(self) -> list[WeightMark | None]:
        """Return the marks of the weights as they are now."""
        layers = [(self._index.get(one.path), one.param) for one in self._windows]
        return [None if layer is None else mark_weight(layer, param) for layer, param in layers]

    def read(self) -> Tensor:
        """Return the base weights as one, on the device of the first that is on one, else on the CPU."""
        parts = [read_base_weight(self._index.module(one.path), one.param)[one.slice] for one in self._windows]
        device = next((part.device for part in parts if part.device.type != "cpu"), parts[0].device)
        return torch.cat([part.to(device) for part in parts]).reshape(self._shape)


@dataclass(frozen=True, slots=True)
class Binding:
    """One adapter on one weight, from file to executor."""

    adapter: Adapter
    target: Target
    file: AdapterFile
    """The adapter's tensors are views of it, and are read through `AdapterFile.private`, which checks it."""
    component: str
    place: Place
    """The file's layer, of which `target` is the whole, or one of several."""
    group: int = 0
    """The strength group of the plan that multiplies it."""
    rank: int | None = None
    """Use only the first so many rank components, as the entry of the plan's stack says."""
    whole: FusedWeight | None = None
    """The weights of the file's layer, where the adapter depends on all of them; one for all bindings of a plan."""

    @property
    def weight(self) -> tuple[str, str, str]:
        """Return component, path and parameter of its weight."""
        return self.component, self.target.path, self.target.param
