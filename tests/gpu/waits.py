"""Nothing waits for the device: neither a step, nor a change of strength, nor a step of a schedule."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lib_lora import Curve, Engine, Entry, Moment, PerImage, Stack, Strength

from . import device as devices
from .check import Checks, Found, Setup, SkipError
from .correctness import LEFT
from .models import loras, step_of, unet

STEPS = 20
ASKING = {"_local_scalar_dense", "item", "nonzero", "is_nonzero"}
"""Operations that read numbers off the device."""


class Waits(TorchDispatchMode):
    """Counts what waits for the device: numbers that are read off it, and copies from or to it that do not say not to.

    For devices whose backend does not count by itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        on = {one.device.type for one in tree_leaves((args, kwargs, result)) if isinstance(one, Tensor)}
        if name in ASKING and on != {"cpu"}:
            self.found[name] += 1
        if name in ("_to_copy", "copy_") and len(on) > 1:
            given = kwargs.get("non_blocking", False) or (name == "copy_" and len(args) > 2 and args[2])
            self.found[name] += not given
        return result


@contextlib.contextmanager
def no_waits(device: torch.device) -> Iterator[Counter[str]]:
    """Count what waits inside; with CUDA, it is an error of the call that waits."""
    if device.type != "cuda":
        with Waits() as counting:
            yield counting.found
        return
    devices.synchronize(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield Counter()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def checks(setup: Setup) -> Checks:
    """Try steps with all sorts of strengths, and changes between steps."""
    if setup.on_cpu:
        raise SkipError("a CPU computes at once")
    model = unet(small=setup.small, dtype=setup.half)
    files = loras(setup.folder, model, (8, 4, 16))
    model.to(setup.device)
    stacks = {
        "1 LoRA": [Entry(files[0], 0.8)],
        "3 LoRA": [Entry(file, 0.3) for file in files],
        "region": [Entry(files[0], Strength(0.8, region=LEFT))],
        "per image": [Entry(files[0], PerImage((0.2, 0.9)))],
        "schedule": [Entry(files[0], Strength(Curve(((0, 0), (STEPS, 1)))))],
    }
    trial = partial(found, setup, model)
    for name, entries in stacks.items():
        yield f"a step, {name}", partial(trial, entries, lambda engine: None, stepping=True)
    for name in ("1 LoRA", "region"):
        change = partial(_weaken, entry=stacks[name][0])
        yield f"a change of strength, {name}", partial(trial, stacks[name], change, stepping=False)
    yield "the next step of a schedule", partial(trial, stacks["schedule"], _go_on, stepping=True)


def found(
    setup: Setup, model: nn.Module, entries: list[Entry], change: Callable[[Engine], None], *, stepping: bool
) -> Found:
    """Count what waits in a change, and in the step after it where that counts."""
    step = partial(step_of(model), model)
    with Engine({"unet": model}) as engine:
        engine.activate(Stack(entries))
        engine.set_moment(Moment(step=5, steps=STEPS))
        for _ in range(2 - setup.small):
            step()
        with no_waits(setup.device) as waits:
            change(engine)
            if stepping:
                step()
    return Found(not waits, ", ".join(f"{name} waits, {number} x" for name, number in waits.items()))


def _weaken(engine: Engine, entry: Entry) -> None:
    own = entry.multiplier
    engine.set_multiplier(0, Strength(0.5, region=own.region) if isinstance(own, Strength) else 0.5)


def _go_on(engine: Engine) -> None:
    engine.set_moment(Moment(step=6, steps=STEPS))
