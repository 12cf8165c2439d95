"""The layers of a model that are one in a file."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor, nn

from .errors import ComponentError
from .layer import LayerIndex, read_base_weight
from .places import Place


class Whole:
    """Layers of a model in the order in which a file has them as one. Holds them weakly."""

    def __init__(self, place: Place, index: LayerIndex) -> None:
        self.place = place
        paths = {segment.target.path for segment in place.segments}
        self._layers = {path: weakref.ref(index.module(path)) for path in paths}

    @property
    def layers(self) -> list[nn.Module]:
        """Those that are still there."""
        return [layer for ref in self._layers.values() if (layer := ref()) is not None]

    def weight(self) -> Tensor:
        """Their base weights as one, on the device of the first.

        Raises:
            ComponentError: one is gone, or its weight cannot be read.
        """
        parts = []
        for segment in self.place.segments:
            layer = self._layers[segment.target.path]()
            if layer is None:
                raise ComponentError(f"{segment.target.path} is gone; the model was unloaded")
            start = segment.start + (segment.target.rows or (0,))[0]
            parts.append(read_base_weight(layer, segment.target.param)[start : start + segment.count])
        return torch.cat([part.to(parts[0]) for part in parts]).reshape(self.place.shape)
