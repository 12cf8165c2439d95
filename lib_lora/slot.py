"""The holder beside one layer."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from .opaque import key_for

if TYPE_CHECKING:
    from .forwards import BaseForward, InstancePatch
    from .patch import ClassPatch


class Way(Protocol):
    """How the bindings of one layer are computed: `factored.py`, `transient.py` or `merged.py`."""

    @property
    def at_rest(self) -> bool:
        """Whether `prefetch` is due even for a layer that is not where it computes."""
        ...

    def run(self, layer: nn.Module, base_forward: BaseForward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Forward of the layer with its adapters."""
        ...

    def follow(self, layer: nn.Module, device: torch.device) -> None:
        """The layer moved: go there now, or drop what was placed where it no longer is."""
        ...

    def prefetch(self, layer: nn.Module) -> None:
        """Place beside the layer before the first call, where layer and dtype are known already."""
        ...

    def release(self, layer: nn.Module) -> None:
        """Leave nothing of ours in or beside the layer; the home copy stays."""
        ...

    def park(self, layer: nn.Module) -> None:
        """The same, but keep what makes coming back quicker and takes no room on a device."""
        ...

    def resume(self, layer: nn.Module) -> bool:
        """Have beside the layer what was kept, if it is of use there; whether it is, so that no `prefetch` is due."""
        ...

    def forget_stale(self, layer: nn.Module) -> None:
        """Drop what was worked out of a base weight that has changed since."""
        ...

    @property
    def parked_bytes(self) -> int:
        """What `park` keeps, or has kept, until `release`."""
        ...


class Slot:
    """What a layer carries: which way its adapters are computed, and which patch may call it.

    A plain attribute of the layer, never a Module, Parameter or buffer, so that no host finds it in a state dict, an
    fp8 cast or an offload map. Copies of the layer start without one.
    """

    __slots__ = ("__weakref__", "calls", "key", "layer", "owner", "patch", "tell", "way")

    def __init__(self, owner: object, layer: nn.Module) -> None:
        self.owner = owner
        self.layer = weakref.ref(layer)
        self.key = key_for(self)
        self.patch: ClassPatch | InstancePatch | None = None
        self.way: Way | None = None
        self.calls = 0
        """Of the layer, as far as 2."""
        self.tell: Callable[[Slot], None] | None = None
        """Called at each of these, see `uncalled.py`."""

    def note(self) -> None:
        """Note a call."""
        self.calls += 1
        if self.tell is not None:
            self.tell(self)

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        return None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # a pickled layer comes back without adapters
