"""Tensors beside a layer: placed when first needed, moved with the layer, dropped with it.

Moving to a device is a copy of what the file has; leaving it is a drop, without a copy back. Where the device has no
room for all layers, some are placed again for each call, see `budget.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..adapters.base import Adapter, Pair
from ..compiler import uncompiled
from ..errors import ComponentError
from ..naming.binding import Binding
from ..naming.places import Target
from ..strengths.table import FactorRanges, StrengthTable
from ..tensors import TensorFields, device_of, plain_mode
from ..weights.originals import WeightMark, mark_weight
from ..weights.readers.base import read_base_weight, stored
from . import budget, trace
from .arena import Arena, Dtypes, Empty, Piece, all_to_device
from .budget import Budget, is_out_of_memory
from .schemes import stays
from .static import StaticMemory
from .storage import Placement, Storage


def strength_ranges(binding: Binding) -> FactorRanges:
    """Return the range of factors of the strength alone, as one number, or one for each head of a bank."""
    schedule = binding.adapter.schedule_of_parts
    return ((binding.group, Pair(1 if schedule is None else schedule.numbers, 1.0, schedule)),)


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """How all layers of an engine place their tensors."""

    storage: Storage = "file"
    budget: Budget = field(default_factory=Budget)
    buckets: tuple[int, ...] = ()
    """To which ranks are rounded up; see `static.py`."""
    static: StaticMemory | None = None
    """Where compiled models have their adapters from stack to stack; None where it may change. See `static.py`."""
    arena: Arena = field(default_factory=Arena)
    """The tensors of one plan in the computer's memory."""


P = TypeVar("P", bound=Placement[Any])
_CPU = torch.device(budget.UNLIMITED)
_MEMORY = "the computer's memory"


