"""Plans: the executor of each layer, and the strength table. Making a plan touches no layer.

`PlanCache` keeps plans that were in force before, with their tensors in the computer's memory, so that nothing is made
again when one comes back. What was computed from base weights is dropped then where these have changed.
"""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from operator import itemgetter

import torch
from torch import nn

from .adapters.base import Form
from .compiler import is_compiled
from .execution.dense import DenseExecutor
from .execution.hooks import Executor, HookedLayers, move_to_layer
from .execution.low_rank import LowRankExecutor
from .execution.merged import MergedExecutor, refuse_spoiled, why_not_merged
from .execution.model import Model
from .files.components import TEXT_ENCODER, role
from .naming.binding import Binding, FusedWeight
from .naming.blocks import BlockNames, Element, blocks_of
from .naming.index import LayerIndex
from .naming.network import Network
from .naming.places import Place
from .placement import schemes, trace
from .placement.arena import Arena
from .placement.resident import PlacementPolicy
from .report import ActivationReport
from .stack import Entry, Stack
from .strengths.stack_strengths import StackStrengths, StrengthGroup, block_and_side, block_rules
from .strengths.strength import all_strengths
from .strengths.table import StrengthTable
from .tensors import every
from .weights.originals import WeightWatch
from .weights.readers.base import has_plain_weight

_BY_IMAGE = "the images of the batch have LoRA of their own"
_BY_PROMPT = "positive and negative prompts have LoRA of their own"
_SWAPPED = "its weights are swapped in and out"
_FUSED = "the file has one adapter for it and other layers, which depends on the weights of all of them"
_VARIES = "the strength differs from step to step"
_REGIONAL = "a LoRA is for a part of the picture"
_ZERO = "its `up` weights are all zero, as before the first step of training"

LayerBindings = tuple[str, nn.Module, list[Binding]]
"""The component of a layer, the layer, and its adapters in the order in which they act."""


@dataclass(frozen=True)
class PlanKey:
    """Everything except the numbers that determines how layers are computed: stacks of one key share a plan."""

    networks: tuple[Network, ...]
    indexes: tuple[LayerIndex, ...]
    """The layers of each component. A component that was rebuilt has another index."""
    ranks: tuple[int | None, ...]
    """For each entry, how many of its rank components act; None for all."""
    rules: tuple[tuple[Element, ...], ...]
    """For each entry, the blocks and layers that its block weights name, without the weights."""
    in_order: bool
    """Whether each entry acts on the weights that the entries before it left."""
    why_live: tuple[str, ...]
    """For each entry of a stack to be merged, why a weight cannot hold it; empty where it can. `()` for other stacks.

    A weight serves all rows of a call, all steps and the whole picture.
    """

    @classmethod
    def of(cls, stack: Stack, networks: Iterable[Network], indexes: Iterable[LayerIndex]) -> PlanKey:
        """Return the key of a stack, with the files of its entries in order, on a model with these layers."""
        ranks = tuple([entry.rank for entry in stack.entries])
        rules = tuple([block_rules(entry.multiplier) for entry in stack.entries])
        why_live = tuple([_why_live(stack, entry) for entry in stack.entries]) if stack.mode == "merged" else ()
        return cls(tuple(networks), tuple(indexes), ranks, rules, stack.in_order, why_live)


def _why_live(stack: Stack, entry: Entry) -> str:
    if stack.images > 1 or stack.halved:
        return _BY_IMAGE if stack.images > 1 else _BY_PROMPT
    strength = all_strengths(entry.multiplier)[0]
    return _VARIES if strength.varies else "" if (strength.region, strength.part) == (None, None) else _REGIONAL


