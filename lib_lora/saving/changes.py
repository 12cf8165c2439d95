"""What a stack changes of each weight of a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ..adapters import PartOf
from ..adapters.base import Adapter, At, Factors, HeadSchedule, RankSchedule, at_strength
from ..adapters.dora import DoRA
from ..errors import ComponentError, MomentError, printed
from ..files.file import AdapterFile
from ..naming.binding import Binding
from ..naming.blocks import blocks_of
from ..naming.index import LayerIndex
from ..naming.network import Network, NetworkCache
from ..naming.places import Target
from ..plan import PlanKey, layer_bindings
from ..stack import Entry, Stack
from ..strengths.stack_strengths import StackStrengths, StrengthGroup
from ..strengths.strength import Moment
from ..weights.readers.base import read_base_weight, stored, with_numbers
from .difference import Difference, Magnitude

_CPU, _EXACT = torch.device("cpu"), torch.float64


@contextmanager
def unchanged(files: Sequence[AdapterFile]) -> Iterator[None]:
    """Read files inside a `with` block; raise FileError where one has changed since it was opened."""
    with ExitStack() as opened:
        for file in files:
            opened.enter_context(file.reading())
        yield
    for file in files:
        file.verify()


@dataclass(frozen=True, slots=True)
class ActingAdapter:
    """An adapter on a weight, or on some rows of it, at a strength."""

    binding: Binding
    strength: float
    moment: Moment | None
    entry: int = 0
    """Its place in the stack."""

    @property
    def rank(self) -> int | None:
        """Return how many of its ranks act; None for all."""
        schedule = self.binding.adapter.schedule_of_parts
        if schedule is None:
            return self.binding.rank
        if self.moment is None or (isinstance(schedule, RankSchedule) and self.moment.timestep is None):
            text = "it acts otherwise at each step; give the moment, as Moment(step=0, steps=20, timestep=999)"
            raise MomentError(f"{printed(self.binding.file.path.stem)}: {text}")
        schedule.check(self.moment)
        return schedule.ranks(self.binding.rank, self.moment)

    @property
    def multiplier(self) -> float | Tensor:
        """Return the strength; of a bank of heads, the strength of each head."""
        schedule, now = self.binding.adapter.schedule_of_parts, self.moment
        if not isinstance(schedule, HeadSchedule) or now is None or now.step is None or not now.steps:
            return self.strength
        return torch.tensor(schedule.weights(now.step, now.steps), dtype=_EXACT) * self.strength


@dataclass(frozen=True, slots=True)
class StackWeight:
    """A weight of a model, or a window of one that has a name, and the adapters on it in the order of the stack."""

    index: LayerIndex
    target: Target
    acting: tuple[ActingAdapter, ...]
    in_order: bool
    read: dict[tuple[str, str, int], str] = field(default_factory=dict, compare=False, kw_only=True)
    """The SHA-256 of the numbers of the model that the change is computed from, by layer, parameter and first row."""

    @property
    def place(self) -> tuple[str, str]:
        """Return the component, and the dotted name that files have for the weight."""
        return self.index.component, self.target.name

    def difference(self) -> Difference:
        """Add up the changes of all adapters."""
        shape, reads = self.target.shape, [one.binding.adapter.reads_base for one in self.acting]
        in_order = self.in_order and len(reads) > 1 and any(reads)
        pairs, rest, bias = list[Factors](), None, None
        own_bias = self._bias()
        for one in self.acting:
            rows = self._rows(one.binding.target)
            adapter, multiplier = self._known(one, in_order=in_order), one.multiplier
            pair = None if in_order else adapter.as_factors(partial(self._base, one.binding.target), one.rank)
            if pair is not None:
                pairs.append(Factors(pair.down, _padded(pair.up * one.strength, rows, shape[0])))
            else:
                rest = torch.zeros(shape, dtype=_EXACT) if rest is None else rest
                weight = self._base(one.binding.target) if adapter.reads_base else None
                if weight is not None and in_order:
                    weight = weight + rest[rows].reshape(weight.shape)
                delta = adapter.delta_weight(At(_CPU, _EXACT, multiplier, one.rank, weight=weight))
                rest[rows] += delta.reshape(rest[rows].shape)
            before = None if own_bias is None else own_bias[rows]
            if before is not None and in_order and bias is not None:
                before = before + bias[rows]
            change = adapter.change_of_bias(before)
            if change is not None:
                bias = torch.zeros(shape[0], dtype=_EXACT) if bias is None else bias
                bias[rows] += at_strength(change.to(_CPU, _EXACT), multiplier)
        return Difference(shape, tuple(pairs), rest, bias, dora=self._dora())

    def _dora(self) -> Magnitude | None:
        """Return the DoRA that is the whole change; None where it is another kind, or more than one, or weakened."""
        one, adapter = self.acting[0], self.acting[0].binding.adapter
        is_whole = len(self.acting) == 1 and one.binding.target == self.target and one.strength == 1.0
        if not is_whole or not isinstance(adapter, DoRA) or adapter.axis == "group":
            return None
        inner = one.binding.file.private(adapter.inner)
        if inner.reads_base or inner.has_bias or inner.bias_excess is not None or isinstance(one.multiplier, Tensor):
            return None
        pair = inner.as_factors(partial(self._base, self.target), one.rank)
        shape = [1] * len(self.target.shape)
        shape[0 if adapter.axis == "row" else 1] = -1
        norms = one.binding.file.private(adapter).magnitude.to(_CPU, _EXACT).reshape(shape)
        return None if pair is None else Magnitude(pair, norms)

    def _rows(self, target: Target) -> slice:
        """Return which rows of this weight an adapter changes."""
        start = target.first - self.target.first
        return slice(start, start + target.shape[0])

    def _known(self, one: ActingAdapter, *, in_order: bool) -> Adapter:
        """Return an adapter that has what it needs of the base weight beside the weight itself."""
        binding = one.binding
        if binding.whole is not None and isinstance(binding.adapter, PartOf):
            for window in binding.place.windows if binding.adapter.reads_base else ():
                if (window.path, window.param, window.first) not in self.read:
                    self._base(window)
            return binding.whole.known(binding.adapter, one.rank, binding.file.private)
        adapter = binding.file.private(binding.adapter)
        return adapter if in_order else adapter.on(lambda: self._base(binding.target), one.rank)

    def _base(self, target: Target) -> Tensor:
        whole = read_base_weight(self.index.module(target.path), target.param).detach()
        return self._noted(target, target.param, whole).reshape(target.shape)

    def _bias(self) -> Tensor | None:
        """Return the layer's own bias; None where it has none, or no adapter reads it."""
        adapters = [one.binding.adapter for one in self.acting]
        if not any(one.reads_base or one.bias_excess is not None for one in adapters):
            return None
        layer = self.index.module(self.target.path)
        if stored(layer, self.target.bias) is None:
            return None
        bias = with_numbers(layer, self.target.bias)
        if bias is None:
            raise ComponentError(f"{self.index.component}.{self.target.path} has no numbers of its bias: it is on meta")
        return self._noted(self.target, self.target.bias, bias.detach())

    def _noted(self, target: Target, param: str, numbers: Tensor) -> Tensor:
        """Return the rows of a target in fp64, whose hash is noted."""
        own, key = numbers[target.slice].to(_CPU), (target.path, param, target.first)
        if key not in self.read:  # the same for a model in float16 and its copy in float32
            exact = own.to(own.dtype if own.dtype is torch.float64 else torch.float32).contiguous().reshape(-1)
            self.read[key] = hashlib.sha256(exact.view(torch.uint8).numpy().data).hexdigest()
        return own.to(_EXACT)


