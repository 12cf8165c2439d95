"""Tensors beside a layer: placed when first needed, moved with the layer, dropped with it.

Moving to a device is a copy of what the file has; leaving it is a drop, without a copy back. Where the device has no
room for all layers, some are placed again for each call, see `budget.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import starmap
from operator import attrgetter
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..adapters.base import Adapter, Pair
from ..compiler import uncompiled
from ..errors import ComponentError
from ..naming.binding import Binding, FusedWeight
from ..naming.places import Target
from ..strengths.table import FactorRanges, StrengthTable
from ..tensors import COMPUTING, TensorFields, device_of, on_cpu, plain_mode
from ..weights.originals import WeightMark, mark_weight
from ..weights.readers.base import holds_values, read_base_weight
from . import budget, trace
from .arena import Arena, Dtypes, Piece, all_to_device
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


@dataclass(frozen=True, slots=True, eq=False)
class Adapters(TensorFields):
    """A layer's adapters, in the dtypes of their files."""

    all: tuple[Adapter, ...]


P = TypeVar("P", bound=Placement[Any])
_CPU = torch.device(budget.UNLIMITED)


class Resident(ABC, Generic[P]):
    """Base class of the executors that place tensors beside their layer."""

    name: str
    """As the log has it."""
    merges = False
    """Whether it writes into the base weight."""
    _dtypes: ClassVar[Dtypes | None] = None
    """The dtypes of each placement, if they do not depend on the layer's."""
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
        self._fused: Sequence[FusedWeight] = list(filter(None, map(attrgetter("whole"), self._bindings)))
        self._strengths = strengths
        self._static: StaticMemory | None = None
        self._placed: P | None = None
        self._views: Any = None  # of the placed tensors, as calls need them; made by the first call
        self._stays = True
        self._marks: tuple[WeightMark | None, ...] = ()  # of the base weights that the tensors were computed from

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
    def _content(self, adapters: Sequence[Adapter], device: torch.device, dtypes: Dtypes) -> TensorFields:
        """Copy what the layer needs of its adapters to `device`."""

    @abstractmethod
    def _placement(self, content: Any, device: torch.device, dtypes: Dtypes) -> P:
        """Return the placement of tensors that are on a device."""

    def move(self, layer: nn.Module, device: torch.device, *, now: bool = False) -> None:
        """Follow the layer to a device, see `follow`; the first call places what has no room there now."""
        with plain_mode(device):
            waiting = self.follow(layer, device, now=now)
            if waiting is not None:
                _place_group([waiting], device)

    def follow(self, layer: nn.Module, device: torch.device, *, now: bool) -> Waiting | None:
        """Leave the device where the layer was; on the way to the CPU or meta, only the arena's tensors remain.

        Args:
            layer: the layer.
            device: where it is.
            now: place before the first call, if the layer tells in which dtype it computes.

        Returns:
            What is to be copied to the device.
        """
        placed, dtype = self._placed, None
        if self._static is not None and device_of(layer) == device:
            self._static.forget(layer, device)
        if placed is not None:
            if placed.device == device:
                return None
            self.evict("the layer left")
            dtype = placed.dtype if device.type not in ("cpu", "meta") else None
        if dtype is None and now:
            dtype = _computing_dtype(layer, device)
        if dtype is None or device.type == "meta":
            return None
        if device.type == budget.UNLIMITED:
            self._place(layer, device, (dtype, dtype), "the layer is there")
            return None
        return Waiting(self, layer, dtype, self._piece_for(layer, device, (dtype, dtype)))

    def converting(self, layer: nn.Module) -> AbstractContextManager[None]:
        """Return a context in which the layer's own `_apply` converts its parameters."""
        return nullcontext()

    def before_load(self, layer: nn.Module, state: Mapping[str, Any], prefix: str) -> None:
        """Get ready for other weights, which `load_state_dict` is about to write."""

    def weights(self, layer: nn.Module) -> list[tuple[nn.Module, str]]:
        """Return the weights that something is computed from when it is placed, and their layers."""
        found = list[tuple[nn.Module, str]]()
        for one in self.weight_readers:
            found += [(layer, one.target.param)] if one.whole is None else one.whole.weights
        return found

    def release(self, layer: nn.Module) -> None:
        """Drop the placed tensors; the file's own tensors stay."""
        self._marks = ()
        for whole in self._fused:
            whole.latest = None
        self._piece, self.account.host = None, 0
        self.evict("it is taken off")

    def rest(self, layer: nn.Module, has_headroom: Callable[[torch.device], bool] | None) -> None:
        """Stay on a device that has headroom until its plan is in force again, else leave it; None is for good."""
        weights, device = self.weights(layer) if self._marks else (), self.account.device or _CPU
        if has_headroom is None or None in self._marks or not all(starmap(holds_values, weights)):
            self.release(layer)  # or a change of a weight might not be noticed
        elif device.type != budget.UNLIMITED and (self._static or not (self._stays and has_headroom(device))):
            self.evict("others need the room")  # the tensors in the arena stay

    def evict(self, why: str = "the call is over") -> None:
        """Drop the placed tensors; the next call places them again. The trace tells why."""
        placed, piece = self._placed, self._piece
        if placed is None:
            return
        if piece is not None and piece.dtypes is None and placed.device.type != budget.UNLIMITED:
            # so that it is not computed again
            self._set_piece(placed.content, placed.device, (placed.dtype, placed.input_dtype))
        if trace.moves:
            self._trace_move(placed, why, leaves=True)
        self._placed = self._views = None
        self._budget.free(self.account)

    def _placed_at(
        self, layer: nn.Module, device: torch.device, dtype: torch.dtype, input_dtype: torch.dtype | None = None
    ) -> P:
        placed = self._placed
        if placed is None or placed.device != device or placed.dtype != dtype:
            placed = self._place_for_call(layer, device, (dtype, input_dtype or dtype))
        if self.weight_readers and torch.is_grad_enabled() and is_trained(layer):
            return self._in_training(layer, placed)
        return placed

    @uncompiled  # as `_place_for_call`
    def _in_training(self, layer: nn.Module, placed: P) -> P:
        """Return a placement for one call, in which autograd follows what adapters compute from the base weight."""
        dtypes = placed.dtype, placed.input_dtype
        content = self._content(self._adapters(layer), placed.device, dtypes)
        return self._placement(content, placed.device, dtypes)

    @uncompiled  # it reads files and keeps accounts
    def _place_for_call(self, layer: nn.Module, device: torch.device, dtypes: Dtypes) -> P:
        with plain_mode(device):
            return self._place(layer, device, dtypes, "its input is there")

    def _place(self, layer: nn.Module, device: torch.device, dtypes: Dtypes, why: str) -> P:
        """Place from the arena, which gets the tensors first; on the CPU, in place.

        Raises:
            FileError: a file changed on disk.
            RuntimeError: the device has no room for it; nothing is placed.
        """
        if self._placed is not None:
            self.evict("another place or dtype is needed")  # never more at once than may stay
        if device.type == budget.UNLIMITED:
            return self._keep(layer, self._content(self._adapters(layer), device, dtypes), device, dtypes, why)
        piece = self._piece_for(layer, device, dtypes)
        content = next(all_to_device([piece], device))
        if piece.dtypes is None:
            content = self._content(self._adapters(layer, content.all), device, dtypes)
        return self._keep(layer, content, device, dtypes, why)

    def _keep(self, layer: nn.Module, content: TensorFields, device: torch.device, dtypes: Dtypes, why: str) -> P:
        """Count the placed tensors, and find out how long they may stay."""
        placed = self._placement(content, device, dtypes)
        may_stay = self._budget.charge(self.account, device, content.nbytes)
        self._stays = may_stay and (device.type == budget.UNLIMITED or stays(layer))
        if self._static is not None and self._stays:
            placed = replace(placed, content=self._static.settled(layer, content, device))
        if trace.moves:
            self._trace_move(placed, why if may_stay else f"{why}, for this call only: no room", leaves=False)
        self._placed = placed
        return placed

    def _piece_for(self, layer: nn.Module, device: torch.device, dtypes: Dtypes) -> Piece[Any]:
        """Have the tensors for a device in the arena, or where the base weight is there, the adapters that read it."""
        piece, dtypes = self._piece, self._dtypes or dtypes
        if piece is not None and piece.dtypes in (None, dtypes):
            return piece
        self._piece, self.account.host = None, 0
        if self.weight_readers and not (self._fused or self._in_order) and device_of(layer) == device:
            copies = Adapters(tuple([one.file.private(one.adapter) for one in self._bindings]))
            return self._set_piece(copies, device, None)
        return self._set_piece(self._content(self._adapters(layer), _CPU, dtypes), device, dtypes)

    def _set_piece(self, content: Any, device: torch.device, dtypes: Dtypes | None) -> Piece[Any]:
        self._piece = piece = self._arena.add(content, device, dtypes)
        self.account.host = piece.nbytes
        return piece

    def _trace_move(self, placed: P, why: str, *, leaves: bool) -> None:
        names = "+".join(dict.fromkeys(binding.file.path.name for binding in self._bindings))
        target, from_file = self._bindings[0].target, self._piece is None or placed.device == _CPU
        home = "file" if from_file else "the computer's memory"
        way = f"{placed.device} -> {home}" if leaves else f"{home} -> {placed.device}"
        trace.move("%s.%s: %s: %s, %d bytes: %s", self.component, target.path, names, way, placed.content.nbytes, why)

    def _adapters(self, layer: nn.Module, copies: Sequence[Adapter] = ()) -> list[Adapter]:
        """Return the adapters, which know the base weight as far as they need it; it is read once for all of them.

        Without `copies` of them on the weight's device, they are read from their files.

        Raises:
            FileError: a file changed on disk.
        """
        found, weights = list[Adapter](), dict[str, Tensor]()
        for i, one in enumerate(self._bindings):
            if one.whole is not None:
                found.append(one.whole.known(one.adapter, one.rank, one.file.private))
                continue
            adapter = copies[i] if copies else one.file.private(one.adapter)
            if type(adapter).on is not Adapter.on and not self._in_order:
                adapter = adapter.on(partial(_read, layer, one.target, weights), one.rank)
            found.append(adapter)
        if not torch.is_grad_enabled():  # in training, nothing of it is kept
            self._marks = tuple(starmap(mark_weight, self.weights(layer))) if weights or self._fused else ()
        return found


