"""What a weight reader is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn


class WeightReader(ABC):
    """Reads the base weight of one kind of storage. Readers have no state and never write."""

    name: ClassVar[str]
    before: ClassVar[tuple[str, ...]] = ()
    plain: ClassVar[bool] = False
    """Whether the weight lies there as numbers to compute with, so that reading costs nothing."""

    @classmethod
    @abstractmethod
    def matches(cls, layer: nn.Module, param: str) -> bool:
        """Whether `param` of `layer` is stored the way this reader knows."""

    @classmethod
    @abstractmethod
    def read(cls, layer: nn.Module, param: str) -> Tensor:
        """The weight in its logical shape, in a floating dtype, on the layer's device; not to be written to."""
