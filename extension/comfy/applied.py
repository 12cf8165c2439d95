"""A stack on a clone of a model of ComfyUI: in force while that clone is sampled or encodes, and at no other time.

Clones share one module, so an engine belongs to the module, and a stack to the clone. Wrappers and the class of a CLIP
object go along when other nodes clone the clone. Source: comfy/model_patcher.py, comfy/patcher_extension.py,
comfy/samplers.py and comfy/sd.py of Comfy-Org/ComfyUI.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import Tensor, nn

from lib_lora import (
    ActivationError,
    ActivationReport,
    Engine,
    Entry,
    LoraError,
    Moment,
    NetworkReport,
    NoMatchError,
    Row,
    Stack,
    model_blocks,
)

from .entries import for_text_encoders
from .plugins import checked

KEY = "remora"
"""Of Remora's wrappers, callbacks and attachments."""
_ENCODERS = ("clip_l", "clip_g")
"""Of a text encoder, in diffusers' order; others follow."""
_engines: WeakKeyDictionary[nn.Module, Engine] = WeakKeyDictionary()
_in_use: WeakSet[Engine] = WeakSet()
"""Of models that are being loaded for a stack, are sampled or encode: a clone that makes way then frees nothing."""
_applied: WeakSet[AppliedStack] = WeakSet()
"""Of all clones that are there."""


def engine_of(module: nn.Module, components: Mapping[str, nn.Module]) -> Engine:
    """Return the engine of a model, which lives as long as the model."""
    if module not in _engines:
        _engines[module] = Engine(components)
    return _engines[module]


def denoiser_of(patcher: Any) -> dict[str, nn.Module]:
    """Return the denoiser of a MODEL by its name in diffusers.

    A clone that ran last may have another module in its place still, as nodes that compile a model do.
    """
    denoiser = patcher.get_model_object("diffusion_model")
    denoiser = getattr(denoiser, "_orig_mod", denoiser)  # of a compiled module
    return {"unet" if hasattr(denoiser, "input_blocks") else "transformer": denoiser}