class Waiting(NamedTuple):
    """A layer that `place_together` is to place, the dtype of its output, and its tensors in the arena."""

    resident: Resident[Any]
    layer: nn.Module
    dtype: torch.dtype
    piece: Piece[Any]


def place_together(executors: Mapping[nn.Module, Resident[Any]], resting: Collection[nn.Module]) -> None:
    """Place executors beside their layers, except beside `resting` ones, with a few large copies."""
    by_device: dict[torch.device, list[nn.Module]] = {}
    for layer in executors:
        weight = layer._parameters.get("weight")
        device = device_of(layer) if weight is None else weight.device
        if device is not None:
            by_device.setdefault(device, []).append(layer)
    with ExitStack() as files:
        for file in {binding.file for executor in executors.values() for binding in executor._bindings}:
            files.enter_context(file.reading())
        for device, layers in by_device.items():
            group = list[Waiting]()
            with plain_mode(device):
                for layer in layers:
                    executor = executors[layer]
                    waiting = executor.follow(layer, device, now=executor.merges or layer not in resting)
                    if waiting is not None:
                        group.append(waiting)
                _place_group(group, device)


def _place_group(group: Sequence[Waiting], device: torch.device) -> None:
    """Place what a device has room for; the rest is placed when it is called."""
    if not group:
        return
    of_engine = group[0].resident._budget
    room, fitting = of_engine.room(device), list[Waiting]()
    for one in group:
        nbytes = one.piece.content.nbytes
        if nbytes <= room:
            room -= nbytes
            fitting.append(one)

    def place() -> None:
        contents = all_to_device([one.piece for one in fitting], device)
        for (resident, layer, dtype, piece), content in zip(fitting, contents, strict=True):
            if piece.dtypes is None:
                content = resident._content(resident._adapters(layer, content.all), device, (dtype, dtype))
            resident._keep(layer, content, device, (dtype, dtype), "the layer is there")
            if resident.account.streams:  # it takes more than its adapters
                resident.evict("there is no room to wait")

    of_engine.attempt(device, place)


