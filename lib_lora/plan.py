"""Plans: which executor serves which layer, and the strengths they obey. Making a plan touches no layer.

`Parking` keeps plans that were in force before, so that going back to one of them makes nothing anew. Tensors on other
devices than the CPU are dropped, and so is everything that was worked out of base weights, which others may write to.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from . import trace
from .compiler import is_compiled
from .execution.dense import Transient
from .execution.hooks import Way
from .execution.low_rank import ByTokens, Factored
from .execution.merged import Merged, refuse_spoiled, why_not_merged
from .naming.blocks import Element
from .naming.index import LayerIndex, blocks_of
from .naming.network import Network
from .naming.places import Place
from .naming.whole import Whole
from .placement import schemes
from .placement.resident import Binding, Keeping
from .report import ActivationReport
from .stack import Stack
from .strengths.evaluation import Cells, Evaluation, Sheet, patterns
from .strengths.multiplier import region_of, varies
from .strengths.table import Strengths
from .tensors import every
from .weights.base_weight import has_plain_weight
from .weights.originals import Checkpoint

_APART = "the images of the batch have LoRA of their own"
_HALVED = "positive and negative prompts have LoRA of their own"
_COMPILED = "the model is compiled, and would be anew"
_UNDECIDED = "the first call tells where merging pays"
_CHEAPER = "merging would not pay"


@dataclass(frozen=True, slots=True)
class Choice:
    """A layer of which a tuner decides whether it is merged."""

    component: str
    bindings: tuple[Binding, ...]
    live: Way
    merged: Merged


@dataclass(slots=True, eq=False)
class Choices:
    """The layers of a plan of which a tuner decides whether they are merged."""

    by_layer: weakref.WeakKeyDictionary[nn.Module, Choice]
    decided: bool = False

    def taken_back(self, ways: Mapping[nn.Module, Way]) -> dict[nn.Module, Way]:
        """Return the live ways of the layers that `ways` merges."""
        return {layer: one.live for layer, one in list(self.by_layer.items()) if ways.get(layer) is not one.live}

    def left_live(self, ways: Mapping[nn.Module, Way]) -> dict[str, int]:
        """Return why layers are live, or are to stay so -> how many."""
        live = len(self.by_layer) - len(self.taken_back(ways))
        return {_CHEAPER if self.decided else _UNDECIDED: live} if live else {}


@dataclass(frozen=True)
class How:
    """What of a stack decides the ways of its layers, beside its files."""

    merging: frozenset[str]
    """Components whose weights the stack wants merged."""
    auto: bool
    """Whether only where that pays, which the first call tells."""
    apart: str
    """Why nothing is merged all the same, as one weight cannot be that of several rows of a call; or empty."""
    in_order: bool
    """Whether entries act in order."""
    varying: frozenset[int] = frozenset()
    """Where something is merged, the entries that are not, as their strength differs from step to step."""
    regional: frozenset[int] = frozenset()
    """Likewise those that are for a part of the picture."""


@dataclass(eq=False)
class Plan:
    """Which way serves which layer."""

    networks: tuple[Network, ...]
    ranks: tuple[int | None, ...]
    how: How
    layers: weakref.WeakKeyDictionary[nn.Module, Way]
    """Weakly, so that what lies beside a layer goes when the model does."""
    sheet: Sheet
    """Whose number each strength is."""
    patterns: tuple[tuple[Element, ...], ...]
    """Of each entry, the rules that its cells were made for."""
    evaluation: Evaluation
    """Of the stack that it serves now."""
    strengths: Strengths
    choices: Choices
    """The layers that are merged where that pays."""
    why_live: Mapping[str, int]
    """Why layers are never merged though the stack asks for it -> how many."""
    indexes: tuple[LayerIndex, ...] = ()
    """Of the components, as they were when it was made."""
    may_park: bool = True
    """Whether no layers are one in a file whose adapter depends on the weights of all of them."""

    @property
    def report(self) -> ActivationReport:
        """What became of the stack, by now."""
        merged = sum(isinstance(way, Merged) for way in list(self.layers.values())) if self.how.merging else 0
        live = {**self.why_live, **self.choices.left_live(self.layers)}
        reports = tuple(network.report for network in self.networks)
        seen = self.strengths.acted, self.strengths.moments
        idle, partly_idle = self.evaluation.idle(*seen), self.evaluation.partly_idle(*seen)
        return ActivationReport(reports, merged, live, changed=len(self.layers), idle=idle, partly_idle=partly_idle)

    @property
    def places(self) -> dict[tuple[str, str], nn.Module]:
        """Component and path -> the layer that must be called for its adapters to act: none that is merged."""
        indexes = {index.component: index for index in self.indexes}
        names = sorted({(one.component, one.target.path) for network in self.networks for one in network.bound})
        found = {(name, path): indexes[name].get(path) for name, path in names}
        merged = {layer for layer, way in list(self.layers.items()) if isinstance(way, Merged)}
        return {place: layer for place, layer in found.items() if layer is not None and layer not in merged}

    def serves(self, stack: Stack, networks: Sequence[Network], components: Iterable[str]) -> bool:
        """Whether it is the plan that the stack needs, but for the strengths."""
        if self.how != how(stack, components) or self.ranks != tuple(entry.rank for entry in stack):
            return False
        if self.patterns != tuple(patterns(entry.multiplier) for entry in stack):
            return False
        return len(self.networks) == len(networks) and all(a is b for a, b in zip(self.networks, networks, strict=True))

    def is_for(self, indexes: Sequence[LayerIndex]) -> bool:
        """Whether the components are those it was made for, layer by layer, so that its layers are the right ones."""
        return len(self.indexes) == len(indexes) and all(a is b for a, b in zip(self.indexes, indexes, strict=True))

    def write(self, stack: Stack) -> None:
        """Set the strengths, and merge anew where they are in the weights; on failure all is as before.

        Raises:
            StackError: the model takes no list of block weights as long as an entry's.
        """
        before = self.strengths.values, self.strengths.source, self.strengths.spread
        evaluation = Evaluation(stack.wishes, stack.variants, self.sheet)
        self.strengths.write(evaluation.values(None), evaluation.source, evaluation.spread)
        former, self.evaluation = self.evaluation, evaluation
        if not self.how.merging:
            return
        try:
            self._merge()
        except BaseException:
            self.evaluation = former
            self.strengths.write(*before)
            self._merge()
            raise

    def forget_stale(self) -> None:
        """Drop what was worked out of base weights that have changed since."""
        for layer, way in list(self.layers.items()):
            way.forget_stale(layer)

    def resume(self, stack: Stack) -> None:
        """Have the strengths of a stack as if made for it, after having been parked.

        Raises:
            StackError: see `write`.
            ComponentError: a layer has a weight that a LoRA could not be taken off.
        """
        for layer in list(self.layers):
            refuse_spoiled(layer)
        self.strengths.timestep = None
        self.strengths.leave_devices()
        self.write(stack)

    def _merge(self) -> None:
        for layer, way in list(self.layers.items()):
            if way.at_rest:
                way.prefetch(layer)

    @property
    def parks(self) -> bool:
        """Whether it may come back into force: nothing of it is worked out of weights that may change meanwhile."""
        return self.may_park and not self.how.merging

    @property
    def parked_bytes(self) -> int:
        """Bytes of what is kept for that."""
        return sum(way.parked_bytes for way in self.layers.values())

    def release(self) -> None:
        """Drop all that is kept."""
        for layer, way in list(self.layers.items()):
            way.release(layer)

    @property
    def backup_bytes(self) -> int:
        """Bytes of the copies of weights that were merged into."""
        return sum(way.backup_bytes for way in self.layers.values() if isinstance(way, Merged))


def how(stack: Stack, components: Iterable[str]) -> How:
    """What the stack wants of the components."""
    auto = stack.mode == "auto" and (stack.calls or 0) > 1
    merging = frozenset[str]()
    if auto or stack.mode == "merged":
        merging = frozenset(name for name in components if not (auto and name.startswith("text_encoder")))
    if not merging:
        return How(merging, auto=False, apart="", in_order=stack.in_order)
    varying = frozenset(i for i, entry in enumerate(stack) if any(map(varies, entry.every)))
    apart = _APART if stack.images > 1 else _HALVED if stack.halved else ""
    regional = frozenset(i for i, entry in enumerate(stack) if any(region_of(one) is not None for one in entry.every))
    return How(merging, auto, apart, stack.in_order, varying, regional)


def make_plan(
    stack: Stack,
    networks: tuple[Network, ...],
    indexes: Sequence[LayerIndex],
    components: Mapping[str, nn.Module],
    checkpoints: Mapping[str, Checkpoint],
    keeping: Keeping,
) -> Plan:
    """Choose a way for every layer that the networks change.

    Args:
        stack: what the user wants.
        networks: of its entries, in order.
        indexes: of the components.
        components: by their names.
        checkpoints: where a component's pristine weights can be read again, as far as known.
        keeping: how the layers keep what they place.

    Raises:
        ComponentError: a layer has a weight that a LoRA could not be taken off.
    """
    model = blocks_of(indexes)
    cells = Cells(stack.wishes, indexes, model)
    bindings = list(_bindings(stack, networks, indexes, cells))
    for _, layer, _ in bindings:
        refuse_spoiled(layer)
    sheet = Sheet(cells.all, model)
    evaluation = Evaluation(stack.wishes, stack.variants, sheet)
    keepings = _keepings(keeping, components)
    steady = next((one.steady for one in keepings.values() if one.steady is not None), None)
    kept = None if steady is None else steady.vector
    strengths = Strengths(evaluation.values(None), evaluation.source, evaluation.spread, kept)
    read = {layer for _, _, own in bindings for one in own if one.whole is not None for layer in one.whole.layers}
    varying = cells.numbers(lambda cell: cell.entry in evaluation.varying and cell.denoises)
    chooser = _Chooser(stack, strengths, components, checkpoints, keepings, read, varying)
    layers: weakref.WeakKeyDictionary[nn.Module, Way] = weakref.WeakKeyDictionary()
    layers.update((layer, chooser.way(component, layer, bound)) for component, layer, bound in bindings)
    strengths.seal()
    return Plan(
        networks=networks,
        ranks=tuple(entry.rank for entry in stack),
        how=how(stack, components),
        layers=layers,
        sheet=sheet,
        patterns=tuple(patterns(entry.multiplier) for entry in stack),
        evaluation=evaluation,
        strengths=strengths,
        choices=Choices(weakref.WeakKeyDictionary(chooser.choices)),
        why_live=dict(chooser.live),
        indexes=tuple(indexes),
        may_park=not read,
    )


def _keepings(keeping: Keeping, components: Mapping[str, nn.Module]) -> dict[str, Keeping]:
    """That of each component: only those that are compiled need memory that stays where it is."""
    if keeping.steady is None:
        return dict.fromkeys(components, keeping)
    other = replace(keeping, steady=None)
    return {name: keeping if is_compiled(module) else other for name, module in components.items()}


def _bindings(
    stack: Stack, networks: Sequence[Network], indexes: Sequence[LayerIndex], cells: Cells
) -> Iterable[tuple[str, nn.Module, list[Binding]]]:
    by_component = {index.component: index for index in indexes}
    found: dict[nn.Module, tuple[str, list[Binding]]] = {}  # by module: one that has two names still is one layer
    wholes: dict[tuple[str, Place], Whole] = {}
    numbered = list(zip(range(len(stack)), stack, networks, strict=True))
    if not stack.in_order:  # sums have the same bits only if they are made in the same order
        numbered.sort(key=lambda one: (str(one[1].path), one[1].rank or 0))
    for i, entry, network in numbered:
        for one in network.bound:
            layer = by_component[one.component].module(one.target.path)
            whole = None
            if one.adapter.reads_whole:
                key = one.component, one.place
                whole = wholes[key] = wholes.get(key) or Whole(one.place, by_component[one.component])
            cell = cells.number(i, one.component, one.target)
            binding = Binding(one.adapter, one.target, network.file, cell, entry.rank, whole)
            found.setdefault(layer, (one.component, []))[1].append(binding)
    # in the order of the model, whatever that of the files, as the addresses of compiled models go by it
    every = [(component, layer, bound) for layer, (component, bound) in found.items()]
    return sorted(every, key=lambda one: (one[0].startswith("text_encoder"), one[0], one[2][0].target.path))


class _Chooser:
    """Chooses a way for one layer after the other, and remembers what became of the wish to merge."""

    def __init__(
        self,
        stack: Stack,
        strengths: Strengths,
        components: Mapping[str, nn.Module],
        checkpoints: Mapping[str, Checkpoint],
        keepings: Mapping[str, Keeping],
        read: Collection[nn.Module],
        varying: Collection[int],
    ) -> None:
        self._varying = varying
        self._keepings = keepings
        self._read = read
        self._strengths = strengths
        self._checkpoints = checkpoints
        self._how = how(stack, components)
        merging = self._how.merging
        self._shared = _shared_parameters(components.values()) if merging else frozenset()
        self._swapped = {name for name in merging if _is_swapped(components[name])}
        self._compiled = {name for name in merging if self._how.auto and is_compiled(components[name])}
        self.choices: dict[nn.Module, Choice] = {}
        self.live: Counter[str] = Counter()

    def way(self, component: str, layer: nn.Module, bindings: Sequence[Binding]) -> Way:
        """The way for one layer."""
        in_order, reason, merged = self._how.in_order, None, None
        if component in self._how.merging:
            reason = self._why_live(component, layer, bindings)
            if reason is None:
                checkpoint = self._checkpoints.get(component)
                merged = Merged(bindings, self._strengths, in_order=in_order, checkpoint=checkpoint)
                if not self._how.auto:
                    return _told(component, bindings, merged)
            else:
                self.live[reason] += 1
        live = live_way(layer, bindings, self._strengths, keeping=self._keepings[component], in_order=in_order)
        if merged is not None:
            self.choices[layer] = Choice(component, tuple(bindings), live, merged)
        return _told(component, bindings, live, reason)

    def _why_live(self, component: str, layer: nn.Module, bindings: Sequence[Binding]) -> str | None:
        """The reason why a layer of a component that is to be merged is not; None where it is."""
        if self._how.apart:
            return self._how.apart
        if component in self._swapped:
            return "its weights are swapped in and out"
        if component in self._compiled:
            return _COMPILED
        if layer in self._read:
            return "a file has it as one with other layers, and its adapter depends on the weights of all of them"
        if any(binding.cell in self._varying for binding in bindings):
            return "the strength differs from step to step"
        if any(binding.cell in self._strengths.regional for binding in bindings):
            return "a LoRA is for a part of the picture"
        return why_not_merged(layer, bindings, self._shared)


def _told(component: str, bindings: Sequence[Binding], way: Way, why_live: str | None = None) -> Way:
    if trace.decisions:
        adapters = (f"{one.file.path.name} ({type(one.adapter).__name__})" for one in bindings)
        trace.way(f"{component}.{bindings[0].target.path}", adapters, way, why_live)
    return way


def live_way(
    layer: nn.Module,
    bindings: Sequence[Binding],
    strengths: Strengths,
    *,
    keeping: Keeping | None = None,
    in_order: bool = False,
) -> Way:
    """The way for one layer whose weight is not written to."""
    in_order = in_order and len(bindings) > 1 and any(binding.adapter.reads_base for binding in bindings)
    if in_order or not all(_can_be_beside(layer, binding) for binding in bindings):
        return Transient(bindings, strengths, keeping, in_order=in_order)
    if not all(has_plain_weight(layer, binding.target.param) for binding in bindings):
        return Factored(bindings, strengths, keeping)
    adapters = [binding.adapter for binding in bindings]
    by_blocks = all(one.by_rows for one in adapters) or all(one.by_columns for one in adapters)
    if any(one.prefers_dense for one in adapters) and (by_blocks or len(bindings) == 1):
        return Transient(bindings, strengths, keeping)
    beside = Factored(bindings, strengths, keeping)
    if by_blocks and bindings[0].target.kind == "linear" and any(one.dense_for_many for one in adapters):
        return ByTokens(beside, Transient(bindings, strengths, keeping), bindings[0].target.shape[1], strengths)
    return beside


def _can_be_beside(layer: nn.Module, binding: Binding) -> bool:
    """Whether an adapter can act beside its layer, which then needs no effective weight."""
    target, form = binding.target, binding.adapter.form(binding.rank)
    if form is None or target.groups != 1:
        return False
    if target.rows is not None and form.on_input:
        return False  # the other outputs have the layer's input as it is
    if target.kind == "embedding":
        # not Gemma's, which scales what it looks up in a forward of its own
        return not (form.on_input or form.on_output) and type(layer).forward is nn.Embedding.forward
    return target.kind in ("linear", "conv")


def _is_swapped(component: nn.Module) -> bool:
    """Whether an offload scheme lends its layers copies of their weights, so that what is written is lost."""
    return not all(schemes.stays(module) for module in every(component))


def _shared_parameters(components: Iterable[nn.Module]) -> frozenset[int]:
    """Ids of the parameters that more than one layer has."""
    layers = {module for component in components for module in component.modules()}
    counts = Counter(id(parameter) for module in layers for parameter in module._parameters.values())
    return frozenset(number for number, count in counts.items() if count > 1)


_PLANS = 16
"""Even one without tensors has some objects for each layer."""


class Parking:
    """Room for plans.

    Args:
        limit: bytes of the computer's memory that they may take together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._plans: list[tuple[Plan, int]] = []  # with their bytes; the latest last

    def room_for(self, plan: Plan | None) -> int | None:
        """How many bytes a plan would keep here; None where it may not come."""
        if plan is None or not plan.parks:
            return None
        nbytes = plan.parked_bytes
        return nbytes if nbytes <= self._limit else None

    def put(self, plan: Plan, nbytes: int) -> None:
        """Keep a plan that is in force no more; others go as far as it needs their room.

        Args:
            plan: its ways are parked.
            nbytes: what they keep.
        """
        self._plans.append((plan, nbytes))
        while len(self._plans) > _PLANS or sum(nbytes for _, nbytes in self._plans) > self._limit:
            self._forget(0)

    def take(self, stack: Stack, networks: Sequence[Network], components: Iterable[str]) -> Plan | None:
        """The plan that a stack needs, but for its strengths; it is not kept any more."""
        names = tuple(components)
        for i in reversed(range(len(self._plans))):
            if self._plans[i][0].serves(stack, networks, names):
                return self._plans.pop(i)[0]
        return None

    def keep(self, known: Callable[[Network], bool]) -> None:
        """Forget the plans of files that are not known any more."""
        for i in reversed(range(len(self._plans))):
            if not all(map(known, self._plans[i][0].networks)):
                self._forget(i)

    def clear(self) -> None:
        """Forget all."""
        while self._plans:
            self._forget(-1)

    @property
    def nbytes(self) -> int:
        """What they take."""
        return sum(plan.parked_bytes for plan, _ in self._plans)

    def _forget(self, i: int) -> None:
        self._plans.pop(i)[0].release()