class Resident(ABC, Generic[P]):
    """Base class of the executors that place tensors beside their layer."""

    name: str
    """As the log has it."""
    merges = False
    """Whether it writes into the base weight."""
    _in_order = False
    """Whether each adapter acts on what the ones before it left; none then depends on the base weight alone."""

    def __init__(self, bindings: Sequence[Binding], strengths: StrengthTable, policy: PlacementPolicy) -> None:
        self._storage, self._budget, self._arena = policy.storage, policy.budget, policy.arena
        self.account = policy.budget.join(self.evict)
        self._piece: Piece[Any] | None = None  # read it once: another thread may take the executor off
        self._bindings = tuple(bindings)
        self._groups = frozenset(map(attrgetter("group"), self._bindings))
        self.component = self._bindings[0].component
        self.weight_readers = list[Binding]()
        """The bindings whose adapters ask for the base weight when they are placed."""
        for one in self._bindings:
            if one.whole is not None or type(one.adapter).on is not Adapter.on:
                self.weight_readers.append(one)
        self._strengths = strengths
        self._static: StaticMemory | None = None
        self._placed: P | None = None
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

    def run_in_less_memory(
        self, layer: nn.Module, base_forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Compute the forward again after it ran out of memory, with ever fewer adapters on the layer's device.

        Raises:
            RuntimeError: it fails by something else, or with no adapter on the device.
        """
        device = device_of(layer) or _CPU
        while True:
            had_any = device.type != budget.UNLIMITED and self._budget.shrink(device)
            try:
                return self.run(layer, base_forward, args, kwargs)
            except RuntimeError as error:
                if not (had_any and is_out_of_memory(error)):
                    raise

    @abstractmethod
    def _content(
        self, adapters: Sequence[Adapter], device: torch.device, dtypes: Dtypes, empty: Empty = torch.empty
    ) -> tuple[TensorFields, bool]:
        """Copy what the layer needs of `_adapters` to `device`, and tell whether that is packed.

        Large tensors get their memory from `empty`.
        """

    @abstractmethod
    def _placement(
        self, content: Any, device: torch.device, dtype: torch.dtype, input_dtype: torch.dtype, *, packed: bool
    ) -> P:
        """Return the placement of tensors that are on a device."""

    def move(
        self, layer: nn.Module, device: torch.device, *, now: bool = False, waiting: list[Waiting] | None = None
    ) -> None:
        """Follow the layer to a device; on its way out, to the CPU or meta, only the arena's tensors remain.

        Args:
            layer: the layer.
            device: where it is.
            now: place before the first call, if the layer tells in which dtype it computes.
            waiting: gets this layer, if it is to be placed by `place_together`.
        """
        placed, dtype = self._placed, None
        if self._static is not None and device_of(layer) == device:
            self._static.forget(layer, device)
        if placed is not None:
            if placed.device == device:
                return
            self.evict("the layer left")
            dtype = placed.dtype if device.type not in ("cpu", "meta") else None
        if dtype is None and now:
            dtype = _computing_dtype(layer, device)
        if dtype is None or device.type == "meta" or (device.type != budget.UNLIMITED and device in self._budget.full):
            return
        if device.type == budget.UNLIMITED:
            place = self._place_in_plain_mode if waiting is None else self._place  # the modes are left already
            place(layer, device, dtype, dtype, "the layer is there")
            return
        if waiting is not None and self._static is None:
            with plain_mode(_CPU):
                piece = self._piece_for(layer, device, (dtype, dtype))
            if piece is not None:
                waiting.append(Waiting(self, layer, dtype, piece))
                return
        # the first call places it, if there is no room now
        self._budget.attempt(
            device, partial(self._place_in_plain_mode, layer, device, dtype, dtype, "the layer is there")
        )
        if self.account.streams:
            self.evict("there is no room to wait")

    def converting(self, layer: nn.Module) -> AbstractContextManager[None]:
        """Return a context in which the layer's own `_apply` converts its parameters."""
        return nullcontext()

    def before_load(self, layer: nn.Module, state: Mapping[str, Any], prefix: str) -> None:
        """Get ready for other weights, which `load_state_dict` is about to write."""

    def is_stale(self, layer: nn.Module) -> bool:
        """Tell whether a base weight has changed since something was computed from it, such as by `load_state_dict`."""
        pairs = zip(self._marks, self._marks_of(layer), strict=False) if self.reads_base else ()
        return not all(None in (before, now) or before == now for before, now in pairs)

    def weights(self, layer: nn.Module) -> list[tuple[nn.Module, str]]:
        """Return the weights that something is computed from when it is placed, and their layers."""
        found = list[tuple[nn.Module, str]]()
        for one in self.weight_readers:
            found += [(layer, one.target.param)] if one.whole is None else one.whole.weights
        return found

    def release(self, layer: nn.Module) -> None:
        """Drop the placed tensors; the file's own tensors stay."""
        self._known, self._marks, self.reads_base = None, (), False
        self.evict("it is taken off")
        self._drop_piece()

    def rest(self, layer: nn.Module, has_headroom: Callable[[torch.device], bool]) -> None:
        """Stay on a device that has headroom until its plan is in force again; else leave it."""
        placed = self._placed
        if placed is None or placed.device.type == budget.UNLIMITED:
            return
        if self._static is not None or not (self._stays and has_headroom(placed.device)):
            self.move(layer, _CPU)

    def leave_device(self) -> None:
        """Drop what is placed on any device but the CPU; the tensors in the arena stay."""
        if self._placed is not None and self._placed.device.type != budget.UNLIMITED:
            self.evict("others need the room")

    @property
    def placed_bytes(self) -> Counter[torch.device]:
        """Return how many bytes are placed on each device."""
        return Counter() if self._placed is None else Counter({self._placed.device: self.account.nbytes})

    def evict(self, why: str = "the call is over") -> None:
        """Drop the placed tensors; the next call places them again. The trace tells why."""
        placed = self._placed
        if placed is None:
            return
        if trace.moves:
            self._trace_move(placed, why, str(placed.device), "file" if self._piece is None else _MEMORY)
        self._placed = self._views = None
        self._budget.free(self.account)

    def _placed_at(
        self, layer: nn.Module, device: torch.device, dtype: torch.dtype, input_dtype: torch.dtype | None = None
    ) -> P:
        placed = self._placed
        if placed is None or placed.device != device or placed.dtype != dtype:
            placed = self._place_for_call(layer, device, dtype, input_dtype)
        if self.weight_readers and torch.is_grad_enabled() and is_trained(layer):
            return self._in_training(layer, placed)
        return placed

    @uncompiled  # as `_place_for_call`
    def _in_training(self, layer: nn.Module, placed: P) -> P:
        """Return a placement for one call, in which autograd follows what adapters compute from the base weight."""
        dtypes = placed.dtype, placed.input_dtype
        content, packed = self._content(self._adapters(layer, anew=True), placed.device, dtypes)
        return self._placement(content, placed.device, *dtypes, packed=packed)

    def _place_in_plain_mode(
        self,
        layer: nn.Module,
        device: torch.device,
        dtype: torch.dtype,
        input_dtype: torch.dtype | None = None,
        why: str = "its input is there",
    ) -> P:
        """Place for a call: from the arena, which gets the tensors first; on the CPU, and of base weights, in place.

        Raises:
            FileError: a file changed on disk.
            RuntimeError: the device has no room for it; nothing is placed.
        """
        with plain_mode(device):
            return self._place(layer, device, dtype, input_dtype or dtype, why)

    def _place(
        self, layer: nn.Module, device: torch.device, dtype: torch.dtype, input_dtype: torch.dtype, why: str
    ) -> P:
        if self._placed is not None:
            self.evict("another place or dtype is needed")  # never more at once than may stay
        dtypes, source, piece = (dtype, input_dtype), "file", None
        if device.type != budget.UNLIMITED:
            self._budget.make_room(self.account, device)
            source = "file" if self._piece is None else _MEMORY
            piece = self._piece_for(layer, device, dtypes)
        if piece is not None:
            content, packed = next(all_to_device([piece], device)), piece.packed
        else:
            content, packed = self._content(self._adapters(layer), device, dtypes)
            if self.reads_base and self.account.known and device.type != budget.UNLIMITED:
                self._set_piece(content, device, dtypes, packed=packed)  # it comes and goes
        return self._keep(layer, self._placement(content, device, *dtypes, packed=packed), why, source)

    def _keep(self, layer: nn.Module, placed: P, why: str, source: str = "file") -> P:
        """Count what was placed, and find out how long it may stay."""
        device = placed.device
        may_stay = self._budget.charge(self.account, device, placed.content.nbytes)
        if trace.moves:
            told = why if may_stay else f"{why}, for this call only: no room"
            self._trace_move(placed, told, source, str(device))
        self._stays = may_stay and stays(layer)
        if self._static is not None and self._stays:
            placed = self._static.settled(layer, placed)
        self._placed = placed
        return placed

    _place_for_call = uncompiled(_place_in_plain_mode)  # it reads files and keeps accounts

    def _piece_for(self, layer: nn.Module, device: torch.device, dtypes: Dtypes) -> Piece[Any] | None:
        """Have the tensors for a device in the arena; return None where they are made on it, of the base weight."""
        piece = self._piece
        if piece is not None and piece.dtypes == dtypes:
            return piece
        self._drop_piece()
        adapters = () if self.reads_base else self._adapters(layer)  # which tells whether they read the base weight
        if self.reads_base:
            return None
        with self._arena.lock:
            # the memory in which a coarser storage packs them is not the one in which they are made
            empty = partial(self._arena.empty, device) if self._storage == "file" else torch.empty
            content, packed = self._content(adapters, _CPU, dtypes, empty)
            return self._set_piece(content, device, dtypes, packed=packed)

    def _set_piece(self, content: Any, device: torch.device, dtypes: Dtypes, *, packed: bool) -> Piece[Any]:
        with self._arena.lock:
            self._piece = piece = self._arena.add(content, device, dtypes, packed=packed)
        self.account.host = piece.nbytes
        return piece

    def _trace_move(self, placed: P, why: str, before: str, after: str) -> None:
        names = "+".join(dict.fromkeys(binding.file.path.name for binding in self._bindings))
        first, nbytes = self._bindings[0], placed.content.nbytes
        where = f"{first.component}.{first.target.path}"
        trace.move("%s: %s: %s -> %s, %d bytes: %s", where, names, before, after, nbytes, why)

    def _drop_piece(self) -> None:
        self._piece, self.account.host = None, 0

    def _adapters(self, layer: nn.Module, *, anew: bool = False) -> Sequence[Adapter]:
        """Return the adapters, which know the base weight as far as they need it; it is read once for all of them.

        `anew` reads it again, and keeps nothing.

        Raises:
            FileError: a file changed on disk.
        """
        known, found = self._known, list[Adapter]()  # read once: another thread may take the executor off
        known = None if anew else known
        if known is not None:
            for adapter, one in zip(known, self._bindings, strict=True):
                found.append(one.file.private(adapter))
            return found
        weights: dict[str, Tensor] = {}
        kept = list[Adapter]()
        for one in self._bindings:
            if one.whole is None:
                copy = adapter = one.file.private(one.adapter)
                if type(copy).on is not Adapter.on and not self._in_order:
                    adapter = copy.on(partial(_read, layer, one.target, weights), one.rank)
                reads = adapter is not copy
            else:
                adapter, reads = one.whole.known(one.adapter, one.rank, one.file.private), True
            found.append(adapter)
            # what needs nothing of the weight is read again for the next placement, and takes no memory until then
            kept.append(adapter if reads else one.adapter)
            self.reads_base |= reads
        if anew:
            return found
        self._known = tuple(kept)
        self._marks = self._marks_of(layer) if self.reads_base else ()
        return found

    def _marks_of(self, layer: nn.Module) -> tuple[WeightMark | None, ...]:
        found: list[WeightMark | None] = []
        for one in self._bindings:
            found += [mark_weight(layer, one.target.param)] if one.whole is None else one.whole.marks()
        return tuple(found)


class Waiting(NamedTuple):
    """A layer that `place_together` is to place, the dtype of its output, and its tensors in the arena."""

    resident: Resident[Any]
    layer: nn.Module
    dtype: torch.dtype
    piece: Piece[Any]


def place_together(executors: Mapping[nn.Module, Resident[Any]], resting: Collection[nn.Module]) -> None:
    """Place executors beside their layers, except beside `resting` ones, with a few large copies.

    The ones for which a device has no room are placed when they are called.
    """
    by_device: dict[torch.device, list[Waiting]] = {}
    with ExitStack() as files:
        for file in {binding.file for executor in executors.values() for binding in executor._bindings}:
            files.enter_context(file.reading())
        for layer, executor in executors.items():
            weight = layer._parameters.get("weight")
            device = device_of(layer) if weight is None else weight.device
            if device is not None:
                waiting = by_device.setdefault(device, [])
                executor.move(layer, device, now=executor.merges or layer not in resting, waiting=waiting)
    for device, group in by_device.items():
        if not group:
            continue
        of_engine = group[0].resident._budget
        room, fitting = of_engine.room(device), list[Waiting]()
        for one in group:
            nbytes = one.piece.content.nbytes
            if nbytes <= room:
                room -= nbytes
                fitting.append(one)
        of_engine.attempt(device, partial(_place_group, fitting, device))


def _place_group(group: Sequence[Waiting], device: torch.device) -> None:
    with plain_mode(device):
        contents = [*all_to_device([one.piece for one in group], device)]
        for (resident, layer, dtype, piece), content in zip(group, contents, strict=True):
            placed = resident._placement(content, device, dtype, dtype, packed=piece.packed)
            resident._keep(layer, placed, "the layer is there")


def _computing_dtype(layer: nn.Module, device: torch.device) -> torch.dtype | None:
    """Return the dtype in which a layer on a device computes with its weight, as far as they tell without a call."""
    weight = layer._parameters.get("weight")
    if type(weight) is nn.Parameter and type(layer) in _TORCHS and layer.__dict__.keys().isdisjoint(_TOLD):
        return weight.dtype if weight.device == device and weight.dtype in _COMPUTING else None
    there = stored(layer, "weight")
    if there is None or there.device != device:
        return None
    sdnq, state = getattr(layer, "sdnq_dequantizer", None), getattr(there, "quant_state", None)
    told = getattr(layer, "compute_dtype", None), getattr(sdnq, "result_dtype", None), getattr(state, "dtype", None)
    for dtype in (*told, there.dtype):
        if dtype in _COMPUTING:
            return dtype
    return None


def _read(layer: nn.Module, target: Target, weights: dict[str, Tensor]) -> Tensor:
    """Read the weight of a target, and keep the layer's in `weights` for its other targets.

    Raises:
        ComponentError: between two calls it is in parts on several processes, as FSDP's first version has it.
    """
    weight = weights.get(target.param)
    if weight is None:
        weight = weights[target.param] = read_base_weight(layer, target.param)
    found = weight[target.slice]
    if found.numel() != math.prod(target.shape):
        text = f"the {target.param} of {target.path} has {found.numel()} of its {math.prod(target.shape)} numbers here"
        raise ComponentError(f"{text}, as FullyShardedDataParallel has it; activate the LoRA first, or use fully_shard")
    return found.reshape(target.shape)


def is_trained(layer: nn.Module) -> bool:
    """Tell whether a parameter of a layer gets a gradient."""
    return any(parameter.requires_grad for parameter in layer.parameters())


_TORCHS = frozenset({nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d})
_TOLD = ("compute_dtype", "sdnq_dequantizer")
"""What hosts set on layers that compute in another dtype."""
_COMPUTING = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""Weights of these dtypes are computed with as they are; fp8 and packed ones are cast by their host first."""
