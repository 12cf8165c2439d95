"""From a stack to slots on layers: all is built first and then put in force at once; a failure changes nothing."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from .errors import ActivationError, LoraError, RowsError, StackError
from .execution.hooks import HookedLayers
from .execution.merged import refuse_spoiled
from .execution.model import Model
from .execution.watch import Watch
from .naming.architectures.base import is_flow
from .naming.index import check_named, family_of_model, modules_of
from .naming.network import Network, NetworkCache
from .placement import scratch, trace
from .placement.budget import Budget
from .placement.resident import PlacementPolicy
from .placement.static import StaticMemory, check_buckets
from .placement.storage import Storage, check_storage
from .plan import Plan, PlanCache, PlanKey, make_plan
from .report import ActivationReport, MemoryReport
from .stack import Stack
from .strengths.model_call import CallSettings, Rows, SchedulerClock, hook_calls
from .strengths.stack_strengths import block_rules
from .strengths.strength import Clock, Halves, Moment, Multiplier, PerImage, largest
from .tensors import plain_mode

logger = logging.getLogger(__name__)

PARKED_BYTES = 1 << 30
_CPU = torch.device("cpu")


class Engine:
    """Applies stacks of adapters to the components of one model.

    Components are held weakly: an engine never keeps a model alive, and dropping the engine takes its adapters away.
    Calls may come from any thread; they are serialised. Activating while the model runs in another thread is as
    safe as the model itself is.

    Args:
        components: diffusers' component name (`unet`, `transformer`, `text_encoder`, `text_encoder_2`, …) -> module.
        cache_size: how many files are kept open after use, counted once for each model. A file that is kept costs
            address space, and memory only as far as the system likes to cache it.
        cache_bytes: how many bytes the tensors of these files may have together; None for any. Of both limits, files
            that are in force are never dropped.
        checkpoints: component -> the safetensors files it was loaded from. Weights that are merged into are put back
            from there where they are in it bit for bit, instead of from a copy in memory.
        storage: how adapters are stored on a device: `file`, in the dtype they are computed in; `bfloat16` or
            `float8`, in fewer bytes, at some cost in precision and time. See `storage.py`.
        device_budget: how many bytes of each device but the CPU adapters may take; None for what is free there when
            they are placed, less 1 GiB, where the device tells how much is free, else for any number. Layers for
            which that is not enough are placed for each call and dropped after it, to the same result. See `budget.py`.
        rank_buckets: sizes to which the ranks of each layer are rounded up, for models that are compiled: stacks whose
            ranks come to the same sizes on the same layers share compiled code, and on devices memory, which is kept
            until `deactivate` where there is no `device_budget`. Without sizes, nothing is rounded. See `static.py`.
        parked_bytes: how many bytes of the computer's memory adapters may take that were in force before, so that they
            are there at once when they are again. See `plan.py`.

    It is a context manager, which closes it at the end.

    Raises:
        ComponentError: the components are no mapping of names to modules.
        StorageError: no such storage, or this torch has no float8; the buckets do not rise.
    """

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
        parked_bytes: int = PARKED_BYTES,
    ) -> None:
        check_named(components, "Engine({}) or Engine.for_pipeline(pipe)")
        check_storage(storage)
        self._budget = Budget(device_budget)
        self._static = StaticMemory() if rank_buckets and device_budget is None else None
        if self._static is not None:
            self._budget.relief.append(self._static.give_up)
        self._policy = PlacementPolicy(storage, self._budget, check_buckets(rank_buckets), self._static)
        self._sources = dict(checkpoints or {})
        self._lock = threading.RLock()
        self._cache = NetworkCache(cache_size, cache_bytes)
        self._plans = PlanCache(parked_bytes)
        self._call_hooks = ExitStack()  # takes the hooks on model calls off
        self._calls = CallSettings()
        self._budget.leave_at_rest = self._plans.leave_devices
        self._hooked = HookedLayers()
        self._watch = Watch(self._budget.make_way)
        self._model = Model({}, self._sources)
        self._stack = Stack()
        self._plan: Plan | None = None
        self._finalizer = weakref.finalize(self, _clear, self._hooked, self._watch, self._call_hooks)
        self.components = dict(components)

    @classmethod
    def for_pipeline(cls, pipeline: object, **options: Any) -> Self:
        """Return an engine of all modules of a diffusers pipeline, which asks its scheduler for the step of a call.

        The pipeline is held weakly. Where another module is put into it later, set `components`.

        Args:
            pipeline: an object whose `components` are modules and others by name, and which may have a `scheduler`.
            options: see the arguments of `Engine`.

        Raises:
            ComponentError: it is no pipeline; the text says what to write.
            StorageError: see `Engine`.
        """
        engine, held = cls(modules_of(pipeline), **options), weakref.ref(pipeline)
        engine.set_clock(SchedulerClock(lambda: getattr(held(), "scheduler", None)))
        return engine

    @property
    def components(self) -> dict[str, nn.Module]:
        """Return the components that are still alive."""
        return self._model.components

    @components.setter
    def components(self, components: Mapping[str, nn.Module]) -> None:
        """Serve another model; the active stack is taken off the former one.

        Raises:
            ComponentError: it is no mapping of names to modules.
        """
        check_named(components, "Engine({}) or Engine.for_pipeline(pipe)")
        with self._lock:
            self._clear()
            self._model = Model(components, self._sources)
            self._hooked.patch(self._model.layer_classes())
            self._budget.forget()

    @property
    def stack(self) -> Stack:
        """Return the stack in force."""
        return self._stack

    @property
    def report(self) -> ActivationReport:
        """Return what became of the stack in force; some of it is known only when the model has been called.

        Which layers are never called is seen after the first call of their component. Whether the output of a denoiser
        was finite is read off its device, which waits for the calls so far.
        """
        with self._lock:
            plan = self._plan
            if plan is None:
                return ActivationReport(())
            uncalled = self._watch.uncalled(self.components, plan.places)
            return replace(plan.report, uncalled=uncalled, too_strong=self._too_strong())

    @property
    def silent(self) -> frozenset[str]:
        """Return the denoisers that were called while none of their layers with adapters was.

        Something else computes in place of their layers, such as a compiled engine. Components that torch compiles are
        never among them.
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
        return () if plan is None else tuple(network.embeddings for network in plan.key.networks)

    def activate(self, stack: Stack) -> ActivationReport:
        """Make `stack` be in force, and only it. An empty one takes everything off.

        Raises:
            ActivationError: files of entries cannot be used; it has all the causes. What was in force stays so.
            StackError: a multiplier names no component.
            ComponentError: a component was unloaded, or another engine serves one of its layers.
        """
        if not isinstance(stack, Stack):
            text = f"activate takes a Stack, got {type(stack).__name__}"
            raise StackError(f"{text}; write engine.activate(Stack([Entry(path, 0.8)]))")
        with self._lock, plain_mode(_CPU):
            try:
                if stack.entries:
                    return self._put_in_force(stack)
                self._take_off()
                return ActivationReport(())
            finally:
                self._trim()

    def _put_in_force(self, stack: Stack) -> ActivationReport:
        """Resolve the files, put the plan of their key on the layers, or leave it there, and write the strengths."""
        self._model.check_names(stack)
        self._hooked.ensure_in_force()
        indexes = self._model.indexes()
        networks, failed = list[Network](), dict[int, LoraError]()
        for i, entry in enumerate(stack.entries):
            try:
                networks.append(self._cache.resolved(Path(entry.path), indexes, stack.reading))
                networks[-1].check_fit()
            except LoraError as error:
                failed[i] = error
        if failed:
            raise ActivationError([entry.name for entry in stack.entries], failed) from next(iter(failed.values()))
        key, plan = PlanKey.of(stack, networks, indexes), self._plan
        kept = plan is not None and plan.key == key and self._hooked.hold(plan.executors)
        plan = self._rewrite(stack) if kept else self._replace(stack, key)
        if trace.decisions:
            trace.files(network.report for network in networks)
        self._stack, self._calls.chosen = stack, 0
        plan.strengths.set_call(plan.strengths.now.stack, rows=(0,))
        self._watch.begin(self.components, None if kept else plan.places)
        return plan.report

    def _rewrite(self, stack: Stack) -> Plan:
        """Give the plan in force the strengths of a stack of its key."""
        plan = self._plan
        assert plan is not None
        if trace.decisions:
            trace.decision("the same files and layers: strengths written")
        plan.drop_stale()
        self._write(stack)
        return plan

    def _replace(self, stack: Stack, key: PlanKey) -> Plan:
        """Put the plan of a key in force in place of the present one, or leave all as it was."""
        plan = self._plans.take(key)
        if trace.decisions:
            trace.decision("executors chosen again" if plan is None else "a plan that was kept is used again")
        if plan is None:
            checkpoints = self._model.checkpoints(key.indexes, () if key.apart else key.merging)
            plan = make_plan(stack, key, self.components, checkpoints, self._policy)
        else:
            plan.come_back(stack)
        former, reset, resting = self._plan, self._budget.reset, self._model.resting
        keep = former is not None and self._plans.has_room(former)
        try:
            self._hooked.swap(plan.executors, reset, resting, keep=keep)
        except BaseException:
            if former is not None and self._static is not None:
                former.strengths.rewrite()  # both had them in the same memory
            raise
        self._plan = plan
        if former is not None and keep:
            self._plans.put(former)
        self._hook_calls()
        return plan

    @contextmanager
    def active(self, stack: Stack) -> Iterator[ActivationReport]:
        """Have `stack` in force inside a `with` block, and the former stack after it.

        Where that cannot come back, nothing is in force after it.

        Raises:
            LoraError: see `activate`. An error of the block itself comes before one of what cannot come back.
        """
        former = self._stack
        report = self.activate(stack)
        try:
            yield report
        except BaseException:
            try:
                self._bring_back(former)
            except Exception as error:  # noqa: BLE001  # whatever it is, the block's own comes first
                logger.warning("the stack that was in force before the block did not come back: %s", error)
            raise
        self._bring_back(former)

    def _bring_back(self, former: Stack) -> None:
        try:
            self.activate(former)
        except BaseException:
            self.deactivate()  # the stack of a block is not to outlast it
            raise

    def set_multiplier(self, index: int, multiplier: Multiplier | Halves | PerImage) -> None:
        """Change the strength of one entry of the active stack; writes numbers and touches no layer.

        The stack is activated again only where the multiplier has other rules for blocks, or where the stack is merged
        and its images begin or cease to differ.

        Raises:
            StackError: no such entry, no finite number, or another number of images than other entries have.
        """
        with self._lock, plain_mode(_CPU):
            if self._plan is None or not 0 <= index < len(self._stack):
                raise StackError(f"no entry {index}; the active stack has {len(self._stack)}", index)
            entries = list(self._stack)
            entries[index] = replace(entries[index], multiplier=multiplier)
            stack = replace(self._stack, entries=entries)
            self._model.check_names(stack)
            key = self._plan.key
            other_rules = key.patterns[index] != block_rules(multiplier)
            if other_rules or (stack.mode != "live" and key != PlanKey.of(stack, key.networks, key.indexes)):
                self.activate(stack)
                return
            self._write(stack)
            self._stack = stack

    def set_moment(self, moment: Moment) -> None:
        """Set the moment of the next model calls, for strengths that depend on it; None stands for an unknown.

        Calls of a component named `unet`, `transformer` or `prior` say their timestep by themselves, and ask the clock
        for the rest where there is one.

        Raises:
            MomentError: the stack in force depends on what the moment does not tell.
        """
        with self._lock, plain_mode(_CPU):
            if self._plan is not None:
                self._plan.strengths.set_call(self._plan.strengths.now.stack, moment=moment)
            self._calls.moment = moment

    def set_clock(self, clock: Clock | None) -> None:
        """Have each call of a component named `unet`, `transformer` or `prior` ask when it is.

        Args:
            clock: called with a function that reads the timestep off the call, which waits for the device, or gives
                None. None is what `set_moment` said last.

        A call that does not tell what a strength depends on raises MomentError before the model computes anything.
        """
        self._calls.clock = clock

    def set_rows(self, rows: Rows | None) -> None:
        """Say how the rows of a model call belong to the images of the batch, and to their prompts.

        Args:
            rows: called with the number of rows of each call of a component named `unet`, `transformer` or `prior`,
                while the images of the stack differ, or positive and negative prompts have strengths of their own;
                gives what each row is of: a `Row`, or the image alone. None is the rule of all known hosts, whole
                batches one after the other: row % images.

        A call that does not fit the stack raises RowsError before the model computes anything.
        """
        self._calls.rows = rows

    def use_image(self, index: int) -> None:
        """Say which image the next calls of text encoders are for; 0 after each activation.

        Calls of the components that `set_rows` is about tell their rows by themselves.

        Raises:
            RowsError: the images of the stack differ, and it has no such image.
        """
        with self._lock, plain_mode(_CPU):
            images = self._stack.images
            if index < 0 or index >= images > 1:
                raise RowsError(f"there is no image {index}; the stack has {images}")
            self._calls.chosen = index * (1 + self._stack.halved) if images > 1 else 0
            if self._plan is not None:
                strengths = self._plan.strengths
                strengths.set_call(strengths.now.stack, rows=(self._calls.chosen,))

    def reattach(self) -> None:
        """Serve layers again that others have given another class or forward since the activation; else do nothing."""
        with self._lock, plain_mode(_CPU):
            if self._plan is not None:
                self._hooked.ensure_in_force()

    def deactivate(self) -> None:
        """Take everything off, and keep nothing for later: the model is as if nothing had ever been applied.

        Raises:
            ComponentError: a weight still has a LoRA that could not be taken off, now or before.
        """
        with self._lock:
            self._clear()
            refuse_spoiled(self.components.values())

    def _clear(self) -> None:
        try:
            self._take_off()
        finally:
            self._watch.stop()
            self._plans.clear()
            if self._static is not None:
                self._static.clear()

    def _take_off(self) -> None:
        self._stack, former, self._plan = Stack(), self._plan, None
        self._calls.chosen = 0
        try:
            self._watch.end(self.components)
            self._hook_calls()
            if former is not None and self._plans.has_room(former):
                self._hooked.swap({}, self._budget.reset, self._model.resting, keep=True)
                self._plans.put(former)
        finally:
            self._hooked.detach()
        scratch.free()
        self._budget.reset()
        self._trim()

    def memory(self) -> MemoryReport:
        """Count what adapters take now, and where."""
        with self._lock:
            placed, streaming, host_copies = self._budget.usage()
            in_force = Counter(placed) - self._plans.placed  # the plan cache's share stays placed
            return MemoryReport(
                placed={str(device): nbytes for device, nbytes in in_force.items()},
                streaming=streaming,
                host_copies=host_copies,
                files=self._cache.nbytes,
                backups=0 if self._plan is None else self._plan.backup_bytes,
                scratch=scratch.nbytes(),
                parked=self._plans.nbytes,
                static=0 if self._static is None else self._static.nbytes,
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

    def _trim(self) -> None:
        """Forget files beyond the limits of the cache, and the plans of those that are gone."""
        self._cache.trim(() if self._plan is None else self._plan.key.networks)
        self._plans.keep_only(self._cache.holds)

    def _write(self, stack: Stack) -> None:
        """Give the plan in force the strengths of a stack that it serves."""
        assert self._plan is not None
        strengths, rows = self._plan.strengths, (self._stack.images, self._stack.halved)
        before = strengths.by_call
        self._plan.write(stack)
        if rows != (stack.images, stack.halved):
            self._calls.chosen = 0
        if before != strengths.by_call:
            self._hook_calls()

    def _too_strong(self) -> dict[int, str]:
        """Name the entries in force that change most, where the output of a denoiser is not finite, and since when."""
        broken = self._watch.not_finite()
        if not broken or self._plan is None:
            return {}
        strengths = [largest(entry.multiplier) for entry in self._stack]
        pairs = zip(strengths, self._plan.key.networks, strict=True)
        sizes = [strength * network.largest_change if strength else 0.0 for strength, network in pairs]
        return {
            i: f"the output of {name} is not finite from call {first} on, and this LoRA changes it most, at a strength"
            f" of {strengths[i]:g}"
            for name, first in broken.items()
            for i, size in enumerate(sizes)
            if size == max(sizes)
        }

    def _hook_calls(self) -> None:
        """Put hooks on model calls as long as a strength depends on their moment, their rows or their places."""
        self._call_hooks.close()
        if self._plan is not None:
            strengths, components = self._plan.strengths, self.components

            def flow(name: str) -> bool:
                return is_flow(family_of_model(self._model.indexes()), name)

            hook_calls(components, strengths, self._calls, flow, self._call_hooks)


def _clear(hooked: HookedLayers, watch: Watch, call_hooks: ExitStack) -> None:
    """Leave nothing on a model whose engine is gone."""
    call_hooks.close()
    watch.stop()
    hooked.close()
