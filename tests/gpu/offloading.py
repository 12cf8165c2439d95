"""Every way in which programs move a model about: outputs, the time of a step, the peak of memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import torch
from _common import Variant, duration, measure
from _models import SD15
from diffusers import UNet2DConditionModel
from diffusers.hooks import apply_layerwise_casting
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack
from tests.fakes.schemes import CPU, ON_DISK, SCHEMES, STREAMING, Scheme

from . import device as devices
from .check import Checks, Found, Setup, SkipError, apart
from .models import loras, random_model, step_of, unet

GOAL = 1.5
"""Time of a step at most, in units of the same step without LoRA under the same scheme."""
ROUNDS = 3
RANK = 16
SAME = 0.01
"""How far the outputs may be apart besides thrice as far as without LoRA."""
FLOAT8 = "layerwise-float8"


@contextmanager
def layerwise(model: nn.Module, where: torch.device) -> Iterator[None]:
    """Store the weights in float8, as diffusers' layerwise casting."""
    apply_layerwise_casting(model, torch.float8_e4m3fn, next(model.parameters()).dtype)
    model.to(where)
    yield
    model.to(CPU)


def schemes() -> dict[str, Scheme]:
    """Return all schemes by name."""
    return {**SCHEMES, **ON_DISK, FLOAT8: layerwise, **STREAMING}


def checks(setup: Setup) -> Checks:
    """Try each scheme on a UNet: that of SD 1.5, where it is measured."""
    if setup.on_cpu:
        raise SkipError("a CPU has nothing to offload to")
    model = _model(setup)
    (file,) = loras(setup.folder, model, (RANK,))
    trial = Trial(setup, model, file)
    for name, scheme in schemes().items():
        yield name, partial(trial.found, name, scheme)


def _model(setup: Setup) -> nn.Module:
    if setup.small:
        return unet(small=True, dtype=setup.half)
    return random_model(UNet2DConditionModel, SD15, setup.half, CPU)


class Trial:
    """What the model gives when all of it is on the device, and what it gives under a scheme."""

    def __init__(self, setup: Setup, model: nn.Module, file: Path) -> None:
        self._setup = setup
        self._model = model
        self._stack = Stack([Entry(file, 0.8)])
        self._step = step_of(copy.deepcopy(model).to(setup.device))
        self._resident = self._without_scheme(model)

    def _without_scheme(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the outputs of a copy on the device, as it is and with LoRA."""
        there = copy.deepcopy(model).to(self._setup.device)
        with Engine({"unet": there}) as engine:
            plain = self._step(there).cpu()
            engine.activate(self._stack)
            return plain, self._step(there).cpu()

    def _wanted(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the same, where the scheme rounds weights, of rounded ones."""
        if name != FLOAT8:
            return self._resident
        stored, rounded = copy.deepcopy(self._model), copy.deepcopy(self._model)
        dtype = next(stored.parameters()).dtype
        apply_layerwise_casting(stored, torch.float8_e4m3fn, dtype)
        rounded.load_state_dict({key: value.to(dtype) for key, value in stored.state_dict().items()})
        return self._without_scheme(rounded)

    def found(self, name: str, scheme: Callable[..., AbstractContextManager[None]]) -> Found:
        """Use a copy of the model under the scheme: as it is, with LoRA, as it is again."""
        self._refuse(name)
        want_plain, want = self._wanted(name)
        model = copy.deepcopy(self._model)
        step = partial(self._step, model)
        with Engine({"unet": model}) as engine, scheme(model, self._setup.device):
            plain, base, base_peak = self._measured(step)
            engine.activate(self._stack)
            got, ours, peak = self._measured(step)
            engine.deactivate()
            removed = torch.equal(step().cpu(), plain)
        off, effect = apart(got, want), apart(want, want_plain)
        bound = 3 * apart(plain, want_plain) + SAME
        figure = f"off by {off:.1e} (at most {bound:.1e}), changed by {effect:.1e}"
        figure += "" if removed else ", removal is not exact"
        right = off <= bound < effect and removed
        if self._setup.small:
            return Found(right, figure)
        figure += f", {duration(base)} -> {duration(ours)}, x {ours / base:.2f} (goal {GOAL})"
        values = {"base_s": base, "ours_s": ours, "base_peak": base_peak, "ours_peak": peak, "goal": GOAL}
        return Found(right and ours <= GOAL * base, figure, values)

    def _refuse(self, name: str) -> None:
        if name in STREAMING and self._setup.device.type not in ("cuda", "xpu"):
            raise SkipError(f"diffusers has no streams for {self._setup.device.type}")
        if name == FLOAT8 and not devices.has_float8(self._setup.device):
            raise SkipError(f"{self._setup.device.type} has no float8")

    def _measured(self, step: Callable[[], Tensor]) -> tuple[Tensor, float, int | None]:
        """Return the output, the seconds of a step, and the peak of memory; with small models, the output alone."""
        if self._setup.small:
            return step().cpu(), 0.0, None
        output = step().cpu()  # with streams, the first call only learns the order of the layers
        try:
            peak = devices.Peak(self._setup.device)
        except SkipError:
            peak = None
        samples = measure({"step": Variant(step)}, ROUNDS)
        return output, samples.median("step"), None if peak is None else peak.bytes()
