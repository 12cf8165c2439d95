"""diffusers' hooks: group offload and layerwise casting.

Source: huggingface/diffusers hooks/hooks.py and hooks/group_offloading.py. A `HookRegistry` on the layer chains
function references, each of which keeps the forward below it. Group offload swaps `param.data`, without a call of
`_apply`; at leaf level the layer itself carries the hook, at block level an ancestor does and adapters stay.
"""

from collections.abc import Iterator

from torch import nn

from ...tensors import every
from .base import Scheme


class DiffusersHook(Scheme):
    """A layer with `_diffusers_hook`."""

    name = "diffusers_hook"
    mark = "_diffusers_hook"

    @classmethod
    def captured(cls, layer: nn.Module) -> Iterator[tuple[object, str]]:
        registry = layer.__dict__.get("_diffusers_hook")
        for reference in getattr(registry, "_fn_refs", ()):
            for attribute in ("forward", "original_forward"):
                if getattr(reference, attribute, None) is not None:
                    yield reference, attribute

    @classmethod
    def rests(cls, component: nn.Module) -> bool:
        return any(not cls.stays(module) for module in every(component) if cls.mark in module.__dict__)

    @classmethod
    def stays(cls, layer: nn.Module) -> bool:
        registry = layer.__dict__.get("_diffusers_hook")
        hooks = getattr(registry, "hooks", {})
        return not any(hasattr(hook, "group") for hook in hooks.values())
