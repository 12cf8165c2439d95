"""What a stack changes of each weight of a model, and what one file changes without a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..adapters import PartOf
from ..adapters.base import Adapter, At, Factors, HeadSchedule, at_strength
from ..errors import ComponentError, FileError, MomentError, printed
from ..files.components import DENOISER
from ..files.file import AdapterFile
from ..files.reading import USUAL, with_sidecar
from ..naming.binding import Binding
from ..naming.blocks import blocks_of
from ..naming.index import LayerIndex, alias_table
from ..naming.network import NetworkCache
from ..naming.parsed import Group, ParsedFile, misfit
from ..naming.places import Target
from ..plan import PlanKey, layer_bindings
from ..stack import Entry, Stack
from ..strengths.stack_strengths import StackStrengths, StrengthGroup
from ..strengths.strength import Moment
from ..weights.readers.base import read_base_weight, stored, with_numbers
from .difference import Difference

_CPU, _EXACT = torch.device("cpu"), torch.float64
_UNET = re.compile(r"(down|up|mid|input|output|middle)_blocks?[._]")


class Place(NamedTuple):
    """Which weight is changed."""

    component: str | None
    """None where a file does not say it."""
    name: str
    """Dotted, or as a file has it with `_` for `.`."""


class Changed(Protocol):
    """A weight that changes."""

    @property
    def place(self) -> Place: ...

    @property
    def kind(self) -> str: ...

    def difference(self) -> Difference:
        """Compute the change; raise FileError where a file has changed on disk."""


class Changes(Protocol):
    """All weights that change, and the files that the changes are read from."""

    @property
    def weights(self) -> Sequence[Changed]: ...

    @property
    def files(self) -> Sequence[AdapterFile]: ...

    @property
    def notes(self) -> Sequence[str]: ...

    def read_back(self, path: Path, kept: Mapping[str, Changed]) -> Mapping[str, Changed]:
        """Return what a file changes that was made of some of the weights, by the begin of the keys of each."""


@contextmanager
def reading(files: Sequence[AdapterFile]) -> Iterator[None]:
    """Read files that must be the same at the end as at the beginning."""
    with ExitStack() as opened:
        for file in files:
            opened.enter_context(file.reading())
        yield
    for file in files:
        file.verify()


@dataclass(frozen=True, slots=True)
class Acting:
    """An adapter on a weight, or on some rows of it, at a strength."""

    binding: Binding
    strength: float
    moment: Moment | None

    @property
    def rank(self) -> int | None:
        """Return how many of its ranks act; None for all."""
        schedule = self.binding.adapter.schedule_of_parts
        if schedule is None:
            return self.binding.rank
        if self.moment is None:
            text = (
                "what acts of it differs from step to step; give the moment, as Moment(step=0, steps=20, timestep=999)"
            )
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
    acting: tuple[Acting, ...]
    in_order: bool

    @property
    def place(self) -> Place:
        return Place(self.index.component, self.target.name)

    @property
    def kind(self) -> str:
        return self.target.kind

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
        return Difference(shape, tuple(pairs), rest, bias)

    def _rows(self, target: Target) -> slice:
        """Return which rows of this weight an adapter changes."""
        start = target.first - self.target.first
        return slice(start, start + target.shape[0])

    def _known(self, one: Acting, *, in_order: bool) -> Adapter:
        """Return an adapter that has what it needs of the base weight beside the weight itself."""
        binding = one.binding
        if binding.whole is not None and isinstance(binding.adapter, PartOf):
            return binding.whole.known(binding.adapter, one.rank, binding.file.private)
        adapter = binding.file.private(binding.adapter)
        return adapter if in_order else adapter.on(lambda: self._base(binding.target), one.rank)

    def _base(self, target: Target) -> Tensor:
        whole = read_base_weight(self.index.module(target.path), target.param).detach()
        return whole[target.slice].to(_CPU, _EXACT).reshape(target.shape)

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
            raise ComponentError(f"{self.place.component}.{self.target.path} has no numbers of its bias: it is on meta")
        return bias.detach()[self.target.slice].to(_CPU, _EXACT)


class StackChanges:
    """What a stack of constant strengths changes of a model.

    Raises:
        LoraError: a file cannot be read, or does not fit the model.
    """

    def __init__(self, stack: Stack, components: Mapping[str, nn.Module], moment: Moment | None = None) -> None:
        self._components = components
        indexes = [LayerIndex(name, module, alias_table()) for name, module in components.items()]
        cache = NetworkCache(len(stack))
        networks = [cache.resolved(Path(one.path), indexes, one.reading(stack.reading)) for one in stack]
        for network in networks:
            network.check_fit()
        self.reports = [network.report for network in networks]
        self.files = list(dict.fromkeys([network.file for network in networks]))
        self.notes = [f"{one.name}: {text}" for one in self.reports for text in (one.warning, *one.notes) if text]
        key, blocks, groups = PlanKey.of(stack, networks, indexes), blocks_of(indexes), dict[StrengthGroup, int]()
        layers = layer_bindings(key, blocks, groups)
        wishes = [(entry.name, entry.multiplier) for entry in stack]
        (values,) = StackStrengths(wishes, 1, False, list(groups), blocks).values(None)
        self.indexes = by_name = {index.component: index for index in indexes}
        weights = list[StackWeight]()
        self.weights: Sequence[Changed] = weights
        for component, _, bound in layers:
            acting = [Acting(one, values[one.group], moment) for one in bound if values[one.group]]
            for target, own in _by_weight(by_name[component], acting):
                weights.append(StackWeight(by_name[component], target, tuple(own), stack.in_order))

    def read_back(self, path: Path, kept: Mapping[str, Changed]) -> dict[str, Changed]:
        """Return what a file changes of the same model; names as keys where nothing was to be changed."""
        prefixes = {weight.place: prefix for prefix, weight in kept.items()}
        found = StackChanges(Stack([Entry(path)]), self._components).weights
        return {prefixes.get(one.place, one.place.name): one for one in found}


def _by_weight(index: LayerIndex, acting: Sequence[Acting]) -> Iterator[tuple[Target, list[Acting]]]:
    """Yield each changed weight of a layer with its adapters; windows by themselves where they have names and no rows
    in common.
    """
    by_param: dict[str, dict[Target, list[Acting]]] = {}
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


@dataclass(frozen=True, slots=True)
class FileWeight:
    """The weight that one layer of a file was made for."""

    file: AdapterFile
    group: Group
    place: Place
    adapter: Adapter
    shape: tuple[int, ...]
    strength: float

    @property
    def kind(self) -> str:
        return "norm" if len(self.shape) == 1 else "conv" if len(self.shape) > 2 else "linear"

    def difference(self) -> Difference:
        """Return the change at the strength."""
        adapter = self.file.private(self.adapter)
        pair, rest = adapter.as_factors(_no_base), None
        if pair is None:
            rest = adapter.delta_weight(At(_CPU, _EXACT, self.strength)).reshape(self.shape)
        pairs = () if pair is None else (Factors(pair.down, pair.up * self.strength),)
        bias = adapter.change_of_bias(None)
        return Difference(self.shape, pairs, rest, None if bias is None else bias.to(_EXACT) * self.strength)


def _no_base() -> Tensor:
    raise TypeError("what needs the base weight is refused before")


class FileChanges:
    """What one file changes of the weights that it was made for, without a model.

    Args:
        path: of the file.
        strength: gives the factor of a layer; 0 leaves it out.

    Raises:
        FileError: the file cannot be read, or some of it needs a model.
    """

    def __init__(self, path: Path, strength: Callable[[Place], float] = lambda _: 1.0) -> None:
        self.file = AdapterFile.open(path)
        self.parsed, self._reading = ParsedFile(self.file), with_sidecar(path, USUAL)
        self.files, self.notes = [self.file], list[str]()
        strange = [group for group in self.parsed.groups if group.recipe is None]
        unread = [*self.parsed.unused, *[one for group in strange for one in group.unused(group.unread)]]
        self.notes += [f"{one.key} is left out: {one.reason}" for one in unread]
        bad = self.file.not_finite([key for group in self.parsed.groups for key in group.reads])
        if bad:
            raise FileError(self.file.path, f"{min(bad)} has numbers that are NaN or infinite")
        placed = [(group, self._place(group)) for group in self.parsed.groups if group.recipe is not None]
        acting = [(group, place, strength(place)) for group, place in placed]
        self.weights: Sequence[FileWeight] = [self._weight(*one) for one in acting if one[2]]

    def _place(self, group: Group) -> Place:
        """Return which weight a layer is of, with diffusers' name of a denoiser."""
        if group.component != DENOISER:
            return Place(group.component, group.module)
        is_unet = any(_UNET.match(one.module) for one in self.parsed.groups)
        return Place("unet" if is_unet else "transformer", group.module)

    def _weight(self, group: Group, place: Place, strength: float) -> FileWeight:
        where, site = f"{group.module}: ", group.own_site
        needs = "needs the model that it is for; give it with --model (in Python, save a stack of this file alone)"
        if site is None or group.recipe is None:
            raise FileError(
                self.file.path, f"{where}its parameters do not tell the shape of the weight, so that it {needs}"
            )
        try:
            adapter = self.parsed.adapter(group, site, self._reading)
        except ValueError as error:
            raise FileError(self.file.path, f"{where}{misfit(error).detail}") from error
        if adapter.reads_base or adapter.bias_excess is not None:
            raise FileError(
                self.file.path, f"{where}a {group.recipe.name} changes the weight by its own numbers, and {needs}"
            )
        if adapter.schedule_of_parts is not None:
            raise FileError(self.file.path, f"{where}what acts of it differs from step to step, so that it {needs}")
        return FileWeight(self.file, group, place, adapter, site.shape, strength)

    def read_back(self, path: Path, kept: Mapping[str, Changed]) -> dict[str, Changed]:
        """Return what a file changes, by the begin of its keys."""
        found = dict[str, Changed]()
        for one in FileChanges(path).weights:
            prefix = key = next(iter(one.group.keys.values()))
            while prefix and prefix not in kept:
                prefix = prefix.rpartition(".")[0]
            found[prefix or key] = one
        return found