@dataclass(eq=False)
class Plan:
    """The executor of each layer that a stack changes, and the strengths."""

    key: PlanKey
    strengths: StrengthTable
    can_rest: bool
    """Whether it may be kept while another plan is in force: no part of it depends on weights that may change."""
    executors: weakref.WeakKeyDictionary[nn.Module, Executor] = field(default_factory=weakref.WeakKeyDictionary)
    """Layers are held weakly, so that their adapters go when the model does."""
    live: Counter[str] = field(default_factory=Counter)
    """Why layers are not merged though the stack asks for it -> how many."""
    watched: dict[str, WeightWatch] = field(default_factory=dict)
    """Component -> the base weights that something was computed from, or merged into."""

    @property
    def where(self) -> str:
        """Return the components and the number of layers that it changes, for the log."""
        components = ", ".join(sorted({component for component, _ in self.bound})) or "no component"
        return f"{components} ({len(self.executors)} layers)"

    @property
    def report(self) -> ActivationReport:
        """Return which files, keys and layers act by now."""
        idle, partly_idle, unlimited = self.strengths.now.stack.effects()
        idle.update((i, _ZERO) for i, network in enumerate(self.key.networks) if network.changes_nothing)
        return ActivationReport(
            tuple([network.report for network in self.key.networks]),
            merged=sum([executor.merges for executor in self.executors.values()]) if self.key.why_live else 0,
            live=dict(self.live),
            changed=len(self.executors),
            idle=idle,
            partly_idle=partly_idle,
            unlimited={i: why for i, why in unlimited.items() if i not in idle},
        )

    @property
    def places(self) -> dict[tuple[str, str], nn.Module]:
        """Return (component, path) -> the layer that must be called for its adapters to act, which no merged one is."""
        indexes = {index.component: index for index in self.key.indexes}
        layers = {(name, path): indexes[name].layers[path]() for name, path in sorted(self.bound)}
        merged = {layer for layer, executor in list(self.executors.items()) if executor.merges}
        return {place: layer for place, layer in layers.items() if layer is not None and layer not in merged}

    def write(self, stack: Stack) -> None:
        """Write the strengths of a stack with the plan's key, and merge again if it is in force; all or nothing."""
        in_force = self.strengths.in_force is not None
        if trace.decisions and in_force:
            trace.decision("%s: the same files and layers: strengths written", self.where)
        former = self.strengths.now.stack
        self.strengths.write(_strengths_of(stack, former.groups, former.model))
        if not (in_force and self.key.why_live):
            return
        try:
            self.merge_again()
        except BaseException:
            self.strengths.write(former)
            self.merge_again()
            raise

    @property
    def bound(self) -> set[tuple[str, str]]:
        """Return component and path of each layer that the files change."""
        bound = [binding for network in self.key.networks for binding in network.bindings]
        return {(binding.component, binding.target.path) for binding in bound}

    def is_outdated(self, name: str, model: Model, hooked: HookedLayers) -> bool:
        """Tell whether a component, its forwards, a weight that the plan was computed from or the modules changed."""
        watched = self.watched.get(name)
        return bool(model.new_modules()) or (
            watched is not None and (model.has_changed(name) or watched.changed() or hooked.has_other_forwards())
        )

    def lost(self, components: Mapping[str, nn.Module]) -> tuple[list[tuple[str, str]], list[nn.Module]]:
        """Return component and path of each changed layer that has left its place, and the layers that came since."""
        places, new = list[tuple[str, str]](), list[nn.Module]()
        for index in self.key.indexes:
            name, module = index.component, components.get(index.component)
            if name in self.watched and module is not None and not index.holds(module):
                paths, layers = index.exchanged(module)
                places += [(name, path) for path in paths]
                new += layers
        return sorted(self.bound.intersection(places)), new

    def made_of_merged(self, components: Mapping[str, nn.Module]) -> list[nn.Module]:
        """Return the new layers of components where merged ones are gone, whose weights other code may have read."""
        if not self.key.why_live:
            return []
        places, new = self.lost(components)
        indexes = {index.component: index for index in self.key.indexes}
        live = {layer for layer, executor in list(self.executors.items()) if not executor.merges}
        return new if any(indexes[name].layers[path]() not in live for name, path in places) else []

    def merge_again(self) -> None:
        """Merge for the present strengths, into weights that have changed, too."""
        with ExitStack() as stack:  # which goes on where one fails
            for layer, executor in list(self.executors.items()):
                if executor.merges:
                    stack.callback(move_to_layer, executor, layer, now=True)

    def watch_weights(self) -> None:
        """Notice changes of base weights from now on."""
        weights = defaultdict[str, list[tuple[nn.Module, str]]](list)
        for layer, executor in list(self.executors.items()):
            watched = executor.merges or executor.weight_readers
            weights[executor.component] += executor.weights(layer) if watched else ()
        self.watched = {component: WeightWatch(watched) for component, watched in weights.items()}

    @property
    def kept_bytes(self) -> int:
        """Return the bytes that stay where the plan is kept."""
        accounts = [executor.account for executor in self.executors.values()]
        return sum([account.nbytes or account.host for account in accounts])  # the placed ones, else the arena's

    @property
    def placed_bytes(self) -> Counter[torch.device]:
        """Return the bytes that are placed on each device."""
        placed = Counter[torch.device]()
        for executor in self.executors.values():
            if executor.account.device is not None:
                placed[executor.account.device] += executor.account.nbytes
        return placed

    @property
    def backup_bytes(self) -> int:
        """Return the bytes of the copies of weights that were merged into."""
        return sum([one.backup_bytes for one in self.executors.values() if isinstance(one, MergedExecutor)])


