"""Plans: the executor of each layer, and the strength table. Making a plan touches no layer.

`PlanCache` keeps plans that were in force before, with what they have in the computer's memory, so that switching back
makes nothing again. Tensors on other devices are dropped, and so is all that was computed from base weights.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from .adapters.base import Form
from .compiler import is_compiled
from .execution.dense import DenseExecutor
from .execution.hooks import Executor, move_to_layer
from .execution.low_rank import LowRankExecutor
from .execution.merged import MergedExecutor, refuse_spoiled, why_not_merged
from .naming.blocks import BlockNames, Element
from .naming.index import LayerIndex, blocks_of
from .naming.network import Network
from .naming.places import Place, Target
from .naming.whole import Whole
from .placement import schemes, trace
from .placement.resident import Binding, PlacementPolicy
from .report import ActivationReport
from .stack import Stack
from .strengths.stack_strengths import StackStrengths, StrengthGroup, block_rules, group_numbers
from .strengths.strength import Strength, as_strength
from .strengths.table import StrengthTable
from .tensors import every
from .weights.base_weight import has_plain_weight
from .weights.originals import Checkpoint

_APART = "the images of the batch have LoRA of their own"
_HALVED = "positive and negative prompts have LoRA of their own"
_COMPILED = "the model is compiled, and merging would compile it again"
_UNDECIDED = "the first call tells where merging pays"
_CHEAPER = "merging would not pay"


@dataclass(frozen=True, slots=True)
class Choice:
    """A layer of which a tuner decides whether it is merged."""

    component: str
    bindings: tuple[Binding, ...]
    live: Executor
    merged: MergedExecutor


@dataclass(slots=True, eq=False)
class Choices:
    """The layers of a plan of which a tuner decides whether they are merged."""

    by_layer: weakref.WeakKeyDictionary[nn.Module, Choice]
    decided: bool = False

    def taken_back(self, executors: Mapping[nn.Module, Executor]) -> dict[nn.Module, Executor]:
        """Return the live executors of the layers that `executors` merges."""
        return {layer: one.live for layer, one in list(self.by_layer.items()) if executors.get(layer) is not one.live}

    def left_live(self, executors: Mapping[nn.Module, Executor]) -> dict[str, int]:
        """Return why layers are live, or are to stay so -> how many."""
        live = len(self.by_layer) - len(self.taken_back(executors))
        return {_CHEAPER if self.decided else _UNDECIDED: live} if live else {}


@dataclass(frozen=True)
class PlanKey:
    """Everything except the numbers that determines how layers are computed: stacks of one key share a plan."""

    networks: tuple[Network, ...]
    indexes: tuple[LayerIndex, ...]
    """Of the components, as they are built."""
    ranks: tuple[int | None, ...]
    """How many rank components of each entry act."""
    patterns: tuple[tuple[Element, ...], ...]
    """Of each entry, the rules for some layers."""
    merging: frozenset[str]
    """Components whose weights the stack wants merged."""
    auto: bool
    """Whether they are merged only where that pays, which the first call tells."""
    apart: str
    """Why nothing is merged all the same, as one weight cannot serve several rows of a call; or empty."""
    in_order: bool
    """Whether entries act in order."""
    varying: frozenset[int]
    """Where something is merged, the entries that are not, as their strength differs from step to step."""
    regional: frozenset[int]
    """Likewise the entries that act on a part of the picture."""

    @classmethod
    def of(cls, stack: Stack, networks: Iterable[Network], indexes: Iterable[LayerIndex]) -> PlanKey:
        """Return the key of a stack on a model.

        Args:
            stack: what the user wants.
            networks: of its entries, in order.
            indexes: of the model's components.
        """
        indexes = tuple(indexes)
        auto = stack.mode == "auto" and (stack.calls or 0) > 1
        merging, apart = frozenset[str](), ""
        varying = regional = frozenset[int]()
        if auto or stack.mode == "merged":
            names = (index.component for index in indexes)
            merging = frozenset(name for name in names if not (auto and name.startswith("text_encoder")))
        if merging:
            apart = _APART if stack.images > 1 else _HALVED if stack.halved else ""
            varying = _entries(stack, lambda one: one.varies)
            regional = _entries(stack, lambda one: one.region is not None)
        return cls(
            tuple(networks),
            indexes,
            tuple(entry.rank for entry in stack),
            tuple(block_rules(entry.multiplier) for entry in stack),
            merging,
            auto and bool(merging),
            apart,
            stack.in_order,
            varying,
            regional,
        )


def _entries(stack: Stack, matches: Callable[[Strength], bool]) -> frozenset[int]:
    return frozenset(i for i, entry in enumerate(stack) if any(matches(as_strength(one)) for one in entry.every))


@dataclass(eq=False)
class Plan:
    """The executor of each layer that a stack changes, and the strengths."""

    key: PlanKey
    executors: weakref.WeakKeyDictionary[nn.Module, Executor]
    """Weakly, so that what lies beside a layer goes when the model does."""
    strengths: StrengthTable
    choices: Choices
    """The layers that are merged where that pays."""
    why_live: Mapping[str, int]
    """Why layers are never merged though the stack asks for it -> how many."""
    may_come_back: bool
    """Whether it may be kept: nothing of it is worked out of weights that may change meanwhile."""

    @property
    def networks(self) -> tuple[Network, ...]:
        """Return the resolved files, entry by entry."""
        return self.key.networks

    @property
    def report(self) -> ActivationReport:
        """Return what became of the stack by now."""
        merged = sum(one.merges for one in list(self.executors.values())) if self.key.merging else 0
        live = {**self.why_live, **self.choices.left_live(self.executors)}
        reports = tuple(network.report for network in self.networks)
        idle, partly_idle = self.strengths.idle()
        return ActivationReport(reports, merged, live, changed=len(self.executors), idle=idle, partly_idle=partly_idle)

    @property
    def places(self) -> dict[tuple[str, str], nn.Module]:
        """Return (component, path) -> the layer that must be called for its adapters to act: none that is merged."""
        indexes = {index.component: index for index in self.key.indexes}
        names = sorted({(one.component, one.target.path) for network in self.networks for one in network.bound})
        found = {(name, path): indexes[name].get(path) for name, path in names}
        merged = {layer for layer, executor in list(self.executors.items()) if executor.merges}
        return {place: layer for place, layer in found.items() if layer is not None and layer not in merged}

    def write(self, stack: Stack) -> None:
        """Write the strengths, and merge again where they are in the weights; on failure all is as before.

        Raises:
            StackError: the model takes no list of block weights as long as an entry's.
        """
        former = self.strengths.stack_strengths
        self.strengths.write(former.for_stack(stack.wishes, stack.variants))
        if not self.key.merging:
            return
        try:
            self._merge()
        except BaseException:
            self.strengths.write(former)
            self._merge()
            raise

    def _merge(self) -> None:
        for layer, executor in list(self.executors.items()):
            if executor.merges:
                move_to_layer(executor, layer, now=True)

    def drop_stale(self) -> None:
        """Drop what was computed from base weights that have changed since."""
        for layer, executor in list(self.executors.items()):
            if executor.reads_base and executor.is_stale(layer):
                executor.release(layer)

    def come_back(self, stack: Stack) -> None:
        """Give the plan the strengths of a stack as if it were made for it, after it was kept.

        Raises:
            StackError: see `write`.
            ComponentError: a layer has a weight that a LoRA could not be taken off.
        """
        refuse_spoiled(list(self.executors))
        self.strengths.timestep = None
        self.strengths.drop_devices()
        self.write(stack)

    @property
    def host_bytes(self) -> int:
        """Return the bytes that stay in the computer's memory where the plan is kept."""
        return sum([one.host_bytes for one in list(self.executors.values()) if not one.reads_base])

    @property
    def backup_bytes(self) -> int:
        """Return the bytes of the copies of weights that were merged into."""
        return sum(one.backup_bytes for one in list(self.executors.values()) if isinstance(one, MergedExecutor))

    def release(self) -> None:
        """Drop all that is kept."""
        for layer, executor in list(self.executors.items()):
            executor.release(layer)


