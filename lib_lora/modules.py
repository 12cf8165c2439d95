"""What is asked of every module of a model at each activation, without what makes torch's own ways of it slow."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn


def every(module: nn.Module) -> Iterator[nn.Module]:
    """A module and all below it, one that has several places several times; without the names that take the time."""
    found = [module]
    for one in found:  # which grows
        yield one
        if one._modules:
            found.extend([child for child in one._modules.values() if child is not None])


def device_of(layer: nn.Module) -> torch.device | None:
    """Where the layer's own parameters are; never its dtype, which adapters do not follow."""
    for tensors in (layer._parameters, layer._buffers):
        for tensor in tensors.values():
            if tensor is not None:
                return tensor.device
    return None
