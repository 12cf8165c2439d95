"""accelerate's hooks: sequential and model offload, `dispatch_model`, and SD.Next's balanced mode on top of them.

Source: huggingface/accelerate hooks.py. `add_hook_to_module` keeps the layer's forward in `_old_forward`;
`AlignDevicesHook` with `offload=True` swaps `_parameters` to the device before a call and back to meta after it,
without a call of `_apply`.
"""

from collections.abc import Iterator

from torch import nn

from .base import Scheme


class AccelerateHook(Scheme):
    """A layer with `_hf_hook`."""

    name = "accelerate_hook"
    mark = "_hf_hook"

    @classmethod
    def captured(cls, layer: nn.Module) -> Iterator[tuple[object, str]]:
        if "_old_forward" in layer.__dict__:
            yield layer, "_old_forward"

    @classmethod
    def rests(cls, component: nn.Module) -> bool:
        return cls.mark in component.__dict__

    @classmethod
    def stays(cls, layer: nn.Module) -> bool:
        hook = layer.__dict__.get("_hf_hook")
        hooks = getattr(hook, "hooks", (hook,))  # SequentialHook holds several
        return not any(getattr(one, "offload", False) for one in hooks)