def text_encoders_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the text encoders of a CLIP by their names in diffusers."""
    parts: dict[str, nn.Module] = {}
    for name, part in model.named_children():
        transformer = getattr(part, "transformer", None)
        if isinstance(transformer, nn.Module):
            parts[name] = transformer
    names = [name for name in _ENCODERS if name in parts]
    names += [name for name in parts if name not in names]
    first = 2 if names[:1] == ["clip_g"] else 1  # SDXL's refiner has the second one alone
    numbered = {name: number for number, name in enumerate(names, first)}
    return {
        f"text_encoder_{number}" if number > 1 else "text_encoder": parts[name] for name, number in numbered.items()
    }


class AppliedStack:
    """The stack of one clone. Clones of the clone share it."""

    def __init__(self, engine: Engine, entries: Sequence[Entry]) -> None:
        self.engine, self.entries, self.report = engine, tuple(entries), ActivationReport(())
        self.elsewhere: dict[int, LoraError] = {}
        """Positions of entries of which nothing fits this part of the model, and why."""
        self._is_active, self._hooks = False, _hooks_of(None)
        self._check()
        _applied.add(self)

    def _check(self) -> None:
        """Activate the stack once, so that a file at fault is told on the node that names it."""
        parts = self.engine.components.values()
        checked.update(parts)
        try:
            with self.engine.active(Stack(self.entries)) as self.report:
                return
        except ActivationError as error:
            if not all(isinstance(cause, NoMatchError) for cause in error.causes.values()):
                raise
            self.elsewhere = dict(error.causes)
            with self.engine.active(self.stack) as self.report:
                return
        finally:
            checked.difference_update(parts)

    @property
    def stack(self) -> Stack:
        """Return the entries that fit this part of the model."""
        return Stack([entry for i, entry in enumerate(self.entries) if i not in self.elsewhere])

    def __deepcopy__(self, memo: object) -> Any:
        raise LoraError("a model with LoRA by Remora cannot be copied; put Remora Apply after the node that copies it")

    @contextmanager
    def active(self, patcher: Any) -> Iterator[None]:
        """Have the stack in force inside a `with` block; note what it did, also after an interruption.

        Args:
            patcher: ComfyUI's, of the clone that runs.
        """
        if self._is_active:
            yield
            return
        self._is_active, self._hooks = True, _hooks_of(patcher)
        try:
            with _using(self.engine), self.engine.active(self.stack):
                try:
                    yield
                finally:
                    self.report = self.engine.report
        finally:
            self._is_active = False

    def follow(self, patcher: Any) -> None:
        """Read weights again that hooks of the patcher have changed since the last call; torch counts no such write."""
        hooks = _hooks_of(patcher)
        if hooks != self._hooks:
            self._hooks = hooks
            self.engine.activate(self.stack)

    @contextmanager
    def encoding(self, clip: Any) -> Iterator[None]:
        """Have the stack in force while a CLIP encodes, which loads it and merges its hooks inside of that."""
        model = clip.cond_stage_model
        encode = model.encode_token_weights

        @wraps(encode)
        def encode_token_weights(*args: Any, **kwargs: Any) -> Any:
            self.follow(clip.patcher)
            return encode(*args, **kwargs)

        with self.active(clip.patcher), _replaced(model, "encode_token_weights", encode_token_weights):
            yield

    @contextmanager
    def loading(self, model: Any) -> Iterator[None]:
        """Count the tensors of the stack as memory that a run needs, while ComfyUI decides how much it loads.

        Args:
            model: ComfyUI's module of the whole model, whose method `memory_required` gives its estimate.
        """
        nbytes, estimate = sum(entry.nbytes for entry in self.report.entries), model.memory_required

        @wraps(estimate)
        def memory_required(*args: Any, **kwargs: Any) -> Any:
            return estimate(*args, **kwargs) + nbytes

        with _replaced(model, "memory_required", memory_required), _using(self.engine):
            yield

    def summary(self) -> list[str]:
        """Return a line for each entry, without keys that are for the other part of the model."""
        entries = list[NetworkReport]()
        for entry in self.report.entries:
            entries.append(replace(entry, unused=tuple(one for one in entry.unused if one.cause != "no_component")))
        lines = replace(self.report, entries=tuple(entries)).summary().splitlines()
        return lines + [f"{self.entries[i].name}: nothing in it is for this part of the model" for i in self.elsewhere]

    def free(self, *_: object) -> None:
        """Give up the memory of former stacks, as ComfyUI unloads the model or loads a clone without a stack."""
        if self.engine not in _in_use:
            self.engine.deactivate()


def applied_files() -> set[Path]:
    """Return the files that clones need when they are sampled again."""
    return {Path(entry.path) for stack in _applied for entry in stack.entries}


def _hooks_of(patcher: Any) -> object:
    """Tell which hooks of conditioning are merged into the weights, and how strong they are.

    ComfyUI merges them between two calls, and takes them out, through `.data`. Clones share the backup.
    """
    hooks = getattr(getattr(patcher, "current_hooks", None), "hooks", ())  # guiders of other packs may name no patcher
    return len(getattr(patcher, "hook_backup", ())), [(hook, hook.strength) for hook in hooks]


@contextmanager
def _replaced(model: Any, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """Have a function in the place of a method, which another pack may have replaced, too."""
    former, is_replaced = getattr(model, name), name in vars(model)
    setattr(model, name, method)
    try:
        yield
    finally:
        if is_replaced:
            setattr(model, name, former)
        else:
            delattr(model, name)


@contextmanager
def _using(engine: Engine) -> Iterator[None]:
    _in_use.add(engine)
    try:
        yield
    finally:
        _in_use.discard(engine)


class SamplerCalls:
    """The model calls of one run of a sampler: their step, noise and rows."""

    def __init__(self, sigmas: Tensor, timesteps: Tensor, sampler: CodeType, guider: Any) -> None:
        """Read the schedule once, before anything is queued on a device.

        Args:
            sigmas: of the steps, and the one after the last step.
            timesteps: of the steps, as the model takes them: from 0 to 1000, or fractions of the noise.
            sampler: the function that calls the sampler.
            guider: ComfyUI's, which has the conditioning of each prompt by its name.
        """
        self._sampler = sampler
        conds: Mapping[str, Iterable[Mapping[str, Any]] | None] = getattr(guider, "conds", None) or {}
        self._prompts = {
            one["uuid"]: (name, part)
            for name, parts in conds.items()
            for part, one in enumerate(parts or ())
            if "uuid" in one
        }
        self._sigmas, numbers = sigmas.tolist(), timesteps.tolist()
        scale = 1000.0 if numbers and max(numbers) <= 1 else 1.0
        self._timesteps = [scale * number for number in numbers]
        self._now: Mapping[str, Any] = {}
        self._read: tuple[Tensor | None, int] = None, 0

    def begin(self, options: Mapping[str, Any]) -> None:
        """Note the `transformer_options` of a call that begins."""
        self._now = options

    def moment(self, _: Callable[[], float | None]) -> Moment:
        """Return the moment of the step; asked only if a strength needs it."""
        steps = len(self._timesteps)
        if not steps:
            return Moment(steps=1)
        step = step_of_loop(steps, self._sampler)
        step = self._step_of_noise() if step is None else step
        return Moment(step, steps, self._sigmas[step], self._timesteps[step])

    def _step_of_noise(self) -> int:
        """Return the step by the noise of the call; reads it off the device, once for all parts of a call."""
        sigmas = self._now.get("sigmas")
        if sigmas is None:
            return 0
        if sigmas is not self._read[0]:
            sigma = float(sigmas.flatten()[0])
            self._read = sigmas, sum(1 for one in self._sigmas[1:-1] if one >= sigma * (1 - 1e-6))
        return self._read[1]

    def rows(self, count: int) -> list[Row] | None:
        """Return the image and the prompt of each row: a batch for each conditioning, one after the other."""
        chunks = self._now.get("cond_or_uncond")
        if not chunks or count % len(chunks):
            return None
        # guiders with three prompts number them in other orders, so the name of a prompt says more than its number
        prompts = [self._prompts.get(uuid) for uuid in self._now.get("uuids") or [None] * len(chunks)]
        return [
            Row(image, chunk == 1)
            if prompt is None
            else Row(image, prompt[0] != "positive", prompt[1] if prompt[0] == "positive" else None)
            for chunk, prompt in zip(chunks, prompts, strict=True)
            for image in range(count // len(chunks))
        ]


def step_of_loop(steps: int, outermost: CodeType) -> int | None:
    """Return the step of the sampler that calls, off the counter of its loop; None where there is no such loop.

    Samplers of k-diffusion count in `i` over `sigmas`. Their second call of a step may have the noise of the next step,
    so the noise does not tell the step, and reading it would wait for the device.

    Args:
        steps: of the schedule.
        outermost: the function at which the search ends.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not outermost:
        if {"i", "sigmas"} <= {*frame.f_code.co_varnames, *frame.f_code.co_cellvars}:
            i, sigmas = frame.f_locals.get("i"), frame.f_locals.get("sigmas")
            if isinstance(i, int) and isinstance(sigmas, Tensor) and len(sigmas) == steps + 1 and 0 <= i < steps:
                return i
        frame = frame.f_back
    return None


