"""An offload scheme: one way in which hosts move layers between devices."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from typing import ClassVar

from torch import nn


class Scheme(ABC):
    """One way in which hosts move layers between devices. A scheme has no state and imports no host."""

    name: ClassVar[str]
    before: ClassVar[tuple[str, ...]] = ()
    mark: ClassVar[str] = ""
    """The attribute in which a layer has a hook of the scheme; where it is empty, `stays` is asked of every layer."""

    @classmethod
    def captured(cls, layer: nn.Module) -> Iterator[tuple[object, str]]:
        """Yield (object, attribute) of every place where this scheme keeps the forward of `layer`."""
        yield from ()

    @classmethod
    def rests(cls, component: nn.Module) -> bool:
        """Tell whether this scheme keeps a whole component elsewhere than where it computes."""
        return False

    @classmethod
    def stays(cls, layer: nn.Module) -> bool:
        """Tell whether the weights of a layer with the mark stay on the device after a call."""
        return True