def make_plan(
    stack: Stack,
    key: PlanKey,
    components: Mapping[str, nn.Module],
    checkpoints: Mapping[str, Checkpoint],
    policy: PlacementPolicy,
) -> Plan:
    """Choose an executor for every layer that the networks change.

    Args:
        stack: what the user wants.
        key: of the stack on the model.
        components: by their names.
        checkpoints: where a component's pristine weights can be read again, as far as known.
        policy: how the layers keep what they place.

    Raises:
        ComponentError: a layer has a weight that a LoRA could not be taken off.
    """
    model = blocks_of(key.indexes)
    groups: dict[StrengthGroup, int] = {}
    bindings = _bindings(stack, key, model, groups)
    refuse_spoiled([layer for _, layer, _ in bindings])
    stack_strengths = StackStrengths(stack.wishes, stack.variants, tuple(groups), model)
    policies = _policies(policy, components)
    static = next((one.static for one in policies.values() if one.static is not None), None)
    kept = None if static is None else static.vector
    strengths = StrengthTable(stack_strengths, kept)
    read = {layer for _, _, own in bindings for one in own if one.whole is not None for layer in one.whole.layers}
    varying = stack_strengths.varying_groups if key.merging else frozenset[int]()
    chooser = _Chooser(key, strengths, components, checkpoints, policies, read, varying)
    executors: weakref.WeakKeyDictionary[nn.Module, Executor] = weakref.WeakKeyDictionary()
    for component, layer, bound in bindings:
        executors[layer] = chooser.executor(component, layer, bound)
    return Plan(
        key=key,
        executors=executors,
        strengths=strengths,
        choices=Choices(weakref.WeakKeyDictionary(chooser.choices)),
        why_live=dict(chooser.live),
        may_come_back=not read and not key.merging,
    )


