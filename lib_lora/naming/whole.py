"""The layers of a model that are one in a file, for adapters that depend on the weights of all of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..adapters._part import PartOf
from ..adapters.base import Adapter
from ..weights.originals import WeightMark, mark_weight
from ..weights.readers.base import read_base_weight
from .index import LayerIndex
from .places import Place


class Whole:
    """Layers of a model in the order in which a file has them as one, held weakly.

    Reading their weights raises ComponentError where one is gone, or its weight cannot be read.
    """

    def __init__(self, place: Place, index: LayerIndex) -> None:
        self.place, self._index = place, index
        self._known: dict[tuple[int, int | None], tuple[Adapter, Adapter]] = {}
        self._marks: list[WeightMark | None] = []  # of the weights that these were worked out of

    @property
    def layers(self) -> list[nn.Module]:
        """Return the layers that are still there."""
        paths = {one.target.path for one in self.place.segments}
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
            self._known[key] = inner, private(inner).on(self.weight, rank)
        return adapter.of(self._known[key][1], self.weight)

    def marks(self) -> list[WeightMark | None]:
        """Return the marks of the weights as they are now."""
        layers = [(self._index.get(one.target.path), one.target.param) for one in self.place.segments]
        return [None if layer is None else mark_weight(layer, param) for layer, param in layers]

    def weight(self) -> Tensor:
        """Return their base weights as one, on the device of the first that is on one, else on the CPU."""
        parts = []
        for segment in self.place.segments:
            layer = self._index.module(segment.target.path)
            start = segment.start + (segment.target.rows or (0,))[0]
            parts.append(read_base_weight(layer, segment.target.param)[start : start + segment.count])
        device = next((part.device for part in parts if part.device.type != "cpu"), parts[0].device)
        return torch.cat([part.to(device) for part in parts]).reshape(self.place.shape)
