"""Plans: the executor of each layer, and the strength table. Making a plan touches no layer.

`PlanCache` keeps plans that were in force before, with what they have in the computer's memory, so that switching back
makes nothing again. Tensors on other devices are dropped, and so is all that was computed from base weights.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

import torch
from torch import nn

from .adapters.base import Form
from .compiler import is_compiled
from .execution.dense import DenseExecutor
from .execution.hooks import Executor, move_to_layer
from .execution.low_rank import LowRankExecutor
from .execution.merged import MergedExecutor, refuse_spoiled, why_not_merged
from .naming.binding import Binding, FusedWeight
from .naming.blocks import BlockNames, Element, blocks_of
from .naming.index import LayerIndex
from .naming.network import Network
from .naming.places import Place, Target
from .placement import schemes, trace
from .placement.arena import Arena
from .placement.resident import PlacementPolicy
from .report import ActivationReport
from .stack import Entry, Stack
from .strengths.stack_strengths import StackStrengths, StrengthGroup, block_and_side, block_rules
from .strengths.strength import all_strengths
from .strengths.table import StrengthTable
from .tensors import every
from .weights.originals import Checkpoint
from .weights.readers.base import has_plain_weight

_APART = "the images of the batch have LoRA of their own"
_HALVED = "positive and negative prompts have LoRA of their own"
_SWAPPED = "its weights are swapped in and out"
_WHOLE = "a file has it as one with other layers, and its adapter depends on the weights of all of them"
_VARIES = "the strength differs from step to step"
_REGIONAL = "a LoRA is for a part of the picture"
_ZERO = "its `up` weights are all zero, as before the first step of training"


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
    apart: str
    """Why nothing is merged all the same, as one weight cannot serve several rows of a call; or empty."""
    in_order: bool
    """Whether entries act in order."""
    live: tuple[str, ...]
    """Where something is merged, why layers of the denoiser that an entry changes are not; empty where they are."""

    @classmethod
    def of(cls, stack: Stack, networks: Iterable[Network], indexes: Iterable[LayerIndex]) -> PlanKey:
        """Return the key of a stack on a model.

        Args:
            stack: what the user wants.
            networks: of its entries, in order.
            indexes: of the model's components.
        """
        indexes = tuple(indexes)
        merging, apart, live = frozenset[str](), "", tuple[str, ...]()
        if stack.mode == "merged":
            merging = frozenset(index.component for index in indexes)
            apart = _APART if stack.images > 1 else _HALVED if stack.halved else ""
            live = tuple(map(_why_live, stack.entries))
        return cls(
            tuple(networks),
            indexes,
            tuple([entry.rank for entry in stack.entries]),
            tuple([block_rules(entry.multiplier) for entry in stack.entries]),
            merging,
            apart,
            stack.in_order,
            live,
        )


def _why_live(entry: Entry) -> str:
    """Return why one weight cannot hold an entry at all steps and places; empty where it can."""
    strengths = all_strengths(entry.multiplier)
    if any(one.varies for one in strengths):
        return _VARIES
    return _REGIONAL if any(one.region is not None for one in strengths) else ""


@dataclass(eq=False)
class Plan:
    """The executor of each layer that a stack changes, and the strengths."""

    key: PlanKey
    strengths: StrengthTable
    why_live: Mapping[str, int]
    """Why layers are never merged though the stack asks for it -> how many."""
    may_come_back: bool
    """Whether it may be kept: nothing of it is worked out of weights that may change meanwhile."""
    executors: weakref.WeakKeyDictionary[nn.Module, Executor] = field(default_factory=weakref.WeakKeyDictionary)
    """Weakly, so that what lies beside a layer goes when the model does."""

    @property
    def report(self) -> ActivationReport:
        """Return what became of the stack by now."""
        merged = sum(one.merges for one in list(self.executors.values())) if self.key.merging else 0
        reports = tuple(network.report for network in self.key.networks)
        idle, partly_idle, unlimited = self.strengths.now.stack.effects()
        idle.update((i, _ZERO) for i, one in enumerate(self.key.networks) if one.changes_nothing)
        unlimited = {i: why for i, why in unlimited.items() if i not in idle}
        return ActivationReport(
            reports,
            merged,
            dict(self.why_live),
            changed=len(self.executors),
            idle=idle,
            partly_idle=partly_idle,
            unlimited=unlimited,
        )

    @property
    def places(self) -> dict[tuple[str, str], nn.Module]:
        """Return (component, path) -> the layer that must be called for its adapters to act: none that is merged."""
        indexes = {index.component: index for index in self.key.indexes}
        names = sorted({(one.component, one.target.path) for network in self.key.networks for one in network.bindings})
        found = {(name, path): indexes[name].get(path) for name, path in names}
        merged = {layer for layer, executor in list(self.executors.items()) if executor.merges}
        return {place: layer for place, layer in found.items() if layer is not None and layer not in merged}

    def write(self, stack: Stack) -> None:
        """Write the strengths, and merge again where they are in the weights; on failure all is as before.

        Raises:
            StackError: the model takes no list of block weights as long as an entry's.
        """
        former = self.strengths.now.stack
        self.strengths.write(_strengths_of(stack, former.groups, former.model))
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
            # the weight that others are merged into is looked at where they are merged again
            if executor.reads_base and not executor.merges and executor.is_stale(layer):
                executor.release(layer)

    def come_back(self, stack: Stack) -> None:
        """Give the plan the strengths of a stack as if it were made for it, after it was kept.

        Raises:
            StackError: see `write`.
            ComponentError: a layer has a weight that a LoRA could not be taken off.
        """
        refuse_spoiled(list(self.executors))
        self.strengths.begin_again()
        self.write(stack)

    @property
    def kept_bytes(self) -> int:
        """Return the bytes that stay where the plan is kept."""
        return sum([one.kept_bytes for one in list(self.executors.values()) if not one.reads_base])

    @property
    def placed_bytes(self) -> Counter[torch.device]:
        """Return the bytes that are placed on each device."""
        return sum([one.placed_bytes for one in list(self.executors.values())], Counter[torch.device]())

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
    static = policy.static  # only compiled components need memory that stays in place
    compiled = {name for name, one in components.items() if static is not None and is_compiled(one)}
    arena = Arena()
    policies = {name: replace(policy, arena=arena, static=static if name in compiled else None) for name in components}
    vector = static.vector if compiled and static is not None else None
    strengths = StrengthTable(_strengths_of(stack, tuple(groups), model), vector)
    why_live = _why_layers_live(key, components, bindings, groups) if key.merging else {}
    wholes = [one.whole for _, _, own in bindings for one in own if one.whole is not None]
    plan = Plan(key, strengths, Counter(filter(None, why_live.values())), not wholes and not key.merging)
    _choose(plan, bindings, why_live, checkpoints, policies)
    return plan


def _strengths_of(stack: Stack, groups: Sequence[StrengthGroup], model: BlockNames) -> StackStrengths:
    wishes = [(entry.name, entry.multiplier) for entry in stack.entries]
    return StackStrengths(wishes, stack.images, stack.halved, groups, model)


def _choose(
    plan: Plan,
    bindings: Iterable[tuple[str, nn.Module, Sequence[Binding]]],
    why_live: Mapping[nn.Module, str],
    checkpoints: Mapping[str, Checkpoint],
    policies: Mapping[str, PlacementPolicy],
) -> None:
    """Choose the executor of each layer of a plan; `why_live` tells why layers are not merged, empty where they are."""
    strengths, in_order = plan.strengths, plan.key.in_order
    for component, layer, own in bindings:
        why = why_live.get(layer)
        executor: Executor
        if why == "":
            executor = MergedExecutor(own, strengths, in_order=in_order, checkpoint=checkpoints.get(component))
        else:
            executor = live_executor(layer, own, strengths, policy=policies[component], in_order=in_order)
        plan.executors[layer] = executor
        if trace.decisions:
            adapters = ", ".join(f"{one.file.path.name} ({type(one.adapter).__name__})" for one in own)
            reason = f"; live: {why}" if why else ""
            trace.decision("%s.%s: %s: %s%s", component, own[0].target.path, executor.name, adapters, reason)


def _why_layers_live(
    key: PlanKey,
    components: Mapping[str, nn.Module],
    bindings: Sequence[tuple[str, nn.Module, Sequence[Binding]]],
    groups: Mapping[StrengthGroup, int],
) -> dict[nn.Module, str]:
    """Return why each layer of the components that are to be merged is not; an empty text where it is."""
    of_component = dict.fromkeys(key.merging, key.apart)
    for name in key.merging if not key.apart else ():
        if not all(schemes.stays(module) for module in every(components[name])):
            of_component[name] = _SWAPPED  # layers are lent copies of their weights: a written one is lost
    of_group = {number: key.live[group.entry] for group, number in groups.items() if group.side is not None}
    read = {layer for *_, own in bindings for one in own if one.whole is not None for layer in one.whole.layers}
    layers = {module for component in components.values() for module in component.modules()}
    owners = Counter(id(parameter) for module in layers for parameter in module._parameters.values())
    shared = frozenset(number for number, count in owners.items() if count > 1)
    found: dict[nn.Module, str] = {}
    for component, layer, own in bindings:
        if component in key.merging:
            of_layer = _WHOLE if layer in read else max(of_group.get(one.group, "") for one in own)
            found[layer] = of_component[component] or of_layer or why_not_merged(layer, own, shared) or ""
    return found


def _bindings(
    stack: Stack, key: PlanKey, model: BlockNames, groups: dict[StrengthGroup, int]
) -> list[tuple[str, nn.Module, list[Binding]]]:
    """List the adapters of each layer, with its component, in the order of the model: compiled models go by that."""
    by_component = {index.component: index for index in key.indexes}
    # by module: one that has two names still is one layer
    found: dict[nn.Module, tuple[tuple[bool, str, str], nn.Module, list[Binding]]] = {}
    wholes: dict[tuple[int, str, Place], FusedWeight] = {}
    numbered = list(zip(range(len(stack.entries)), stack.entries, key.networks, strict=True))
    if not stack.in_order:  # sums have the same bits only if they are made in the same order
        numbered.sort(key=lambda one: (str(one[1].path), one[1].rank or 0))
    for i, entry, network in numbered:
        for one in network.bindings:
            index, component, path = by_component[one.component], one.component, one.target.path
            block, side = block_and_side(component, path)
            rules: tuple[Element, ...] = ()
            if key.patterns[i]:
                names = index.names.get(path, [path])
                rules = tuple([rule for rule in key.patterns[i] if rule.suits(block, names, model)])
            group = groups.setdefault(StrengthGroup(i, component, block, side, rules), len(groups))
            whole = None
            if one.adapter.reads_whole:
                whole = wholes.setdefault((i, component, one.place), FusedWeight(one.place, index))
            binding = Binding(one.adapter, one.target, one.file, component, one.place, group, entry.rank, whole)
            layer, order = index.module(path), (component.startswith("text_encoder"), component, path)
            found.setdefault(layer, (order, layer, []))[2].append(binding)
    return [(component, layer, own) for (_, component, _), layer, own in sorted(found.values(), key=itemgetter(0))]


def live_executor(
    layer: nn.Module, bindings: Sequence[Binding], strengths: StrengthTable, *, policy: PlacementPolicy, in_order: bool
) -> Executor:
    """Choose the executor of a layer whose weight is not written to."""
    reads = prefers_dense = False
    by_rows = by_columns = True
    forms = list[Form]()
    for binding in bindings:
        adapter = binding.adapter
        form = adapter.form(binding.rank)
        if form is not None and _can_be_beside(layer, binding.target, form):
            forms.append(form)
        reads |= adapter.reads_base
        prefers_dense |= adapter.prefers_dense
        by_rows, by_columns = by_rows and adapter.by_rows, by_columns and adapter.by_columns
    in_order = in_order and len(bindings) > 1 and reads
    if in_order or len(forms) < len(bindings):
        return DenseExecutor(bindings, strengths, policy, in_order=in_order)
    by_blocks = by_rows or by_columns or len(bindings) == 1
    if prefers_dense and by_blocks and all(has_plain_weight(layer, binding.target.param) for binding in bindings):
        return DenseExecutor(bindings, strengths, policy)
    return LowRankExecutor(bindings, forms, strengths, policy)


def _can_be_beside(layer: nn.Module, target: Target, form: Form) -> bool:
    """Tell whether the parts of an adapter can act beside its layer, which then needs no effective weight."""
    if target.groups != 1 or (target.rows is not None and form.on_input):
        return False  # with some rows alone, the other outputs have the layer's input as it is
    if target.kind == "embedding":
        # not Gemma's, which scales what it looks up in a forward of its own
        return not (form.on_input or form.on_output) and type(layer).forward is nn.Embedding.forward
    return target.kind in ("linear", "conv")


_PLANS = 16
"""Even a plan without tensors has some objects for each layer."""


class PlanCache:
    """The least recently used plans that were in force before.

    Args:
        limit: bytes of the computer's memory that they may take together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._plans: dict[PlanKey, Plan] = {}  # the latest last

    def has_room(self, plan: Plan) -> bool:
        """Return whether a plan may be kept, and is not too large."""
        return plan.may_come_back and plan.kept_bytes <= self._limit

    def put(self, plan: Plan) -> None:
        """Keep a plan of which the executors have left their layers; drop the oldest ones as far as it needs room."""
        self._drop(plan.key)
        self._plans[plan.key] = plan
        while len(self._plans) > _PLANS or (len(self._plans) > 1 and self.nbytes > self._limit):
            self._drop(next(iter(self._plans)))

    def take(self, key: PlanKey) -> Plan | None:
        """Return the plan of a key, which is not kept any more; None where none is."""
        return self._plans.pop(key, None)

    def keep_only(self, is_known: Callable[[Network], bool]) -> None:
        """Drop the plans of files that are not known any more."""
        for key in list(self._plans):
            if not all(map(is_known, key.networks)):
                self._drop(key)

    def clear(self) -> None:
        """Drop all plans."""
        self.keep_only(lambda _: False)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all plans."""
        return sum([plan.kept_bytes for plan in self._plans.values()])

    @property
    def placed(self) -> Counter[torch.device]:
        """Return the bytes of all plans that are placed on each device."""
        return sum([plan.placed_bytes for plan in self._plans.values()], Counter[torch.device]())

    def leave_devices(self) -> None:
        """Keep all plans in the computer's memory alone, as a device ran out of memory."""
        for plan in self._plans.values():
            for executor in list(plan.executors.values()):
                executor.leave_device()

    def _drop(self, key: PlanKey) -> None:
        plan = self._plans.pop(key, None)
        if plan is not None:
            plan.release()