def _policies(policy: PlacementPolicy, components: Mapping[str, nn.Module]) -> dict[str, PlacementPolicy]:
    """Return the policy of each component: only a compiled one needs memory that stays in place."""
    if policy.static is None:
        return dict.fromkeys(components, policy)
    other = replace(policy, static=None)
    return {name: policy if is_compiled(module) else other for name, module in components.items()}


def _bindings(
    stack: Stack, key: PlanKey, model: BlockNames, groups: dict[StrengthGroup, int]
) -> list[tuple[str, nn.Module, list[Binding]]]:
    """List the adapters of each layer, with its component, in the order of the model: compiled models go by that."""
    by_component = {index.component: index for index in key.indexes}
    found: dict[nn.Module, tuple[str, list[Binding]]] = {}  # by module: one that has two names still is one layer
    wholes: dict[tuple[str, Place], Whole] = {}
    numbered = list(zip(range(len(stack)), stack, key.networks, strict=True))
    if not stack.in_order:  # sums have the same bits only if they are made in the same order
        numbered.sort(key=lambda one: (str(one[1].path), one[1].rank or 0))
    for i, entry, network in numbered:
        layers = [(one.component, one.target) for one in network.bound]
        numbers = group_numbers(i, key.patterns[i], layers, by_component, model, groups)
        for one, group in zip(network.bound, numbers, strict=True):
            layer = by_component[one.component].module(one.target.path)
            whole = None
            if one.adapter.reads_whole:
                place = one.component, one.place
                whole = wholes[place] = wholes.get(place) or Whole(one.place, by_component[one.component])
            binding = Binding(one.adapter, one.target, network.file, group, entry.rank, whole)
            found.setdefault(layer, (one.component, []))[1].append(binding)
    every = [  # with its number, so that no two layers are compared
        (component.startswith("text_encoder"), component, bound[0].target.path, i, layer, bound)
        for i, (layer, (component, bound)) in enumerate(found.items())
    ]
    return [(component, layer, bound) for _, component, _, _, layer, bound in sorted(every)]


