"""Tensors beside a layer: placed when first needed, moved with the layer, dropped with it.

Moving to a device is a copy of what the file has; leaving it is a drop, without a copy back. Where the device has no
room for all layers, some are placed again for each call, see `budget.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from ..adapters.base import Adapter
from ..compiler import uncompiled
from ..naming.binding import Binding
from ..naming.places import Target
from ..registry import Tuner
from ..strengths.table import FactorRange, FactorRanges, StrengthTable
from ..tensors import plain_mode
from ..weights.originals import WeightMark, mark_weight
from ..weights.readers.base import read_base_weight
from . import budget, trace
from .budget import OUT_OF_MEMORY, Budget
from .schemes import stays
from .static import StaticMemory
from .storage import HostCopy, Placement, Storage


def strength_ranges(binding: Binding) -> FactorRanges:
    """Return the range of factors of the strength alone, as one number, or one for each head of a bank."""
    schedule = binding.adapter.schedule_of_parts
    return (FactorRange(binding.group, 1 if schedule is None else schedule.numbers, schedule=schedule),)


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """How all layers of an engine place their tensors."""

    storage: Storage = "file"
    budget: Budget = field(default_factory=Budget)
    buckets: tuple[int, ...] = ()
    """To which ranks are rounded up; see `static.py`."""
    static: StaticMemory | None = None
    """Where compiled models have their adapters from stack to stack; None where it may change. See `static.py`."""
    tuner: Tuner | None = None
    """Adds pairs of linear layers where a kernel of our own is faster; None never asks."""


P = TypeVar("P", bound=Placement[Any])


class Resident(ABC, Generic[P]):
    """Base class of the executors that place tensors beside their layer."""

    name: str
    """As the log has it."""
    merges = False
    """Whether it writes into the base weight."""
    _in_order = False
    """Whether each adapter acts on what the ones before it left; none then depends on the base weight alone."""

    def __init__(self, bindings: Sequence[Binding], strengths: StrengthTable, policy: PlacementPolicy) -> None:
        self._storage = policy.storage
        self._budget = policy.budget
        self._account = policy.budget.join(self.evict)
        self._host_copy: HostCopy[P] | None = None
        self._bindings = tuple(bindings)
        self._groups = frozenset(map(attrgetter("group"), self._bindings))
        self._strengths = strengths
        self._static: StaticMemory | None = None
        self._placed: P | None = None
        self._other: P | None = None  # of another dtype, for layers that are called in two by turns
        self._dense: Resident[Any] | None = None  # for calls of many tokens, where that is cheaper
        self._views: Any = None  # of the placed tensors, as calls need them; made by the first call
        self._stays = True
        self._known: tuple[Adapter, ...] | None = None
        self.reads_base = False
        """Whether the placed tensors were computed from the base weight."""
        self._marks: tuple[WeightMark | None, ...] = ()  # of the weights that were read for these

    @property
    def device(self) -> torch.device | None:
        """Return the device on which it is placed; None while it is on none."""
        return None if self._placed is None else self._placed.device

    @abstractmethod
    def run(
        self, layer: nn.Module, base_forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Compute the layer's forward with its adapters."""

    @abstractmethod
    def _make(self, layer: nn.Module, device: torch.device, dtype: torch.dtype, input_dtype: torch.dtype) -> P:
        """Copy what the layer needs to `device`; `dtype` is the dtype of its output."""

    def move(self, layer: nn.Module, device: torch.device, *, now: bool = False) -> None:
        """Follow the layer to a device; on its way out, to the CPU or meta, only the host copy remains.

        Args:
            layer: the layer.
            device: where it is.
            now: place before the first call, if the layer is somewhere real and its dtype tells in which one it
                computes.
        """
        placed, dtype = self._placed, None
        if self._dense is not None:
            if self._dense.device is not None:
                self._dense.move(layer, device, now=now)
            if placed is None:
                return  # the first call tells which of the two is needed
        if self._static is not None and device_of(layer) == device:
            self._static.forget(layer, device)
        if placed is not None:
            if placed.device == device:
                return
            self.evict("the layer left")
            dtype = placed.dtype if device.type not in ("cpu", "meta") else None
        if dtype is None and now:
            weight = getattr(layer, "weight", None)
            if isinstance(weight, Tensor) and weight.device == device and weight.dtype in _COMPUTING:
                dtype = weight.dtype
        if dtype is None or device.type == "meta" or (device.type != budget.UNLIMITED and device in self._budget.full):
            return
        self._place(layer, device, dtype, why="the layer is there")
        if self._account.streams:
            self.evict("there is no room to wait")

    def is_stale(self, layer: nn.Module) -> bool:
        """Tell whether a base weight has changed since something was computed from it, such as by `load_state_dict`."""
        if self._dense is not None and self._dense.is_stale(layer):
            return True
        pairs = zip(self._marks, self._marks_of(layer), strict=False) if self.reads_base else ()
        return not all(None in (before, now) or before == now for before, now in pairs)

    def release(self, layer: nn.Module) -> None:
        """Drop the placed tensors; the file's own tensors stay."""
        if self._dense is not None:
            self._dense.release(layer)
        self._known, self._marks, self.reads_base = None, (), False
        self.evict("it is taken off")
        self._drop_host_copy()

    @property
    def host_bytes(self) -> int:
        """Return how many bytes are placed in the computer's memory."""
        placed, others = self._placed, 0 if self._dense is None else self._dense.host_bytes
        return others + (0 if placed is None or placed.device.type != "cpu" else self._account.nbytes)

    def evict(self, why: str = "the call is over") -> None:
        """Drop the placed tensors; the next call places them again.

        Args:
            why: for the trace.
        """
        placed = self._placed
        if placed is None:
            return
        if trace.moves:
            self._trace_move(placed, why, leaves=True)
        self._placed = self._other = self._views = None
        self._budget.free(self._account)

    def _placed_at(
        self, layer: nn.Module, device: torch.device, dtype: torch.dtype, input_dtype: torch.dtype | None = None
    ) -> P:
        placed = self._placed
        if placed is None or placed.device != device or placed.dtype != dtype:
            other = self._other
            if other is None or other.device != device or other.dtype != dtype:
                return self._place_for_call(layer, device, dtype, input_dtype)
            self._placed, self._other = other, placed
            return other
        return placed

    def _place(
        self,
        layer: nn.Module,
        device: torch.device,
        dtype: torch.dtype,
        input_dtype: torch.dtype | None = None,
        why: str = "its input is there",
    ) -> P:
        """Place for a call.

        Raises:
            FileError: a file changed on disk.
            torch.OutOfMemoryError: there is not even room for this layer alone; nothing is placed.
        """
        former, other = self._placed, None
        if former is not None:
            may_wait = self._stays and self._host_copy is None and self._budget.is_free(device)
            if may_wait and former.device == device and former.dtype != dtype:
                other = former
            self.evict("another place or dtype is needed")  # never more at once than may stay
        where, copy = (device, dtype, input_dtype or dtype), self._host_copy
        if copy is not None and where != (copy.placed.device, copy.placed.dtype, copy.placed.input_dtype):
            self._drop_host_copy()
        if device.type != budget.UNLIMITED:
            self._budget.make_room(self._account, device)
        placed: P | None = None
        for may_fail in (True, False):
            try:
                with plain_mode(device):
                    placed = self._make(layer, *where) if self._host_copy is None else self._host_copy.to_device()
                break
            except OUT_OF_MEMORY:
                if not may_fail:
                    raise
            self._budget.shrink(device)  # only here are the failure and all that it held gone
        assert placed is not None
        nbytes = placed.content.nbytes + (0 if other is None else other.content.nbytes)
        may_stay = self._budget.charge(self._account, device, nbytes)
        self._other = other if may_stay else None
        if trace.moves:
            self._trace_move(placed, why if may_stay else f"{why}, for this call only: no room")
        if may_stay and self._host_copy is not None:
            self._drop_host_copy()
        elif not may_stay and self._host_copy is None:
            self._host_copy = self._budget.host_copy(self._account, placed)
        self._stays = may_stay and stays(layer)
        if self._static is not None and self._stays:
            placed = self._static.settled(layer, placed)
        self._placed = placed
        return placed

    _place_for_call = uncompiled(_place)  # it reads files and keeps accounts

    def _trace_move(self, placed: P, why: str, *, leaves: bool = False) -> None:
        names = "+".join(dict.fromkeys(one.file.path.name for one in self._bindings))
        source = "file" if self._host_copy is None else "host copy"
        before, after = (placed.device, source) if leaves else (source, placed.device)
        path, nbytes = self._bindings[0].target.path, placed.content.nbytes
        trace.move("%s %s: %s -> %s, %d bytes: %s", names, path, before, after, nbytes, why)

    def _drop_host_copy(self) -> None:
        if self._host_copy is not None:
            self._host_copy = None
            self._budget.free_host_copy(self._account)

    def _adapters(self, layer: nn.Module) -> tuple[Adapter, ...]:
        """Return the adapters, which know the base weight as far as they need it; it is read once for all of them.

        Raises:
            FileError: a file changed on disk.
        """
        if self._known is not None:
            return tuple(one.file.private(known) for known, one in zip(self._known, self._bindings, strict=True))
        weights: dict[str, Tensor] = {}
        found, known = [], []
        for one in self._bindings:
            if one.whole is None:
                copy = one.file.private(one.adapter)
                needs = type(copy).on is not Adapter.on and not self._in_order
                adapter = copy.on(partial(_read, layer, one.target, weights), one.rank) if needs else copy
                reads = adapter is not copy
            else:
                adapter, reads = one.whole.known(one.adapter, one.rank, one.file.private), True
            found.append(adapter)
            # what needs nothing of the weight is read again for the next placement, and takes no memory until then
            known.append(adapter if reads else one.adapter)
            self.reads_base |= reads
        self._known = tuple(known)
        self._marks = self._marks_of(layer) if self.reads_base else ()
        return tuple(found)

    def _marks_of(self, layer: nn.Module) -> tuple[WeightMark | None, ...]:
        found: list[WeightMark | None] = []
        for one in self._bindings:
            found += [mark_weight(layer, one.target.param)] if one.whole is None else one.whole.marks()
        return tuple(found)


def device_of(layer: nn.Module) -> torch.device | None:
    """Return the device of the layer's own parameters."""
    for tensor in (*layer._parameters.values(), *layer._buffers.values()):
        if tensor is not None:
            return tensor.device
    return None


def _read(layer: nn.Module, target: Target, weights: dict[str, Tensor]) -> Tensor:
    """Read the weight of a target, and keep the layer's in `weights` for its other targets."""
    weight = weights.get(target.param)
    if weight is None:
        weight = weights[target.param] = read_base_weight(layer, target.param)
    return weight[target.slice].reshape(target.shape)


_COMPUTING = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""Weights of these dtypes are computed with as they are; fp8 and packed ones are cast by their host first."""
