"""The engine: it puts the adapters of a stack on the layers of a model, all at once; a failure changes nothing."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import torch
from torch import Tensor, nn
from typing_extensions import Self

from .compiler import missed_changes, misses_changes, uncompiled
from .errors import (
    ActivationError,
    ArgumentError,
    ComponentError,
    LoraError,
    NotCopied,
    RowsError,
    StackError,
    check_count,
    check_type,
    shown,
)
from .execution.hooks import HookedLayers
from .execution.merged import refuse_spoiled
from .execution.model import Model
from .execution.watch import Watch
from .files.components import TEXT_ENCODER, is_denoiser, role
from .naming.index import LayerIndex, check_named, modules_of
from .naming.network import Network, NetworkCache
from .placement import trace
from .placement.budget import Budget
from .placement.resident import PlacementPolicy, drop_stale
from .placement.static import StaticMemory, check_buckets
from .placement.storage import Storage, check_storage
from .plan import Plan, PlanCache, PlanKey, make_plan
from .report import ActivationReport, MemoryReport, Uncalled
from .stack import Stack
from .strengths.model_call import CallSettings, Rows, SchedulerClock
from .strengths.stack_strengths import block_rules
from .strengths.strength import AnyMultiplier, Clock, Moment, largest
from .tensors import every, plain_mode

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger(__name__)

_TWICE = "a layer that was made from a merged weight, as in quantizing, has them twice: load the model again"
_CPU = torch.device("cpu")


class EngineOptions(TypedDict, total=False):
    """The options of an engine; see `Engine`."""

    cache_size: int
    cache_bytes: int | None
    checkpoints: Mapping[str, Sequence[Path]] | None
    storage: Storage
    device_budget: int | None
    rank_buckets: Sequence[int]
    parked_bytes: int


class Engine(NotCopied):
    """Applies stacks of adapters to the components of one model. As a context manager it closes itself at the end.

    Components are held weakly, so an engine keeps no model alive. Any thread may call an engine; calls wait for each
    other. A thread may activate a stack while another one calls the model, if the model itself may be changed then.
    The output of that call is of neither stack alone; the calls that begin after the activation are of the new one.
    An argument of another type raises ArgumentError.

    Args:
        components: diffusers' component name (`unet`, `transformer`, `text_encoder`, `text_encoder_2`, …) -> module.
        cache_size: how many files stay open after use, counted once for each model.
        cache_bytes: how many bytes the tensors of open files may have together; None for any.
        checkpoints: component -> the safetensors files it was loaded from. A merged weight that is in them bit for bit
            is restored from there, and not from a copy in memory.
        storage: how adapters are stored on a device: `file`, in the dtype they are computed in; `bfloat16` or
            `float8`, in fewer bytes, at some cost in precision and time.
        device_budget: how many bytes of each device but the CPU adapters may take; None for what is free there, less
            1 GiB. Layers for which that is not enough are placed for each call and dropped after it.
        rank_buckets: sizes to which ranks are rounded up, so that stacks share compiled code, and without a
            `device_budget` also memory on devices, such as `RANK_BUCKETS`.
        parked_bytes: how many bytes of the computer's memory the adapters of former stacks may take.

    Raises:
        ComponentError: the components are no mapping of names to modules.
        StorageError: no such storage, or this torch has no float8; the buckets do not rise.
    """

    _copy_instead = "copy or pickle engine.stack, and activate that on an engine of the other model"
    _plan: Plan | None = None
    _lost = ""
    """What a change of the model since the activation has left without its LoRA, and why."""
    _late: Sequence[str] = ()
    """Components that were exchanged and perhaps called before that was noticed."""

    def __init__(
        self,
        components: Mapping[str, nn.Module],
        *,
        cache_size: int = 32,
        cache_bytes: int | None = None,
        checkpoints: Mapping[str, Sequence[Path]] | None = None,
        storage: Storage = "file",
        device_budget: int | None = None,
        rank_buckets: Sequence[int] = (),
        parked_bytes: int = 1 << 30,
    ) -> None:
        check_named(components, "Engine({}) or Engine.for_pipeline(pipe)")
        check_storage(storage)
        for name, number in (("cache_size", cache_size), ("parked_bytes", parked_bytes)):
            check_count(number, name)
        for name, limit in (("cache_bytes", cache_bytes), ("device_budget", device_budget)):
            check_count(0 if limit is None else limit, name)
        self._lock, self._sources = threading.RLock(), _absolute({} if checkpoints is None else checkpoints)
        self._cache, self._plans = NetworkCache(cache_size, cache_bytes), PlanCache(parked_bytes)
        self._budget, self._static = Budget(device_budget), StaticMemory()
        self._budget.leave_at_rest = self._plans.leave_devices
        self._budget.relief.append(self._static.give_up)
        static = self._static if rank_buckets and device_budget is None else None
        self._policy = PlacementPolicy(storage, self._budget, check_buckets(rank_buckets), static)
        follow = partial(_follow, weakref.ref(self))
        self._hooked, self._calls, self._watch = HookedLayers(), CallSettings(), Watch(follow, self._budget.make_way)
        self._model, self._stack = Model({}, self._sources), Stack()
        self._twice = weakref.WeakSet[nn.Module]()  # layers that other code may have made from weights with merged LoRA
        leave = ExitStack()  # in reverse
        for take_off in (self._hooked.close, partial(self._watch.end, {}), self._calls.unhook):
            leave.callback(take_off)
        # an engine may be collected while a compiled model runs, and the compiler takes all that runs then
        self._finalizer = weakref.finalize(self, uncompiled(leave.close))
        self.components = dict(components)

    @classmethod
    def for_pipeline(cls, pipeline: object, **options: Unpack[EngineOptions]) -> Self:
        """Return an engine of all modules of a diffusers pipeline, which asks its scheduler for the step of a call.

        The pipeline is held weakly. Where it gets another module later, the engine serves that one, from the next
        activation, change of a strength, or call of a module of the pipeline on. For `options` see `Engine`.

        Raises:
            ComponentError: it is no pipeline; the text shows an example.
        """
        engine, held = cls(modules_of(pipeline), **options), weakref.ref(pipeline)
        engine._model.pipeline = held
        engine.set_clock(SchedulerClock(lambda: getattr(held(), "scheduler", None)))
        return engine

    @property
    def components(self) -> dict[str, nn.Module]:
        """Return the components that are still alive."""
        return self._model.components

    @components.setter
    def components(self, components: Mapping[str, nn.Module]) -> None:
        """Serve another model, and no pipeline; the active stack is taken off the former one."""
        check_named(components, "Engine({}) or Engine.for_pipeline(pipe)")
        with self._lock:
            self._take_off(keep=False, model=Model(components, self._sources))

    @property
    def stack(self) -> Stack:
        """Return the stack in force."""
        return self._stack

    @property
    def report(self) -> ActivationReport:
        """Return which files, keys and layers act; waits for the device to tell whether outputs were finite.

        The first call of a component shows which of its layers are never called.
        """
        with self._lock:
            plan = self._plan
            if plan is None:
                return ActivationReport((), lost=_losses(self._lost, self._twice, self._model))
            gone, _ = plan.lost(self._model.present)
            why = "other code has put another layer in its place since the last activation or call"
            uncalled = tuple([Uncalled(*place, why) for place in gone])
            places = {place: layer for place, layer in plan.places.items() if place not in gone}
            uncalled += self._watch.uncalled(self.components, places)
            strong, broken = _too_strong(self._stack, plan, self._watch.not_finite()), self._watch.broken()
            lost = _losses(self._lost, self._twice, self._model)
            lost = "; ".join(filter(None, [lost, _missed(plan, self.components)]))  # compiled since the activation
            return replace(plan.report, uncalled=uncalled, too_strong=strong, lost=lost, broken=broken)

    @property
    def silent(self) -> frozenset[str]:
        """Return the denoisers, compiled ones aside, that were called while none of their layers with adapters was.

        Other code, such as a TensorRT engine, computes in place of these layers.
        """
        with self._lock:
            return frozenset() if self._plan is None else self._watch.silent(self.components, self._plan.places)

    @property
    def embeddings(self) -> tuple[dict[str, dict[str, Tensor]], ...]:
        """Return the textual inversions that came with each entry in force, as `Network.embeddings`.

        Raises:
            FileError: an entry's file cannot be read any more.
        """
        plan = self._plan
        return () if plan is None else tuple([network.embeddings for network in plan.key.networks])

    def activate(self, stack: Stack) -> ActivationReport:
        """Put `stack` in force in place of the former one. An empty stack takes everything off.

        Raises:
            ActivationError: files of entries cannot be used; it has all the causes. The former stack stays in force,
                unless the pipeline has other modules now: then none is.
            StackError: a multiplier names no component.
            ComponentError: a component was unloaded, another engine serves one of its layers, or it was compiled by a
                torch that would not notice the stack.
        """
        if not isinstance(stack, Stack):
            example = "engine.activate(Stack([Entry(path, 0.8)]))"
            raise StackError(f"activate takes a Stack, got {type(stack).__name__}; write {example}")
        with self._lock, plain_mode(_CPU):
            try:
                if not stack.entries:
                    self._take_off(keep=True)
                    return ActivationReport(())
                _look_for_twice(self._plan, self._twice, self._model)
                if (components := self._model.present) != self.components:
                    self._take_off(keep=False, model=Model(components, self._sources, self._model.pipeline))
                self._model.check_names(stack)
                self._hooked.ensure_in_force()
                indexes, former = self._model.indexes(), self._plan
                key = PlanKey.of(stack, _resolved(stack, self._cache, indexes), indexes)
                plan = former if former is not None and former.key == key else self._plans.take(key)
                if plan is None:
                    plan = make_plan(key, stack, self._model, self._policy)
                else:
                    plan.write(stack)  # first: layers are placed and merged by these numbers
                    drop_stale(dict(plan.executors), surely=plan is not former)
                if plan is not former or not self._hooked.hold(plan.executors):
                    self._swap(plan)
                self._stack, self._calls.chosen, self._lost, self._late = stack, None, "", ()
                plan.strengths.rest(None, self._calls.lock.is_held)
                self._calls.hook(self.components, plan.strengths, self._model.has_flow)
                self._watch.begin(self.components, None if plan is former else plan.places)
                plan.watch_weights()
                self._hooked.note_forwards()
                return plan.report
            finally:
                self._cache.trim(() if self._plan is None else self._plan.key.networks)
                self._plans.keep_only(self._cache.holds)

    def _swap(self, plan: Plan) -> None:
        """Put a plan on the layers, and keep the former one if there is room; on an error do neither."""
        former, reset, resting = self._plan, self._budget.reset, self._model.resting
        keep = (
            former is not None
            and former.key != plan.key
            and former.key.indexes == plan.key.indexes  # a model that has changed comes back as a new one
            and self._plans.has_room(former)
        )
        headroom = cache(self._budget.has_headroom) if keep else None  # asking a driver takes as long as a layer
        self._watch.pause()
        if former is not None:
            former.strengths.in_force = None
        try:
            if why := _missed(plan, self.components):
                raise ComponentError(why)
            self._hooked.swap(plan.executors, reset, resting, headroom)
        except BaseException:
            self._watch.begin(self.components, {} if former is None else former.places)
            if former is not None:
                former.strengths.in_force = object()
                former.write(self._stack)
                former.strengths.rewrite()  # both plans may have their strengths in the same memory
            raise
        self._plan, plan.strengths.in_force = plan, object()
        if former is not None and keep:
            self._plans.put(former)

    def _follow(self, name: str) -> None:
        """Put the stack on what has changed of the model since the activation, before a component is called."""
        plan = self._plan
        if name in self._late:  # from here on its output has the LoRA
            self._late, self._lost = (), ""
        if plan is None or not plan.is_outdated(name, self._model, self._hooked):
            return
        with self._lock, plain_mode(_CPU):
            plan, chosen, new = self._plan, self._calls.chosen, self._model.new_modules()
            if plan is None or not plan.is_outdated(name, self._model, self._hooked):
                return  # another thread has followed it
            try:
                if new or self._model.has_changed(name):
                    self.activate(self._stack)
                    _log_change(plan, self._plan)
                else:
                    self._hooked.ensure_in_force()
                    drop_stale(dict(plan.executors), surely=False)
                    plan.merge_again()
            except LoraError as error:
                self._lost = f"the model has changed, and the LoRA cannot be put on it: {error}"
                logger.warning("%s", self._lost)
            if self._plan is plan:  # or a weight that is refused would be noticed at each call
                plan.watch_weights()
                self._hooked.note_forwards()
            late = [one for one in new if one in plan.watched and not (is_denoiser(one) and role(name) == TEXT_ENCODER)]
            if late and not self._lost:
                text = f"the {', '.join(late)} of the pipeline was exchanged, and what it has computed before this call"
                self._late, self._lost = late, f"{text} of the {name} was without LoRA"
                logger.warning("%s", self._lost)
            if chosen is not None:
                self.use_image(chosen // (1 + self._stack.halved))

    @contextmanager
    def active(self, stack: Stack) -> Iterator[ActivationReport]:
        """Have `stack` in force inside a `with` block, and the former stack after it; if that fails, nothing."""
        former = self._stack
        report = self.activate(stack)
        try:
            yield report
        finally:
            try:
                self.activate(former)
            except BaseException:
                self.deactivate()
                raise

    def set_multiplier(self, index: int, multiplier: AnyMultiplier) -> None:
        """Change the strength of one entry of the active stack; writes numbers and touches no layer.

        The stack is activated again only if the multiplier names other blocks, or if it is merged.

        Args:
            index: the position of the entry in the stack, from 0.
            multiplier: a number, a dict by component, a `Strength`, `Halves` or `PerImage`.

        Raises:
            StackError: no such entry, no finite number, or another number of images than other entries have.
        """
        with self._lock, plain_mode(_CPU):
            plan, former = self._plan, self._stack
            check_type(index, int, "index", "the position of an entry in the stack, as 0")
            if plan is None or not 0 <= index < len(former):
                raise StackError(f"no entry {index}; the active stack has {len(former)}", index)
            entries = list(former)
            entries[index] = replace(entries[index], multiplier=multiplier)
            stack = replace(former, entries=entries)
            self._model.check_names(stack)
            again = bool(plan.key.why_live or self._model.new_modules()) or plan.key.rules[index] != block_rules(
                multiplier
            )
            for name in plan.watched.keys() - self._watch.called():  # the others were compared at their calls
                again = again or plan.is_outdated(name, self._model, self._hooked)
            if again:
                self.activate(stack)
                return
            plan.write(stack)
            self._stack = stack
            if (stack.images, stack.halved) != (former.images, former.halved):
                self._calls.chosen = None
                plan.strengths.rest(None, self._calls.lock.is_held)
            self._calls.hook(self.components, plan.strengths, self._model.has_flow)

    def set_moment(self, moment: Moment) -> None:
        """Set the moment of the next model calls, for strengths that depend on it; None stands for an unknown.

        Raises:
            MomentError: a strength depends on a time that the moment does not tell.
        """
        check_type(moment, Moment, "moment", "a Moment, as Moment(step=0, steps=20)")
        with self._lock, plain_mode(_CPU):
            if self._plan is not None:
                self._plan.strengths.set_moment(moment)
            self._calls.moment = moment

    def set_clock(self, clock: Clock | None) -> None:
        """Have each call of a denoiser ask for its moment.

        A call that does not tell a time that a strength depends on raises MomentError before the model computes.

        Args:
            clock: called with a function that reads the timestep off the call, which waits for the device, or gives
                None. Without a clock, calls have the moment of `set_moment`.
        """
        if clock is not None and not callable(clock):
            raise ArgumentError(f"clock must be a function that returns a Moment, or None, not {shown(clock)}")
        self._calls.clock = clock

    def set_rows(self, rows: Rows | None) -> None:
        """Set the function that tells the image and the prompt of each row of a model call.

        It is asked while images, or positive and negative prompts, have strengths of their own. A call that does not
        fit the stack raises RowsError before the model computes.

        Args:
            rows: called with the number of rows of a call of a denoiser; returns a `Row` for each, or the number of its
                image. With None, a pipeline of diffusers that makes the call tells them; for any other code they are
                whole batches one after the other: row % images.
        """
        if rows is not None and not callable(rows):
            raise ArgumentError(f"rows must be a function that returns the row of each, or None, not {shown(rows)}")
        self._calls.rows = rows

    def use_image(self, index: int | None) -> None:
        """Set the image that all rows of the next calls of text encoders are for.

        With None, as after each activation, each row is a prompt: of one image, or of as many as each prompt has.

        Raises:
            RowsError: the images of the stack differ, and it has no such image.
        """
        with self._lock, plain_mode(_CPU):
            images = self._stack.images
            check_type(index, (int, type(None)), "index", "the number of an image, from 0, or None")
            if index is not None and (index < 0 or index >= images > 1):
                raise RowsError(f"there is no image {index}; the stack has {images}")
            self._calls.chosen = None if index is None or images == 1 else index * (1 + self._stack.halved)
            if self._plan is not None:
                self._plan.strengths.rest(self._calls.chosen, self._calls.lock.is_held)

    def reattach(self) -> None:
        """Serve layers again whose class or forward other code has replaced since the activation; else do nothing."""
        with self._lock, plain_mode(_CPU):
            if self._plan is not None:
                self._hooked.ensure_in_force()

    def deactivate(self) -> None:
        """Take everything off, and keep nothing for later: the model is as if nothing had ever been applied.

        Raises:
            ComponentError: a weight still has a LoRA that could not be taken off, now or before.
        """
        with self._lock:
            self._take_off(keep=False)
            self._calls.hooks = []
            refuse_spoiled(self.components.values())

    def _take_off(self, *, keep: bool, model: Model | None = None) -> None:
        """Take everything off, and serve another model then, if there is one.

        Where `keep` is set, keep the plan for later if there is room for it.
        """
        _look_for_twice(self._plan, self._twice, self._model)
        self._stack, plan, self._plan = Stack(), self._plan, None
        self._calls.chosen, self._lost = None, ""
        if plan is not None:
            plan.strengths.in_force = None
        try:
            self._watch.end(self.components if keep else {})
            self._calls.unhook()
            if keep and plan is not None and self._plans.has_room(plan):
                self._hooked.swap({}, self._budget.reset, self._model.resting, cache(self._budget.has_headroom))
                self._plans.put(plan)
        finally:
            if not keep:
                self._plans.keep_only(lambda _: False)
                self._static.clear()
                self._cache.trim()
            self._hooked.detach()
        self._budget.reset()
        if model is not None:
            self._model = model
            self._hooked.patch(model.layer_classes())
            self._budget.forget()

    def memory(self) -> MemoryReport:
        """Count the memory that adapters take now."""
        with self._lock:
            placed, streaming, host_copies = self._budget.usage()
            in_force = Counter(placed) - self._plans.placed
            return MemoryReport(
                placed={str(device): nbytes for device, nbytes in in_force.items()},
                streaming=streaming,
                host_copies=host_copies,
                files=self._cache.nbytes,
                backups=0 if self._plan is None else self._plan.backup_bytes,
                parked=self._plans.nbytes,
                static=self._static.nbytes,
            )

    def close(self) -> None:
        """Deactivate and forget all files; the last engine that is closed takes the patches of layer classes off."""
        with self._lock:
            try:
                self.deactivate()
            finally:
                self._cache.clear()
                self._hooked.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _resolved(stack: Stack, cache: NetworkCache, indexes: Sequence[LayerIndex]) -> list[Network]:
    """Return the file of each entry on the layers of a model, or raise ActivationError with all the causes."""
    networks, failed = list[Network](), dict[int, LoraError]()
    for i, entry in enumerate(stack.entries):
        try:
            networks.append(cache.resolved(Path(entry.path), indexes, entry.reading(stack.reading)))
            networks[-1].check_fit()
        except LoraError as error:
            failed[i] = error
    if failed:
        raise ActivationError([entry.name for entry in stack.entries], failed) from next(iter(failed.values()))
    if trace.decisions:
        trace.files(network.report for network in networks)
    return networks


def _absolute(checkpoints: Mapping[str, Sequence[Path]]) -> dict[str, list[Path]]:
    """Return the files of each component with absolute paths, as the working directory may change."""
    example = "a dict of lists of paths, as {'unet': [Path('unet.safetensors')]}"
    check_type(checkpoints, Mapping, "checkpoints", example)
    for paths in checkpoints.values():
        check_type(paths, (list, tuple), "the checkpoints of a component", example)
        for path in paths:
            check_type(path, (str, PathLike), "a checkpoint", example)
    return {name: [Path(path).absolute() for path in paths] for name, paths in checkpoints.items()}


def _follow(engine: weakref.ref[Engine], name: str) -> None:
    if (alive := engine()) is not None:
        alive._follow(name)


def _log_change(before: Plan, after: Plan | None) -> None:
    """Log what a change of the model did to the LoRA on it."""
    if after is None or after is before:
        return
    pairs = zip(before.key.networks, after.key.networks, strict=True)
    lost = [f"{new.report.name}: {new.report.why()}" for old, new in pairs if new.report.hit < old.report.hit]
    text = "the model has changed since its LoRA were put on, so they were put on it again"
    logger.log(logging.WARNING if lost else logging.INFO, "%s", "; ".join([text, *lost]))


def _look_for_twice(plan: Plan | None, twice: weakref.WeakSet[nn.Module], model: Model) -> None:
    """Add the layers that other code may have made from weights with merged LoRA."""
    new = [] if plan is None else plan.made_of_merged(model.present)
    if not twice.issuperset(new):
        twice.update(new)
        logger.warning("%s", _losses("", twice, model))


def _losses(lost: str, twice: weakref.WeakSet[nn.Module], model: Model) -> str:
    """Return which changes of the model the stack could not follow, and why."""
    layers = {layer for module in model.present.values() for layer in every(module)} if twice else set()
    count = len(layers & set(twice))
    text = f"{count} layers are new since LoRA were merged into the weights of others; {_TWICE}" if count else ""
    return "; ".join(filter(None, [lost, text]))


def _missed(plan: Plan, components: Mapping[str, nn.Module]) -> str:
    """Return why compiled code of a component with adapters may lack them; empty where it has them."""
    if not misses_changes():  # first: to name the components takes as long as a layer
        return ""
    names = sorted({name for name, _ in plan.places} & components.keys())
    return next(filter(None, [missed_changes(components[name]) for name in names]), "")


def _too_strong(stack: Stack, plan: Plan, not_finite: Mapping[str, int]) -> dict[int, str]:
    """Return the positions of the entries that change most, with a sentence.

    `not_finite` has the number of the first call whose output was not, by component.
    """
    strengths = [largest(entry.multiplier) for entry in stack] if not_finite else []
    pairs = zip(strengths, plan.key.networks, strict=False)
    sizes = [strength and strength * network.largest_change for strength, network in pairs]
    return {
        i: f"the output of {name} is not finite from call {call} on, and this LoRA changes it most, at a strength"
        f" of {strengths[i]:g}"
        for name, call in not_finite.items()
        for i, size in enumerate(sizes)
        if size == max(sizes)
    }