class _Chooser:
    """Chooses the executor of one layer after the other, and remembers why layers are not merged."""

    def __init__(
        self,
        key: PlanKey,
        strengths: StrengthTable,
        components: Mapping[str, nn.Module],
        checkpoints: Mapping[str, Checkpoint],
        policies: Mapping[str, PlacementPolicy],
        read: Collection[nn.Module],
        varying: Collection[int],
    ) -> None:
        self._varying = varying
        self._policies = policies
        self._read = read
        self._strengths = strengths
        self._checkpoints = checkpoints
        self._key = key
        merging = key.merging
        self._shared = _shared_parameters(components.values()) if merging else frozenset()
        self._swapped = {name for name in merging if _is_swapped(components[name])}
        self._compiled = {name for name in merging if key.auto and is_compiled(components[name])}
        self.choices: dict[nn.Module, Choice] = {}
        self.live: Counter[str] = Counter()

    def executor(self, component: str, layer: nn.Module, bindings: Sequence[Binding]) -> Executor:
        """Choose the executor of a layer."""
        in_order, reason, merged = self._key.in_order, None, None
        if component in self._key.merging:
            reason = self._why_live(component, layer, bindings)
            if reason is None:
                checkpoint = self._checkpoints.get(component)
                merged = MergedExecutor(bindings, self._strengths, in_order=in_order, checkpoint=checkpoint)
                if not self._key.auto:
                    if trace.decisions:
                        _log(component, bindings, merged)
                    return merged
            else:
                self.live[reason] += 1
        live = live_executor(layer, bindings, self._strengths, policy=self._policies[component], in_order=in_order)
        if merged is not None:
            self.choices[layer] = Choice(component, tuple(bindings), live, merged)
        if trace.decisions:
            _log(component, bindings, live, reason)
        return live

    def _why_live(self, component: str, layer: nn.Module, bindings: Sequence[Binding]) -> str | None:
        """Return why a layer of a component that is to be merged is not; None where it is."""
        if self._key.apart:
            return self._key.apart
        if component in self._swapped:
            return "its weights are swapped in and out"
        if component in self._compiled:
            return _COMPILED
        if layer in self._read:
            return "a file has it as one with other layers, and its adapter depends on the weights of all of them"
        if any(binding.group in self._varying for binding in bindings):
            return "the strength differs from step to step"
        if any(binding.group in self._strengths.regional_groups for binding in bindings):
            return "a LoRA is for a part of the picture"
        return why_not_merged(layer, bindings, self._shared)


def _log(component: str, bindings: Sequence[Binding], executor: Executor, why_live: str | None = None) -> None:
    adapters = ", ".join(f"{one.file.path.name} ({type(one.adapter).__name__})" for one in bindings)
    reason = f"; live: {why_live}" if why_live else ""
    trace.decision("%s.%s: %s: %s%s", component, bindings[0].target.path, executor.name, adapters, reason)


