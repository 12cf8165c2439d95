"""The one record of an adapter on a weight, and the weights that are one in a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..adapters import PartOf
from ..adapters.base import Adapter
from ..files.file import AdapterFile
from ..weights.readers.base import read_base_weight
from .index import LayerIndex
from .places import Place, Target


class FusedWeight:
    """Weights of a model in the order in which a file has them as one layer, for one adapter of it.

    Reading raises ComponentError where a layer is gone, or its weight cannot be read.
    """

    def __init__(self, place: Place, index: LayerIndex) -> None:
        self._place, self._index = place, index
        self.latest: Adapter | None = None
        """What `known` has made of the weights; None to make it again."""

    def known(self, adapter: Adapter, rank: int | None, private: Callable[[Adapter], Adapter]) -> Adapter:
        """Return what `on` makes of a part of an adapter that `private` reads; weights are read once for all parts."""
        assert isinstance(adapter, PartOf)
        if self.latest is None or torch.is_grad_enabled():  # in training, weights change at each step
            self.latest = private(adapter.inner).on(self.read, rank)
        return adapter.of(self.latest, self.read)

    @property
    def weights(self) -> list[tuple[nn.Module, str]]:
        """Return the layers that are still there, and their parameters."""
        layers = [(self._index.layers[window.path](), window.param) for window in self._place.windows]
        return [(layer, param) for layer, param in layers if layer is not None]

    def read(self) -> Tensor:
        """Return the base weights as one, on the device of the first that is on one, else on the CPU."""
        module, windows = self._index.module, self._place.windows
        parts = [read_base_weight(module(window.path), window.param).detach()[window.slice] for window in windows]
        device = next((part.device for part in parts if part.device.type != "cpu"), parts[0].device)
        return torch.cat([part.to(device) for part in parts]).reshape(self._place.shape)


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
    """The weights of the file's layer, where the adapter depends on all of them; one for all its bindings."""
