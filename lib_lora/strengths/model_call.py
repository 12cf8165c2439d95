"""One call of a denoiser: its timestep, rows and latents, and the hooks that set the strength table to them.

The call's own arguments have the timestep and the number of rows. The host's clock, or `Engine.set_moment`, adds the
step and the noise; `SchedulerClock` is one. Rows of a layer inside the call follow the rows of the call.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from ..compiler import uncompiled
from ..errors import RegionError, RowsError
from ..files.components import is_denoiser
from ..naming.architectures._arguments import denoised_in, halves_in, patch_of, repeats_rows, timestep_in
from ..naming.architectures._noise import noise_timestep, sigma_of
from ..naming.architectures.base import is_image_first
from ..tensors import plain_mode
from .regions import LatentGrid
from .stack_strengths import StackStrengths
from .strength import Clock, Moment
from .table import StrengthTable

logger = logging.getLogger(__name__)

_CPU = torch.device("cpu")
_PURE_NOISE = 1000


@dataclass(frozen=True, slots=True)
class ModelCall:
    """The arguments of one call of a model, read as late as possible: a number on a device waits for it."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    model: object = None

    @property
    def rows(self) -> int | None:
        """Return the rows of the batch; None where the arguments do not tell."""
        denoised = denoised_in(self.args, self.kwargs)  # a tensor (rows, …), or a list of one for each image
        if isinstance(denoised, Tensor):
            return len(denoised) if denoised.ndim else None
        return len(denoised) if isinstance(denoised, list | tuple) else None

    @property
    def timestep(self) -> float | None:
        """Return the timestep, between 0 and 1000; None where there is none. Flow models call it with a fraction."""
        timestep = timestep_in(self.args, self.kwargs)
        if isinstance(timestep, Tensor):
            if timestep.numel() == 0 or timestep.is_complex():
                return None
            timestep = timestep.flatten()[0].item()  # all images of a batch are at one step
            if isinstance(timestep, float) and 0.0 < timestep < 1.0:
                timestep *= _PURE_NOISE
        return float(timestep) if isinstance(timestep, int | float) else None


class CallArguments(dict[str, Any]):
    """The keyword arguments of a call of a model. Only torch's frame of the call holds them, so they go with it."""

    __slots__ = ("__weakref__",)


class _Hook(partial[Any]):
    """A hook of one module; in a copy of the module, a pickled one too, it does nothing."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return getattr, (nullcontext(), "__exit__")  # takes anything; no name of ours, to be read without this package


def hook_of(module: nn.Module, function: Callable[..., object], *, compiled: bool = False) -> Callable[..., Any]:
    """Make a hook that calls `function` for calls of `module`, and not of its copies.

    Where `compiled`, the compiler may see it: a hook in front of a compiled model is called outside of the graph, and
    one behind it is a part of the graph.
    """
    hooked = weakref.ref(module)

    def call(called: nn.Module, *args: Any) -> object:
        # the replicas of DataParallel have the hooks of the module, and are called in its place
        is_call = hooked() is called or getattr(called, "_is_replica", False)
        return function(called, *args) if is_call else None

    return _Hook(call if compiled else uncompiled(call))


class Row(NamedTuple):
    """The image and the prompt of one row of a model call."""

    image: int
    """Of the batch, from 0."""
    negative: bool = False
    """Whether it is of the negative prompt."""
    part: int | None = None
    """Of a positive prompt in several parts, each with rows of its own, such as by AND; from 0."""


Rows: TypeAlias = Callable[[int], "Sequence[int | Row] | None"]
"""From the number of rows of a model call to the `Row` or the image of each; None for whole batches in a row."""

_PATIENCE = 0.5  # seconds until a thread that waits looks whether the other one still lives


class CallLock:
    """Lets one thread at a time call a model, as strengths that are set for a call are set for all threads.

    A call is over when its hook says so, when its arguments are gone, as after an exception without hooks, when its
    thread calls a model again, or when its thread has ended.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._call: weakref.ref[CallArguments] | None = None

    def begin(self, arguments: CallArguments) -> None:
        """Wait until no other thread calls a model."""
        thread = threading.current_thread()
        with self._changed:
            while self._thread is not None and self._thread is not thread and self._thread.is_alive():
                self._changed.wait(_PATIENCE)
            self._thread, self._call = thread, weakref.ref(arguments, self._close)

    def end(self) -> None:
        """Let other threads call a model."""
        with self._changed:
            if self._thread is threading.current_thread():
                self._close(self._call)

    def _close(self, call: weakref.ref[CallArguments] | None) -> None:
        with self._changed:
            if call is self._call:
                self._thread = self._call = None
                self._changed.notify()