def live_executor(
    layer: nn.Module, bindings: Sequence[Binding], strengths: StrengthTable, *, policy: PlacementPolicy, in_order: bool
) -> Executor:
    """Choose the executor of a layer whose weight is not written to."""
    reads = prefers_dense = dense_for_many = False
    by_rows = by_columns = True
    forms, biased = list[Form](), list[bool]()
    for binding in bindings:
        adapter = binding.adapter
        form = adapter.form(binding.rank)
        biased.append(adapter.has_bias)
        if form is not None and _can_be_beside(layer, binding.target, form):
            forms.append(form)
        reads |= adapter.reads_base
        prefers_dense |= adapter.prefers_dense
        dense_for_many |= adapter.dense_for_many
        by_rows, by_columns = by_rows and adapter.by_rows, by_columns and adapter.by_columns
    in_order = in_order and len(bindings) > 1 and reads
    if in_order or len(forms) < len(bindings):
        return DenseExecutor(bindings, strengths, policy, in_order=in_order)
    by_blocks = by_rows or by_columns
    dense_is_free = (prefers_dense or dense_for_many) and all(
        has_plain_weight(layer, binding.target.param) for binding in bindings
    )
    if prefers_dense and dense_is_free and (by_blocks or len(bindings) == 1):
        return DenseExecutor(bindings, strengths, policy)
    many = dense_for_many and dense_is_free and by_blocks and bindings[0].target.kind == "linear"
    return LowRankExecutor(bindings, forms, biased, strengths, policy, dense_for_many=many)


def _can_be_beside(layer: nn.Module, target: Target, form: Form) -> bool:
    """Tell whether the parts of an adapter can act beside its layer, which then needs no effective weight."""
    if target.groups != 1 or (target.rows is not None and form.on_input):
        return False  # with some rows alone, the other outputs have the layer's input as it is
    if target.kind == "embedding":
        # not Gemma's, which scales what it looks up in a forward of its own
        return not (form.on_input or form.on_output) and type(layer).forward is nn.Embedding.forward
    return target.kind in ("linear", "conv")


def _is_swapped(component: nn.Module) -> bool:
    """Tell whether an offload scheme lends its layers copies of their weights, so that a written weight is lost."""
    return not all(schemes.stays(module) for module in every(component))


def _shared_parameters(components: Iterable[nn.Module]) -> frozenset[int]:
    """Return the ids of the parameters that more than one layer has."""
    layers = {module for component in components for module in component.modules()}
    counts = Counter(id(parameter) for module in layers for parameter in module._parameters.values())
    return frozenset(number for number, count in counts.items() if count > 1)


_PLANS = 16
"""Even a plan without tensors has some objects for each layer."""


class PlanCache:
    """The least recently used plans that were in force before.

    Args:
        limit: bytes of the computer's memory that they may take together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._plans: dict[PlanKey, tuple[Plan, int]] = {}  # with their bytes; the latest last

    def room_for(self, plan: Plan | None) -> int | None:
        """Return the bytes that a plan would take here; None where it may not be kept, or is too large."""
        if plan is None or not plan.may_come_back:
            return None
        nbytes = plan.host_bytes
        return nbytes if nbytes <= self._limit else None

    def put(self, plan: Plan, nbytes: int) -> None:
        """Keep a plan that is no longer in force; drop the oldest ones as far as it needs their room.

        Args:
            plan: its executors have left their layers.
            nbytes: as `room_for` returned before they left.
        """
        if plan.key in self._plans:
            self._drop(plan.key)
        self._plans[plan.key] = plan, nbytes
        while len(self._plans) > _PLANS or sum(nbytes for _, nbytes in self._plans.values()) > self._limit:
            self._drop(next(iter(self._plans)))

    def take(self, key: PlanKey) -> Plan | None:
        """Return the plan of a key, which is not kept any more; None where none is."""
        found = self._plans.pop(key, None)
        return None if found is None else found[0]

    def keep_only(self, is_known: Callable[[Network], bool]) -> None:
        """Drop the plans of files that are not known any more."""
        for key in list(self._plans):
            if not all(map(is_known, key.networks)):
                self._drop(key)

    def clear(self) -> None:
        """Drop all plans."""
        for key in list(self._plans):
            self._drop(key)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all plans."""
        return sum(plan.host_bytes for plan, _ in self._plans.values())

    def _drop(self, key: PlanKey) -> None:
        self._plans.pop(key)[0].release()
