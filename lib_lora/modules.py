"""What is asked of every module of a model at each activation, without what makes torch's own ways of it slow."""

from __future__ import annotations

import torch
from torch import nn


def every(module: nn.Module) -> list[nn.Module]:
    """A module and all below it, one that has several places several times; without the names that take the time."""
    found = [module]
    for one in found:  # which grows
        below = one._modules
        if below:
            found.extend([child for child in below.values() if child is not None])
    return found


def device_of(layer: nn.Module) -> torch.device | None:
    """Where the layer's own parameters are; never its dtype, which adapters do not follow."""
    for tensor in layer._parameters.values():
        if tensor is not None:
            return tensor.device
    return next((tensor.device for tensor in layer._buffers.values() if tensor is not None), None)