def apply_to_model(patcher: Any, entries: Sequence[Entry], wrappers: Any, callbacks: Any) -> tuple[Any, AppliedStack]:
    """Return a clone of a MODEL with a stack, in place of the one it may have.

    Args:
        patcher: ComfyUI's MODEL.
        entries: of the stack.
        wrappers: `comfy.patcher_extension.WrappersMP`.
        callbacks: `comfy.patcher_extension.CallbacksMP`.
    """
    components = denoiser_of(patcher)
    applied = AppliedStack(engine_of(next(iter(components.values())), components), entries)
    clone, engine = patcher.clone(), applied.engine
    current: list[SamplerCalls] = []

    def sample(executor: Any, guider: Any, sigmas: Tensor, *args: Any, **kwargs: Any) -> Any:
        timesteps = patcher.model.model_sampling.timestep(sigmas[:-1])
        calls = SamplerCalls(sigmas, timesteps, sample.__code__, guider)
        current.append(calls)
        try:
            with applied.active(patcher.model.current_patcher):
                engine.set_clock(calls.moment)
                engine.set_rows(calls.rows)
                return executor(guider, sigmas, *args, **kwargs)
        finally:
            current.pop()

    def apply_model(executor: Any, *args: Any, **kwargs: Any) -> Any:
        options = kwargs.get("transformer_options", args[5] if len(args) > 5 else {})
        if current:
            current[-1].begin(options)
            applied.follow(patcher.model.current_patcher)
        return executor(*args, **kwargs)

    of_loading = (wrappers.PREPARE_SAMPLING, _loading(applied))
    for kind, wrapper in (of_loading, (wrappers.SAMPLER_SAMPLE, sample), (wrappers.APPLY_MODEL, apply_model)):
        clone.remove_wrappers_with_key(kind, KEY)
        clone.add_wrapper_with_key(kind, KEY, wrapper)
    _free_with(clone, applied, callbacks)
    clone.set_attachments(KEY, applied)
    return clone, applied