class StackChanges:
    """What a stack of constant strengths changes of a model.

    Args:
        stack: of constant strengths.
        components: of the model.
        moment: of adapters of which other parts act at each step.
        weight: makes the record of a weight.

    Raises:
        LoraError: a file cannot be read, or does not fit the model.
    """

    def __init__(
        self,
        stack: Stack,
        components: Mapping[str, nn.Module],
        moment: Moment | None = None,
        weight: Callable[[LayerIndex, Target, tuple[ActingAdapter, ...], bool], StackWeight] = StackWeight,
    ) -> None:
        self._components = components
        indexes = [LayerIndex(name, module) for name, module in components.items()]
        cache = NetworkCache(len(stack))
        networks = [cache.resolved(Path(one.path), indexes, one.reading(stack.reading)) for one in stack]
        for network in networks:
            network.check_fit()
        self.files = list(dict.fromkeys([file for network in networks for file in network.files]))
        self.notes = [f"{one.report.name}: {text}" for one in networks for text in _notes(one)]
        key, blocks, groups = PlanKey.of(stack, networks, indexes), blocks_of(indexes), dict[StrengthGroup, int]()
        layers = layer_bindings(key, blocks, groups)
        wishes = [(entry.name, entry.multiplier) for entry in stack]
        (values,) = StackStrengths(wishes, 1, False, list(groups), blocks).values(None)
        entry_of = [group.entry for group in groups]
        self.indexes = by_name = {index.component: index for index in indexes}
        self.weights = list[StackWeight]()
        for component, _, bound in layers:
            acting = [
                ActingAdapter(one, values[one.group], moment, entry_of[one.group]) for one in bound if values[one.group]
            ]
            for target, own in _by_weight(by_name[component], acting):
                self.weights.append(weight(by_name[component], target, tuple(own), stack.in_order))

    @property
    def sha256_of_base(self) -> str | None:
        """Return a hash of the numbers of the model that were read so far; None if none was."""
        found = sorted([(one.index.component, *read) for one in self.weights for read in one.read.items()])
        return hashlib.sha256(json.dumps(found).encode()).hexdigest() if found else None

    @property
    def largest_rank(self) -> int | None:
        """Return the largest rank of an adapter that acts; None where none has a rank."""
        bindings = [one.binding for weight in self.weights for one in weight.acting]
        ranks = [(one.adapter.rank, one.rank) for one in bindings if one.adapter.rank is not None]
        return max([own if limit is None else min(own, limit) for own, limit in ranks if own], default=None)

    def read_back(self, path: Path, component: str | None = None) -> list[StackWeight]:
        """Return what a file changes of the same model, or of one component."""
        components = self._components if component is None else {component: self._components[component]}
        return StackChanges(Stack([Entry(path)]), components).weights