@dataclass
class CallSettings:
    """The host's settings of model calls: their moment, and the images and prompts of their rows."""

    clock: Clock | None = None
    moment: Moment = field(default_factory=Moment)
    """Without a clock."""
    rows: Rows | None = None
    """None for the layout of all known hosts: whole batches one after the other."""
    chosen: int = 0
    """The variant of calls without known rows, such as calls of a text encoder."""
    lock: CallLock = field(default_factory=CallLock)

    def moment_of(self, call: ModelCall, *, noise: bool, flow: bool) -> Moment:
        """Return the moment of a call, with timestep and sigma if they are needed: reading waits for a device.

        `flow` is whether the model's timesteps are fractions of noise.
        """
        now = self.moment if self.clock is None else self.clock(lambda: call.timestep)
        if not noise:
            return now
        if now.timestep is None or self.clock is None:
            timestep = noise_timestep(call.model, call.timestep, flow=flow)
            now = now if timestep is None else replace(now, timestep=timestep, sigma=None)
        if now.sigma is None and now.timestep is not None:
            now = replace(now, sigma=sigma_of(now.timestep, flow=flow))
        return now

    def rows_of(
        self, call: ModelCall, images: int, *, halved: bool = False
    ) -> tuple[tuple[int, ...], tuple[int | None, ...]]:
        """Return the variant of the stack, and the part of the prompt, of each row; for the stack's `images`.

        Variants go image by image, and where halves differ the positive one is the first.

        Raises:
            RowsError: rows and images do not fit, or the halves are not known.
        """
        count, halves = call.rows, halves_in(call.kwargs, call.rows)
        if count is None:
            raise RowsError(f"the rows of a model call are unknown, and the stack has {images} images")
        told = None if self.rows is None else self.rows(count)
        if told is None and count % images:
            raise RowsError(f"a model call of {count} rows holds no whole batches of the stack's {images} images")
        told = [row % images for row in range(count)] if told is None else told
        if len(told) != count:
            raise RowsError(f"a model call has {count} rows, and {len(told)} were told")
        if halved and halves is None and not all(isinstance(row, Row) for row in told):
            text = "a LoRA is for the positive or the negative prompt only, but it is unknown which of the"
            raise RowsError(f"{text} {count} rows of a model call belong to which")
        variants, parts = list[int](), list[int | None]()
        for i, row in enumerate(told):
            number, negative, part = row if isinstance(row, Row) else Row(row)
            image = 0 if images == 1 else number  # all images have the same, whatever the host counts
            if not 0 <= image < images:
                raise RowsError(f"a row is said to be of image {image}; the stack has {images}")
            negative = negative if halves is None else halves[i]
            variants.append(image * (1 + halved) + (halved and negative))
            parts.append(part)
        return tuple(variants), tuple(parts)