def _strengths_of(stack: Stack, groups: Sequence[StrengthGroup], blocks: BlockNames) -> StackStrengths:
    wishes = [(entry.name, entry.multiplier) for entry in stack.entries]
    return StackStrengths(wishes, stack.images, stack.halved, groups, blocks)


def make_plan(key: PlanKey, stack: Stack, model: Model, policy: PlacementPolicy) -> Plan:
    """Choose an executor for every layer that a stack changes. `key` is the stack's on the model."""
    blocks, components, groups = blocks_of(key.indexes), model.components, dict[StrengthGroup, int]()
    bindings = layer_bindings(key, blocks, groups)
    refuse_spoiled([layer for _, layer, _ in bindings])
    static, arena = policy.static, Arena()  # only compiled components need memory that stays in place
    compiled = [name for name, module in components.items() if static is not None and is_compiled(module)]
    policies = {name: replace(policy, arena=arena, static=static if name in compiled else None) for name in components}
    vector = static.vector if compiled and static is not None else None
    table = StrengthTable(_strengths_of(stack, list(groups), blocks), vector)
    wholes = [binding.whole for *_, bound in bindings for binding in bound if binding.whole is not None]
    fused = {layer for whole in wholes for layer, _ in whole.weights}
    table.is_inside = model.is_called
    plan = Plan(key, table, can_rest=not key.why_live and not fused)
    reasons = _reasons(plan, components, bindings, fused) if key.why_live else {}
    checkpoints = model.checkpoints(key.indexes, components) if key.why_live else {}
    for component, layer, bound in bindings:
        why = reasons.get(layer)
        executor: Executor
        if why == "":
            executor = MergedExecutor(bound, table, in_order=key.in_order, checkpoint=checkpoints.get(component))
        else:
            executor = live_executor(layer, bound, table, policy=policies[component], in_order=key.in_order)
        plan.executors[layer] = executor
        if trace.decisions:
            adapters = ", ".join([f"{binding.file.path.name} ({type(binding.adapter).__name__})" for binding in bound])
            path, reason = bound[0].target.path, f"; live: {why}" if why else ""
            trace.decision("%s.%s: %s: %s%s", component, path, executor.name, adapters, reason)
    plan.live.update(filter(None, reasons.values()))
    if trace.decisions:
        trace.decision("%s: executors chosen", plan.where)
    return plan


def _reasons(
    plan: Plan, components: Mapping[str, nn.Module], bindings: Sequence[LayerBindings], fused: Collection[nn.Module]
) -> dict[nn.Module, str]:
    """Return why each layer is not merged; an empty text where it is."""
    swapped = {name for name, module in components.items() if any(map(_lends_copies, every(module)))}
    modules = {module for component in components.values() for module in component.modules()}
    owners = Counter(id(parameter) for module in modules for parameter in module._parameters.values())
    shared = frozenset(number for number, count in owners.items() if count > 1)
    reasons, groups = dict[nn.Module, str](), plan.strengths.now.stack.groups
    for component, layer, bound in bindings:
        of_entries = max([plan.key.why_live[groups[binding.group].entry] for binding in bound])
        of_layer = _SWAPPED if component in swapped else _FUSED if layer in fused else ""
        reasons[layer] = of_entries or of_layer or why_not_merged(layer, bound, shared) or ""
    return reasons


def _lends_copies(module: nn.Module) -> bool:
    """Tell whether its layers have copies of their weights for a call, as of an offload scheme or FSDP, with `reshard`.

    A change of a copy is lost.
    """
    return not schemes.stays(module) or hasattr(module, "reshard") or "_fsdp_wrapped_module" in module._modules