def _loading(applied: AppliedStack) -> Callable[..., Any]:
    """Return a wrapper of the function that loads a model for a run; no method, as ComfyUI deep-copies wrappers."""

    def prepare(executor: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        with applied.loading(model.model):
            return executor(model, *args, **kwargs)

    return prepare


def _free_with(patcher: Any, applied: AppliedStack, callbacks: Any) -> None:
    """Free the memory of a stack as ComfyUI unloads its clone, in place of the one that the clone had."""
    patcher.remove_callbacks_with_key(callbacks.ON_DETACH, KEY)
    patcher.add_callback_with_key(callbacks.ON_DETACH, KEY, applied.free)


def apply_to_clip(
    clip: Any, entries: Sequence[Entry], denoiser: Mapping[str, nn.Module], callbacks: Any
) -> tuple[Any, AppliedStack]:
    """Return a clone of a CLIP with a stack, in place of the one it may have; block weights are of this denoiser."""
    model, blocks = clip.cond_stage_model, model_blocks(denoiser)
    encoders = text_encoders_of(model)
    entries = [for_text_encoders(entry, encoders, blocks) for entry in entries]
    applied, clone = AppliedStack(engine_of(model, encoders), entries), clip.clone()
    former = getattr(type(clip), "remora_base", None) or type(clip)
    clone.__class__ = _with_stack(former)
    clone.remora_applied = applied
    _free_with(clone.patcher, applied, callbacks)
    return clone, applied


def applied_of(part: Any) -> AppliedStack | None:
    """Return the stack of a MODEL or CLIP."""
    own = getattr(part, "remora_applied", None)
    if own is None and hasattr(part, "get_attachment"):
        own = part.get_attachment(KEY)
    return own if isinstance(own, AppliedStack) else None


def _with_stack(base: Any) -> Any:
    """Return a subclass of a CLIP class that encodes with the stack of its instance."""

    class ClipWithStack(base):  # type: ignore[misc]
        remora_base = base

        def clone(self, *args: Any, **kwargs: Any) -> Any:
            clone = super().clone(*args, **kwargs)
            clone.__class__, clone.remora_applied = type(self), self.remora_applied
            return clone

        def encode_from_tokens(self, *args: Any, **kwargs: Any) -> Any:
            with self.remora_applied.encoding(self):
                return super().encode_from_tokens(*args, **kwargs)

        def encode_from_tokens_scheduled(self, *args: Any, **kwargs: Any) -> Any:
            with self.remora_applied.encoding(self):
                return super().encode_from_tokens_scheduled(*args, **kwargs)

    return ClipWithStack


def refuse_useless(stacks: Sequence[AppliedStack]) -> None:
    """Raise the error of the first entry of which nothing fits any part of the model."""
    for i in range(len(stacks[0].entries) if stacks else 0):
        if all(i in stack.elsewhere for stack in stacks):
            raise stacks[0].elsewhere[i]
