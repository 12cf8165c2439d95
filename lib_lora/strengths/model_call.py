"""One call of a denoiser: its timestep, rows and latents, and the hooks that set the strength table to them.

The call's own arguments have the timestep and the number of rows. The host's clock, or `Engine.set_moment`, adds the
step and the noise; `SchedulerClock` is one. Rows of a layer inside the call follow the rows of the call.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from threading import get_ident
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ..compiler import uncompiled
from ..errors import ArgumentError, RegionError, RowsError, shown
from ..files.components import is_denoiser
from ..naming.architectures.base import (
    denoised_in,
    halves_in,
    is_image_first,
    noise_timestep,
    patch_of,
    repeats_rows,
    sigma_of,
    timestep_in,
)
from ..tensors import plain_mode
from .calls import CallArguments, CallLock, CallStrengths, OpenCall
from .outside import joined, kept, refuse_graph
from .pipeline_rows import PipelineRows, Row
from .regions import LatentGrid
from .stack_strengths import Confined, StackStrengths
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
    def prompts(self) -> int | None:
        """Return the rows of a call of a text encoder, as its first tensor has them; None where it has none."""
        return next((len(x) for x in (*self.args, *self.kwargs.values()) if isinstance(x, Tensor) and x.ndim), None)

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


class _Hook(partial[Any]):
    """A hook of one module; in a copy of the module, a pickled one too, it does nothing."""

    @property
    def __name__(self) -> str:
        text = "torch.jit.script cannot compile a model that has LoRA"
        raise AttributeError(f"{text}; call deactivate() of its engine first, or record the model by torch.jit.trace")

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


Rows: TypeAlias = Callable[[int], "Sequence[int | Row] | None"]
"""From the number of rows of a model call to the `Row` or the image of each; None for whole batches in a row."""


@dataclass
class CallSettings:
    """The host's settings of model calls: their moment, and the images and prompts of their rows."""

    clock: Clock | None = None
    moment: Moment = field(default_factory=Moment)  # without a clock
    rows: Rows | None = None
    """None asks the pipeline of diffusers that calls, and without one stands for whole batches one after the other."""
    chosen: int | None = None
    """The variant of calls of text encoders; None where each of their rows is a prompt."""
    pipeline: PipelineRows = field(default_factory=PipelineRows)
    lock: CallLock = field(default_factory=CallLock)
    hooks: list[CallHooks] = field(default_factory=list)
    _served: tuple[StrengthTable | None, bool] = None, False
    """The table that they serve, and whether they are on all components."""
    _stops: ExitStack = field(default_factory=ExitStack)

    def hook(self, components: Mapping[str, nn.Module], table: StrengthTable, has_flow: Callable[[str], bool]) -> None:
        """Have hooks on components that set a strength table to each of their calls, while calls make a difference.

        They are on denoisers, and where images have strengths of their own, on all others. Hooks that serve already
        stay, as torch compiles a model again when hooks come or go. torch calls no hook after an exception that is no
        `Exception`. `has_flow` tells whether the timesteps of a component are fractions of noise.
        """
        by_call, on_all = table.by_call, table.now.stack.images > 1
        wanted = (table, on_all) if by_call else (None, False)
        if wanted == self._served:
            return
        self._served = None, False
        with self._stops.pop_all():  # last, or a call that begins meanwhile would have no hooks
            if by_call:
                for calls in self.hooks:  # of a call that is about to begin
                    calls.table = table
                self.hooks = []
                for name, component in components.items():
                    if on_all or is_denoiser(name):
                        calls = CallHooks(name, table, self, is_denoiser(name) and has_flow(name))
                        begin, end = hook_of(component, calls.begin), hook_of(component, calls.end)
                        self._stops.callback(component.register_forward_pre_hook(begin, with_kwargs=True).remove)
                        ended = component.register_forward_hook(end, with_kwargs=True, always_call=True)
                        self._stops.callback(ended.remove)
                        self.hooks.append(calls)
        self._served = wanted

    def unhook(self) -> None:
        self._served = None, False
        self._stops.close()

    def moment_of(self, call: ModelCall, *, noise: bool, flow: bool) -> Moment:
        """Return the moment of a call; with timestep and sigma where `noise` is needed: reading waits for a device."""
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

        Variants go image by image, and where halves differ the positive one is the first. Raise RowsError where rows
        and images do not fit, or the halves are not known.
        """
        count, halves = call.rows, halves_in(call.kwargs, call.rows)
        if count is None:
            raise RowsError(f"the rows of a model call are unknown, and the stack has {images} images")
        told = self.pipeline(count, images) if self.rows is None else self.rows(count)
        if told is None:
            told = [row % images for row in range(count)]
            if count % images:
                raise RowsError(f"a model call of {count} rows holds no whole batches of the stack's {images} images")
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
            variants.append(image * (1 + halved) + (halved and (negative if halves is None else halves[i])))
            parts.append(part)
        return tuple(variants), tuple(parts)

    def prompts_of(self, call: ModelCall, name: str, now: CallStrengths) -> tuple[int, ...]:
        """Return the variant of each row of a call of a text encoder, whose rows are prompts; a single one is for all.

        An equal number of images is made from each prompt, one prompt after the other. Raise RowsError where it is
        unknown which rows are of which image, or a row is of images with unlike strengths.
        """
        groups, halves = (
            [i for i, group in enumerate(now.stack.groups) if group.component == name],
            1 + now.stack.halved,
        )
        own = [tuple([numbers[i] for i in groups]) for numbers in now.values[::halves]]  # of the positive prompts
        if self.chosen is not None or len(set(own)) == 1:
            return (self.chosen or 0,)
        images, count = len(own), call.prompts
        if not count or images % count:
            text = f"the stack has strengths of their own for {images} images in the {name}, and it is unknown which of"
            raise RowsError(f"{text} them the {count or '?'} rows of a call are for; encode them by `use_image`")
        each = images // count
        for prompt in range(count):
            if len(set(own[prompt * each : (prompt + 1) * each])) > 1:
                text = f"{each} images of one prompt have strengths of their own for the {name}, which encodes it once"
                raise RowsError(f"{text}; encode it for each of them by `use_image`")
        return tuple(range(0, images * halves, each * halves))


class SchedulerClock:
    """The clock from the scheduler of a diffusers pipeline, which `scheduler` returns, or None."""

    def __init__(self, scheduler: Callable[[], Any]) -> None:
        if not callable(scheduler):
            raise ArgumentError(f"scheduler must be a function that returns one, not {shown(scheduler)}")
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
        return self._first if now is None else min(range(len(self._values)), key=lambda i: abs(self._values[i] - now))


def repeats_per_row(layer: nn.Module, x: Tensor, rows: int, least: int, dim: int = 0) -> int:
    """Return how many rows of a layer's input make one row of the model's: windows, heads and frames follow the image.

    Raise RowsError where the input has no multiple of these rows along `dim`, or less than `least` dimensions.
    """
    if x.ndim < least or x.shape[dim] % rows:
        text = f"the images of the batch have LoRA of their own, and the input {tuple(x.shape)} of a"
        raise RowsError(f"{text} {type(layer).__name__} cannot be divided among {rows} rows")
    return x.shape[dim] // rows


@dataclass(eq=False)
class CallHooks:
    """The calls of a component, to which the table is set; after each it rests."""

    component: str
    table: StrengthTable
    settings: CallSettings
    flow: bool
    warned: bool = False
    _further: dict[int, tuple[StackStrengths, dict[str, Any]]] = field(default_factory=dict)
    """Thread -> the stack, and what the next call sets, if that is a further prediction of a call that has ended."""

    def begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> object:
        """Set the strengths of a call; a forward pre-hook.

        Raise RegionError, RowsError or MomentError where the call does not tell what strengths depend on.
        """
        if kwargs is None:  # another thread is removing the hook, in two steps
            return None
        held = kwargs if isinstance(kwargs, CallArguments) else CallArguments(kwargs)  # one for all hooks of a call
        further = self._further.pop(get_ident(), None)
        opened, is_set, call = self.settings.lock.begin(held, self.component), False, ModelCall(args, held, model)
        opened.in_force = self.table.in_force
        with plain_mode(_CPU):
            while not is_set:  # again if another thread writes another stack meanwhile
                now = self.table.now
                opened.stack, opened.outer = now.stack, now if opened.is_inner else None
                own = further[1] if further is not None and further[0] is now.stack else None
                opened.setting = self._setting(call, now, opened.outer) if own is None else own
                is_set = self.table.set_call(now.stack, **opened.setting)
        if further is None and "prediction" in opened.setting:
            refuse_graph()
            opened.again = kept(args), kept(dict(held))
        return args, held

    def _setting(self, call: ModelCall, now: CallStrengths, outer: CallStrengths | None) -> dict[str, Any]:
        """Return what a call sets in the table; `outer` has the strengths of a call around it."""
        if not is_denoiser(self.component):
            if outer is None or not outer.mixed or call.prompts != len(outer.rows):
                return {"rows": self.settings.prompts_of(call, self.component, now)}
            # a part of the model that calls it
            return {"moment": outer.moment, "rows": outer.rows, "parts": outer.parts, "latents": outer.latents}
        scheduled, stack, setting = bool(self.table.scheduled), now.stack, dict[str, Any]()
        if stack.has_regions:
            patch = patch_of(call.model) if "transformer" in self.component else 0
            denoised = denoised_in(call.args, call.kwargs)
            latents = LatentGrid.from_input(denoised, call.kwargs, patch, image_first=is_image_first(call.model))
            if latents is None and stack.has_places:
                text = f"a LoRA is for a part of the picture, and a call of this {type(call.model).__name__} does not"
                raise RegionError(f"{text} show where its tokens lie in the picture; remove the region")
            setting["latents"] = latents
        if scheduled or stack.varies:
            setting["moment"] = self.settings.moment_of(call, noise=scheduled or stack.by_noise, flow=self.flow)
        if stack.images > 1 or stack.halved or stack.has_parts:
            variants, setting["parts"] = self.settings.rows_of(call, stack.images, halved=stack.halved)
            if repeats_rows(call.kwargs) and len(set(variants)) > 1:
                text = "regions by attention repeat the rows of a call, and its images have LoRA of their own"
                raise RowsError(f"{text}; make them in batches of one")
            setting["rows"] = variants
        if stack.predictions > 1:
            setting["prediction"] = 0
        return setting

    def end(self, model: nn.Module, _: tuple[Any, ...], *rest: Any) -> Any:
        """Set the table back: to the call around this one, or to rest; a forward hook.

        Where LoRA keep to their regions, return the output of all predictions together. Raise RegionError where it
        does not show its places.
        """
        opened, output = self.settings.lock.present(self.component), rest[-1]
        if opened is None:
            return None
        with self.table.lock:  # or another thread writes another stack between the two
            now, values = self.table.now, self.table.values
        self._close(model, opened)
        if opened.again is None or output is None or now.stack is not opened.stack or now.latents is None:
            return None
        stack, others = now.stack, list[tuple[Any, list[Confined | None]]]()
        for number in range(1, stack.predictions):
            if stack.of_prediction(values, number) == now.values:
                continue  # at this moment, its strength is 0
            setting = {**opened.setting, "prediction": number}
            made = self._predict(model, opened.again, stack, setting)
            if self.table.now.stack is not stack:
                return None
            others.append((made, stack.confined_rows(number, now.rows if now.mixed else (now.shown,))))
        return joined(self.table, now.latents, output, others) if others else None

    def _predict(
        self, model: nn.Module, again: tuple[Any, Any], stack: StackStrengths, setting: dict[str, Any]
    ) -> object:
        """Call the model once more, with other strengths; all hooks of other code see a call as any other."""
        args, kwargs = kept(again)
        self._further[get_ident()] = stack, setting
        try:
            return model(*args, **kwargs)
        finally:
            self._further.pop(get_ident(), None)

    def _close(self, model: nn.Module, opened: OpenCall) -> None:
        """End a call, and let the table rest or go on with the call around it."""
        self._warn_of_lost_regions(opened, type(model).__name__)
        with plain_mode(_CPU):
            if opened.outer is None:
                self.table.rest(self.settings.chosen)
            else:
                self.table.resume(opened.outer)
        self.settings.lock.end(opened)

    def _warn_of_lost_regions(self, opened: OpenCall, name: str) -> None:
        """Warn once where no layer in a whole call of a denoiser found the picture in its tokens."""
        with self.table.lock:  # or another thread writes other regions between the two
            now, is_placed = self.table.now, self.table.is_placed
        if is_placed or self.warned or now.latents is None or not is_denoiser(self.component):
            return
        # of another stack, layers may have been passed
        if now.stack is opened.stack and opened.in_force is not None and opened.in_force is self.table.in_force:
            self.warned = True
            text = "tokens that lie in the picture as expected; LoRA for a part of it act everywhere, by its share"
            logger.warning("no layer of this %s has %s", name, text)
