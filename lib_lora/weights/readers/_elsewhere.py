"""Parameters that are on meta between calls, because an offload scheme keeps their numbers elsewhere.

accelerate's sequential and disk offload, and `dispatch_model` where it spills: `AlignDevicesHook.weights_map` has the
numbers by the names of the hooked module's parameters, as tensors, or as arrays mapped from disk. Source:
huggingface/accelerate hooks.py, `AlignDevicesHook.pre_forward`, and utils/offload.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn


def kept_elsewhere(layer: nn.Module, param: str) -> Tensor | None:
    """Return the numbers of a parameter of `layer` that is on meta; None if no known library keeps them.

    Args:
        layer: whose forward is patched.
        param: dotted name below it.
    """
    parent, _, leaf = param.rpartition(".")
    for owner, name in ((layer.get_submodule(parent), leaf), (layer, param)):
        for weights in _maps(owner):
            value = weights.get(name)
            if value is not None:
                # a copy of an array: torch warns of one that is mapped read-only
                return value if isinstance(value, Tensor) else torch.tensor(value)
    return None


def _maps(module: nn.Module) -> Iterator[Mapping[str, object]]:
    hook = module.__dict__.get("_hf_hook")
    for one in getattr(hook, "hooks", (hook,)):  # SequentialHook holds several
        weights = getattr(one, "weights_map", None)
        if isinstance(weights, Mapping):
            yield weights
