"""What lies beside a layer while it computes there: made when first needed, following the layer, dropped when it goes.

Going to a device is a copy of what the file has; leaving it is a drop, without a copy back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from .adapters.base import Adapter
from .binding import Binding
from .layer import read_base_weight
from .residency import stays
from .storage import Storage
from .strength import Strengths
from .tensors import plain_mode

if TYPE_CHECKING:
    from .patch import BaseForward


@dataclass(frozen=True, slots=True)
class Keeping:
    """How all layers of an engine keep what they placed."""

    storage: Storage = "file"


class Placement(Protocol):
    """What was placed, and where."""

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...


P = TypeVar("P", bound=Placement)


class Resident(ABC, Generic[P]):
    """A way that keeps something beside its layer."""

    at_rest = False

    def __init__(self, bindings: Sequence[Binding], strengths: Strengths, keeping: Keeping) -> None:
        self._keeping = keeping
        self._bindings = tuple(bindings)
        self._strengths = strengths
        self._placed: P | None = None
        self._stays = True
        self._known: tuple[Adapter, ...] | None = None

    @property
    def device(self) -> torch.device | None:
        """Where it lies now; None while only the home copy exists."""
        return None if self._placed is None else self._placed.device

    @abstractmethod
    def run(self, layer: nn.Module, base_forward: BaseForward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Forward of the layer with its adapters."""

    @abstractmethod
    def _make(self, layer: nn.Module, device: torch.device, dtype: torch.dtype, input_dtype: torch.dtype) -> P:
        """Copy what the layer needs to `device`; `dtype` is that of its output."""

    def follow(self, layer: nn.Module, device: torch.device) -> None:
        """Go where the layer went; on its way out, to the CPU or meta, only the home copy remains."""
        placed = self._placed
        if placed is None or placed.device == device:
            return
        self._placed = None
        if device.type not in ("cpu", "meta"):
            self._place(layer, device, placed.dtype)

    def prefetch(self, layer: nn.Module) -> None:
        """Place now if the layer is somewhere real and its dtype tells the one it computes in."""
        weight = getattr(layer, "weight", None)
        if isinstance(weight, Tensor) and weight.device.type != "meta" and weight.dtype in _COMPUTING:
            self._place(layer, weight.device, weight.dtype)

    def release(self, layer: nn.Module) -> None:
        """Drop what was placed; the home copy stays."""
        self._placed = None

    def _placed_at(
        self, layer: nn.Module, device: torch.device, dtype: torch.dtype, input_dtype: torch.dtype | None = None
    ) -> P:
        placed = self._placed
        if placed is None or placed.device != device or placed.dtype != dtype:
            placed = self._place(layer, device, dtype, input_dtype)
        return placed

    def _place(
        self, layer: nn.Module, device: torch.device, dtype: torch.dtype, input_dtype: torch.dtype | None = None
    ) -> P:
        for binding in self._bindings:
            binding.file.verify()
        self._placed = None  # never the old and the new at once
        with plain_mode(device):
            placed = self._make(layer, device, dtype, input_dtype or dtype)
        self._stays = stays(layer)
        self._placed = placed
        return placed

    def _adapters(self, layer: nn.Module) -> tuple[Adapter, ...]:
        """The adapters, knowing the base weight as far as they need it, which is read once for all of them."""
        if self._known is None:
            weights: dict[str, Tensor] = {}
            self._known = tuple(b.adapter.on(_reading(layer, b, weights), b.rank) for b in self._bindings)
        return self._known


def _reading(layer: nn.Module, binding: Binding, weights: dict[str, Tensor]) -> Callable[[], Tensor]:
    """A function that reads the weight a binding acts on, and remembers it for the layer's other bindings."""
    target = binding.target

    def read() -> Tensor:
        weight = weights.get(target.param)
        if weight is None:
            weight = weights[target.param] = read_base_weight(layer, target.param)
        return (weight if target.rows is None else weight[slice(*target.rows)]).reshape(target.shape)

    return read


_COMPUTING = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""Weights of these dtypes are computed with as they are; fp8 and packed ones are cast by their host first."""