class SchedulerClock:
    """The clock from the scheduler of a diffusers pipeline.

    Args:
        scheduler: returns the present one, or None.
    """

    def __init__(self, scheduler: Callable[[], Any]) -> None:
        self._scheduler = scheduler
        self._timesteps: Any = None  # the latest one; each pass has its own object
        self._values: Sequence[float] = ()
        self._first = 0

    def __call__(self, timestep: Callable[[], float | None]) -> Moment:
        scheduler = self._scheduler()
        timesteps, index = getattr(scheduler, "timesteps", None), getattr(scheduler, "step_index", None)
        if timesteps is None or len(timesteps) == 0:
            return Moment()
        if timesteps is not self._timesteps:
            self._timesteps, self._values = timesteps, list(map(float, timesteps.tolist()))
            begin = getattr(scheduler, "begin_index", None)  # img2img leaves out the first timesteps
            begin = index if begin is None else begin
            self._first = self._index(timestep) if begin is None else begin
        if index is None:
            index = self._first if hasattr(scheduler, "step_index") else self._index(timestep)
        order = max(int(getattr(scheduler, "order", 1)), 1)
        steps = -(-(len(self._values) - self._first) // order)
        sigmas: Any = getattr(scheduler, "sigmas", None)
        known = sigmas is not None and 0 <= index < len(sigmas)
        readable = known and not getattr(sigmas, "is_cuda", False)  # reading waits for the device
        return Moment((index - self._first) // order, steps, float(sigmas[index]) if readable else None)

    def _index(self, timestep: Callable[[], float | None]) -> int:
        """Return the index of the call's timestep; of the first one if the call tells none."""
        now = timestep()
        if now is None:
            return self._first
        return min(range(len(self._values)), key=lambda i: abs(self._values[i] - now))


def repeats_per_row(layer: nn.Module, x: Tensor, rows: int, least: int, dim: int = 0) -> int:
    """Return how many rows of a layer's input make one row of the model's: windows, heads and frames follow the image.

    Raises:
        RowsError: along `dim` the input has no multiple of these rows, or it has less than `least` dimensions.
    """
    if x.ndim < least or x.shape[dim] % rows:
        text = f"the images of the batch have LoRA of their own, and the input {tuple(x.shape)} of a"
        raise RowsError(f"{text} {type(layer).__name__} cannot be divided among {rows} rows")
    return x.shape[dim] // rows


def hook_calls(
    components: Mapping[str, nn.Module],
    table: StrengthTable,
    settings: CallSettings,
    flow: Callable[[str], bool],
    stops: ExitStack,
) -> list[CallHooks]:
    """Put hooks on the denoisers that set a strength table to each of their calls, if it depends on calls.

    `flow` tells whether the timesteps of a component are fractions of noise; `stops` gets what takes the hooks off.
    torch calls no hook after an exception that is no `Exception`.
    """
    hooked = list[CallHooks]()
    for name, component in components.items() if table.by_call else ():
        if is_denoiser(name):
            patch = patch_of(component) if name.startswith("transformer") else 0
            calls = CallHooks(type(component).__name__, is_image_first(component), table, settings, patch, flow(name))
            begin, end = hook_of(component, calls.begin), hook_of(component, calls.end)
            stops.callback(component.register_forward_pre_hook(begin, with_kwargs=True).remove)
            stops.callback(component.register_forward_hook(end, always_call=True).remove)
            hooked.append(calls)
    return hooked


@dataclass(eq=False)
class CallHooks:
    """The calls of a denoiser, to which the table is set; after each it is set to calls of text encoders."""

    name: str
    """Of the model's class; the model itself is not held."""
    image_first: bool
    table: StrengthTable
    settings: CallSettings
    patch: int
    flow: bool
    stack: StackStrengths | None = None
    """Of the call that runs."""
    warned: bool = False

    def begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> object:
        """Set the moment, the rows and the latents of a call; a forward pre-hook.

        Raises:
            RegionError: the call does not show where its tokens are.
            RowsError: its rows do not fit the stack.
            MomentError: it does not tell what a strength depends on.
        """
        if kwargs is None:  # another thread is removing the hook, in two steps
            return None
        held = kwargs if isinstance(kwargs, CallArguments) else CallArguments(kwargs)  # one for all hooks of a call
        self.settings.lock.begin(held)
        call, table, moment = ModelCall(args, held, model), self.table, None
        self.stack = stack = table.now.stack
        with plain_mode(_CPU):
            latents = self._latents(call, stack) if stack.has_regions else None
            if table.scheduled or stack.varies:
                noise = bool(table.scheduled) or stack.by_noise
                moment = self.settings.moment_of(call, noise=noise, flow=self.flow)
            variants, parts = tuple[int, ...](), tuple[int | None, ...]()
            if stack.images > 1 or stack.halved or stack.has_parts:
                variants, parts = self.settings.rows_of(call, stack.images, halved=stack.halved)
            if repeats_rows(held) and len(set(variants)) > 1:
                text = "regions by attention repeat the rows of a call, and its images have LoRA of their own"
                raise RowsError(f"{text}; make them in batches of one")
            table.set_call(stack, moment=moment, rows=variants, parts=parts, latents=latents)
        return args, held

    def _latents(self, call: ModelCall, stack: StackStrengths) -> LatentGrid | None:
        x, image_first = denoised_in(call.args, call.kwargs), self.image_first
        latents = LatentGrid.from_input(x, call.kwargs, self.patch, image_first=image_first)
        if latents is None and stack.has_places:
            text = f"a LoRA is for a part of the picture, and a call of this {self.name} does not show where"
            raise RegionError(f"{text} its tokens lie in the picture; remove the region")
        return latents

    def end(self, *_: object) -> None:
        """Set the table to calls of text encoders; a forward hook."""
        table, now = self.table, self.table.now
        is_lost = now.latents is not None and not table.is_placed
        if is_lost and now.stack is self.stack and not self.warned:  # of another stack, layers may have been passed
            self.warned = True
            logger.warning(
                "no layer of this %s has tokens that lie in the picture as expected; "
                "LoRA for a part of it act everywhere, by its share",
                self.name,
            )
        with plain_mode(_CPU):
            table.set_call(table.now.stack, rows=(self.settings.chosen,))
        self.settings.lock.end()