def _notes(network: Network) -> list[str]:
    """Return what a user should know of a file whose changes are saved."""
    report, embeddings = network.report, ", ".join(network.parsed.embeddings)
    left = f"keys without effect are left out: {report.why()}" if report.unused else ""
    bundled = f"its textual inversions are left out: {embeddings}" if embeddings else ""
    return [text for text in (*report.faults, report.doubt, *report.notes, left, bundled) if text]


def _by_weight(index: LayerIndex, acting: Sequence[ActingAdapter]) -> Iterator[tuple[Target, list[ActingAdapter]]]:
    """Yield each changed weight of a layer with its adapters; windows by themselves where they have names and no rows
    in common.
    """
    by_param: dict[str, dict[Target, list[ActingAdapter]]] = {}
    for one in acting:
        target = one.binding.target
        by_param.setdefault(target.param, {}).setdefault(target, []).append(one)
    for windows in by_param.values():
        targets = list(windows)
        apart = all(not a.overlaps(b) for i, a in enumerate(targets) for b in targets[:i])
        named = all((place := index.find(one.name)) is not None and place.windows == (one,) for one in targets)
        if apart and named:
            yield from windows.items()
        else:
            whole = next((one for one in targets if one.rows is None), None) or _whole(index, targets[0])
            yield whole, [one for one in acting if one.binding.target.param == whole.param]


def _whole(index: LayerIndex, window: Target) -> Target:
    """Return the weight that a window is of."""
    of_layer = (one for one in index.targets if (one.path, one.param) == (window.path, window.param))
    return next(one for one in of_layer if one.rows is None)


def _padded(up: Tensor, rows: slice, length: int) -> Tensor:
    """Return rows of a factor at their place among all rows, which are zero elsewhere."""
    if len(up) == length:
        return up
    whole = up.new_zeros(length, up.shape[1])
    whole[rows] = up
    return whole