def layer_bindings(key: PlanKey, blocks: BlockNames, groups: dict[StrengthGroup, int]) -> list[LayerBindings]:
    """List the adapters of each layer in the order of the model, which compiled models depend on; number the groups."""
    indexes = {index.component: index for index in key.indexes}
    # by module: a layer that has two names is one layer
    layers: dict[nn.Module, tuple[tuple[bool, str, str], nn.Module, list[Binding]]] = {}
    fused: dict[tuple[int, str, Place], FusedWeight] = {}
    entries = list(zip(range(len(key.networks)), key.networks, key.ranks, key.rules, strict=True))
    if not key.in_order:  # sums have the same bits only if they are made in the same order
        entries.sort(key=lambda entry: (str(entry[1].file.path), entry[2] or 0))
    for i, network, rank, rules in entries:
        for binding in network.bindings:
            adapter, target, component, place = binding.adapter, binding.target, binding.component, binding.place
            index, (block, side) = indexes[component], block_and_side(component, target.path)
            names = index.names.get(target.path, [target.path]) if rules else ()
            matching = tuple([rule for rule in rules if rule.suits(block, names, blocks)]) if rules else ()
            group = groups.setdefault(StrengthGroup(i, component, block, side, matching), len(groups))
            whole = None
            if adapter.reads_whole:
                whole = fused.setdefault((i, component, place), FusedWeight(place, index))
            layer = index.layers[target.path]() or index.module(target.path)
            order = role(component) == TEXT_ENCODER, component, target.path
            bound = Binding(adapter, target, binding.file, component, place, group, rank, whole)
            layers.setdefault(layer, (order, layer, []))[2].append(bound)
    return [(order[1], layer, bound) for order, layer, bound in sorted(layers.values(), key=itemgetter(0))]


def live_executor(
    layer: nn.Module, bindings: Sequence[Binding], strengths: StrengthTable, *, policy: PlacementPolicy, in_order: bool
) -> Executor:
    """Choose the executor of a layer whose weight is not written to."""
    reads, prefers_dense, by_rows, forms = False, False, True, list[Form]()
    for binding in bindings:
        adapter = binding.adapter
        form = adapter.form(binding.rank)
        target = binding.target
        # with some rows alone, the other outputs have the layer's input as it is
        if form is not None and target.groups == 1 and (target.rows is None or not form.on_input):
            # not Gemma's, whose own forward scales the rows that it looks up
            looks_up = type(layer).forward is nn.Embedding.forward and not (form.on_input or form.on_output)
            if target.kind in ("linear", "conv") or (target.kind == "embedding" and looks_up):
                forms.append(form)
        reads |= adapter.reads_base
        prefers_dense |= adapter.prefers_dense
        by_rows &= adapter.by_rows
    in_order = in_order and len(bindings) > 1 and reads
    if in_order or len(forms) < len(bindings):
        return DenseExecutor(bindings, strengths, policy, in_order=in_order)
    by_blocks = by_rows or len(bindings) == 1
    if prefers_dense and by_blocks and all(has_plain_weight(layer, binding.target.param) for binding in bindings):
        return DenseExecutor(bindings, strengths, policy)
    return LowRankExecutor(bindings, forms, strengths, policy)


_PLANS = 16
"""How many plans are kept, as even a plan without tensors has some objects for each layer."""


class PlanCache:
    """The least recently used plans that were in force before, which may take `limit` bytes together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._plans: dict[PlanKey, Plan] = {}  # the latest last

    def has_room(self, plan: Plan) -> bool:
        """Tell whether a plan may be kept, and is not too large."""
        return plan.can_rest and plan.kept_bytes <= self._limit

    def put(self, plan: Plan) -> None:
        """Keep a plan whose executors have left their layers; drop the oldest plans if it needs their room."""
        self._plans[plan.key] = plan
        while len(self._plans) > _PLANS or (len(self._plans) > 1 and self.nbytes > self._limit):
            self._drop(next(iter(self._plans)))

    def take(self, key: PlanKey) -> Plan | None:
        """Return the plan of a key, which begins at no moment and is not kept any more; None where none is."""
        plan = self._plans.pop(key, None)
        if plan is not None:
            if trace.decisions:
                trace.decision("%s: a plan that was kept is used again", plan.where)
            refuse_spoiled(list(plan.executors))
            plan.strengths.begin_again()
        return plan

    def keep_only(self, is_known: Callable[[Network], bool]) -> None:
        """Drop the plans of files that are not known any more."""
        for key in list(self._plans):
            if not all(map(is_known, key.networks)):
                self._drop(key)

    @property
    def nbytes(self) -> int:
        return sum([plan.kept_bytes for plan in self._plans.values()])

    @property
    def placed(self) -> Counter[torch.device]:
        return sum([plan.placed_bytes for plan in self._plans.values()], Counter[torch.device]())

    def leave_devices(self) -> None:
        """Keep all plans in the computer's memory alone, as a device ran out of memory."""
        for plan in list(self._plans.values()):  # the thread that calls the model may do this while one activates
            for layer, executor in list(plan.executors.items()):
                executor.rest(layer, lambda _: False)

    def _drop(self, key: PlanKey) -> None:
        for layer, executor in list(self._plans.pop(key).executors.items()):
            executor.release(layer)