def drop_stale(executors: Mapping[nn.Module, Resident[Any]], *, surely: bool) -> None:
    """Drop the results of base weights that have changed; `surely` also if a weight is elsewhere now."""
    owners, samples = list[nn.Module](), list[Tensor]()
    for layer, executor in executors.items():
        weights = executor.weights(layer) if executor._marks and not executor.merges else ()
        for before, now in zip(executor._marks, starmap(mark_weight, weights), strict=False):
            if before is not None and now is not None and before[0] == now[0]:
                owners.append(layer)
                samples += before[1], now[1]
            elif surely or None not in (before, now):
                executor.release(layer)
    found = on_cpu(samples)
    for layer, one, other in zip(owners, found[::2], found[1::2], strict=True):
        if not torch.equal(one.view(torch.uint8), other.view(torch.uint8)):  # NaN equals itself, too
            executors[layer].release(layer)


def _computing_dtype(layer: nn.Module, device: torch.device) -> torch.dtype | None:
    """Return the dtype in which a layer on a device computes with its weight, as far as they tell without a call."""
    weight, own = layer._parameters.get("weight"), layer.__dict__
    if weight is None or weight.device != device:
        return None
    sdnq, state = own.get("sdnq_dequantizer"), getattr(weight, "quant_state", None)
    told = own.get("compute_dtype"), getattr(sdnq, "result_dtype", None), getattr(state, "dtype", None)
    for dtype in (*told, weight.dtype):
        if dtype in COMPUTING:
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
