"""What an offload scheme is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from torch import nn


class Scheme(ABC):
    """One way in which hosts move layers about. Schemes have no state and import no host: they look at attributes."""

    name: ClassVar[str]
    before: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def captured(cls, layer: nn.Module) -> Iterator[tuple[object, str]]:
        """Yield (object, attribute) of every place where this scheme keeps the forward of `layer`."""
        yield from ()

    @classmethod
    def rests(cls, component: nn.Module) -> bool:
        """True where this scheme keeps a whole component elsewhere than where it computes."""
        return False

    @classmethod
    @abstractmethod
    def stays(cls, layer: nn.Module) -> bool:
        """False where the scheme takes the layer's weights off the device after every call."""
