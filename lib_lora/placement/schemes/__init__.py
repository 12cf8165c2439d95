"""How a slot learns about offloading: one file per scheme, found by `registry.discover_classes`.

The guard in the forward alone keeps devices right under any scheme. A scheme only says where hooks keep a forward they
captured, and whether adapters should stay on the device between two calls.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from torch import nn

from ...registry import cached, discover_classes
from .base import Scheme


def captured(layer: nn.Module) -> Iterator[tuple[object, str]]:
    """Yield (object, attribute) of every place where a hook keeps the forward of `layer`."""
    for scheme in _schemes():
        yield from scheme.captured(layer)


def rests(component: nn.Module) -> bool:
    """Tell whether the component only waits where it is: a hook brings it to its device for a call."""
    return any(scheme.rests(component) for scheme in _schemes())


def stays(layer: nn.Module) -> bool:
    """Tell whether adapters placed for `layer` may stay on the device after a call."""
    for scheme in _schemes():
        if (not scheme.mark or scheme.mark in layer.__dict__) and not scheme.stays(layer):
            return False
    return True


@cached
def _schemes() -> tuple[type[Scheme], ...]:
    return discover_classes(sys.modules[__name__], Scheme)
