"""The device's memory: what adapters take, what a step takes more, what happens where it is not enough."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _blocks import SDXL_BLOCKS, SMALL_BLOCKS, blocks_step, build
from diffusers import Transformer2DModel
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack

from . import device as devices
from .check import Checks, Found, Setup, SkipError, apart
from .models import bytes_of, loras, pairs_of

RANK = 64
LATENT = {True: 8, False: 32}
"""By whether the model is small."""
ROUNDING = 1 << 10
"""Bytes for each layer that an allocator may take for nothing, as it rounds up."""
TRIES = 3
OUT_OF_MEMORY: type[RuntimeError] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)


def checks(setup: Setup) -> Checks:
    """Count bytes, and take memory away."""
    if setup.on_cpu:
        raise SkipError("a CPU has no memory of its own")
    model = build(Transformer2DModel, SDXL_BLOCKS, SMALL_BLOCKS, tiny=setup.small, dtype=setup.half)
    (file,) = loras(setup.folder, model, (RANK,))
    model.to(setup.device)
    trial = Trial(setup, model, file)
    yield "adapters of a stack", trial.kept
    yield "peak of a step", trial.peak
    yield "left after removal", trial.left
    yield "room for a step and not for the adapters", trial.little
    yield "out of memory in other code, then another try", trial.elsewhere


class Trial:
    """A stack of transformer blocks with one LoRA."""

    def __init__(self, setup: Setup, model: nn.Module, file: Path) -> None:
        self._device = setup.device
        self._model = model
        self._stack = Stack([Entry(file, 0.8)])
        self._pairs = bytes_of(file, setup.half.itemsize)
        self._rounding = ROUNDING * pairs_of(file)
        self._step = partial(blocks_step(model, LATENT[setup.small], 2), model)

    def kept(self) -> Found:
        """Compare what activation takes with the sizes of the pairs."""
        with Engine({"unet": self._model}) as engine:
            self._step()
            before = devices.allocated(self._device)
            engine.activate(self._stack)
            self._step()
            taken = devices.allocated(self._device) - before
        return Found(taken <= 1.05 * self._pairs + self._rounding, f"{_mb(taken)} for pairs of {_mb(self._pairs)}")

    def peak(self) -> Found:
        """Compare the peak of a step with LoRA, less the adapters, with that of a step without."""
        with Engine({"unet": self._model}) as engine:
            base = self._peak()
            engine.activate(self._stack)
            self._step()
            ours = self._peak()
        values = {"base": base, "ours": ours}
        figure = f"{_mb(base)} without LoRA, {_mb(ours)} with, beside the adapters"
        return Found(ours <= 1.05 * base + self._rounding, figure, values)

    def left(self) -> Found:
        """Compare what is there after removal with what was there before."""
        before = devices.allocated(self._device)
        with Engine({"unet": self._model}) as engine:
            engine.activate(self._stack)
            self._step()
        left = devices.allocated(self._device) - before
        return Found(left <= self._rounding, f"{_mb(left)} left")

    def little(self) -> Found:
        """Let torch have memory for a step and half of the adapters."""
        module = getattr(torch, self._device.type)
        if not all(hasattr(module, name) for name in ("set_per_process_memory_fraction", "memory_reserved")):
            raise SkipError(f"torch sets no limit on {self._device.type}")
        with Engine({"unet": self._model}) as engine:
            return self._in_little(engine)

    def _in_little(self, engine: Engine) -> Found:
        want = self._with_lora(engine)
        devices.give_back(self._device)
        self._step()
        devices.synchronize(self._device)
        module: Any = getattr(torch, self._device.type)
        total = module.get_device_properties(self._device).total_memory
        with self._limit((module.memory_reserved(self._device) + self._pairs // 2) / total):
            engine.activate(self._stack)  # torch does not take this limit off the free memory that it tells
            off, failed = self._tried(want)
            streaming = engine.memory().streaming
        figure = f"{streaming} layers stream, {failed} of {TRIES} calls ran out of memory, off by {off:.1e}"
        return Found(streaming > 0 and failed < TRIES and off < 1e-2, figure)

    def elsewhere(self) -> Found:
        """Let code that is not Remora's run out of memory as long as over half of the adapters are placed."""
        with Engine({"unet": self._model}) as engine:
            want = self._with_lora(engine)
            engine.activate(self._stack)
            self._step()
            room = sum(engine.memory().placed.values()) // 2

            def refuse(*_: object) -> None:
                if sum(engine.memory().placed.values()) > room:
                    raise OUT_OF_MEMORY("a check pretends that memory is full")

            hook = self._model.norm.register_forward_pre_hook(refuse)
            try:
                off, failed = self._tried(want)
            finally:
                hook.remove()
        if failed == TRIES:
            return Found(False, f"{failed} of {TRIES} calls ran out of memory: the adapters do not make room")
        return Found(off < 1e-2, f"{failed} of {TRIES} calls ran out of memory, off by {off:.1e}")

    def _tried(self, want: Tensor) -> tuple[float, int]:
        """Return how far the last output is off, and how many calls failed."""
        off, failed = float("inf"), 0
        for _ in range(TRIES):
            try:
                off = apart(self._step(), want)
            except OUT_OF_MEMORY:
                failed += 1
        return off, failed

    def _with_lora(self, engine: Engine) -> Tensor:
        """Return the output with LoRA, and take it off."""
        engine.activate(self._stack)
        found: Tensor = self._step().cpu()
        engine.deactivate()
        return found

    def _peak(self) -> int:
        before = devices.allocated(self._device)
        peak = devices.Peak(self._device)
        self._step()
        return peak.bytes() - before

    @contextlib.contextmanager
    def _limit(self, share: float) -> Iterator[None]:
        set_share: Callable[..., None] = getattr(torch, self._device.type).set_per_process_memory_fraction
        set_share(share, self._device)
        try:
            yield
        finally:
            set_share(1.0, self._device)


def _mb(count: int) -> str:
    return f"{count / 2**20:.1f} MB"
