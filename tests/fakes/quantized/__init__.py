"""Layers in every storage a base weight may have: made by the real libraries where those run without a GPU.

One file per library or host. Each has a constant `FORMATS`, the name of a format -> how its layer is made; files are
found by themselves, except `base` and those that begin with `_`. Each maker takes a plain fp32 `nn.Linear` (frozen, in
eval mode) and gives the layer as its library or host leaves it. Hosts' own classes are re-created from what their
sources do; only what an adapter meets is there.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator

import pytest
import torch
from torch import Tensor, nn

from .base import INSIDE as INSIDE
from .base import OUT as OUT
from .base import Format as Format
from .base import Model as Model
from .diffusers import layerwise_cast as layerwise_cast
from .forge import ForgeLinear as ForgeLinear


def _formats() -> dict[str, Format]:
    """Find the formats of all files."""
    found: dict[str, Format] = {}
    for name in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        if name != "base" and not name.startswith("_"):
            formats = importlib.import_module(f"{__name__}.{name}").FORMATS
            assert not found.keys() & formats.keys(), f"{name} names a format as another file does"
            found |= formats
    return found


FORMATS = _formats()


def dense_layer() -> nn.Linear:
    """Return the same fp32 layer each time."""
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(1)
        return nn.Linear(INSIDE, OUT).requires_grad_(False).eval()


def made(name: str) -> Model:
    """Return a model of one layer in a format, or skip the test where its library is missing."""
    one = FORMATS[name]
    if one.needs:
        pytest.importorskip(one.needs, exc_type=ImportError)
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)  # some corrections start from random vectors
        return Model(one.make(dense_layer()))


def plain_tensors(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield what a tensor holds: itself, or the packed ones it stands for.

    A class without torch's `__tensor_flatten__` tells them by a method `held`.
    """
    if hasattr(tensor, "held"):
        for inner, value in tensor.held().items():
            yield f"{name}.{inner}", value
    elif hasattr(tensor, "__tensor_flatten__"):
        for inner in tensor.__tensor_flatten__()[0]:
            yield from plain_tensors(f"{name}.{inner}", getattr(tensor, inner))
    else:
        yield name, tensor.detach()


def contents(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, tuple[torch.dtype, bytes]]:
    """Every bit of named tensors, a state dict's or a module's, by name."""
    return {
        inner: (tensor.dtype, tensor.as_subclass(Tensor).cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, value in tensors
        for inner, tensor in plain_tensors(name, value)
    }
