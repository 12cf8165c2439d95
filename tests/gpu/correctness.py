"""Outputs against those of merged weights in fp64 on the CPU; removal, to the bit."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lib_lora import RANK_BUCKETS, Curve, Engine, Entry, Moment, PerImage, Region, Stack, Strength
from tests.fakes.models import dense_deltas, merged

from . import device as devices
from .check import Checks, Found, Setup, SkipError, apart, short
from .models import ROWS, bytes_of, loras, step_of, unchanged, unet

RANKS = (4, 8, 3, 17)
MOMENT = Moment(step=2, steps=8)
RAMP = Strength(Curve(((0, 0), (8, 1))))
AT_MOMENT = 2 / 8
"""The ramp at that moment."""
LEFT = Region.rectangle(0, 0, 0.5, 1)
STORED = {"file": 0.0, "bfloat16": 2**-8, "float8": 2**-4}
"""Largest rounding error of an entry, in units of it."""


@dataclass(frozen=True)
class Case:
    """A stack, and what it is equal to."""

    entries: tuple[Entry, ...]
    rows: tuple[Mapping[int, float], ...] = ()
    """For each row of the model call: number of the file -> strength. Without, Remora in fp64 on the CPU is right."""


def cases(files: Sequence[Path]) -> dict[str, Case]:
    """Return all stacks."""
    unlike = {number: 0.2 * (number + 1) for number in range(len(files))}
    one, other, *_ = files
    varied = PerImage((Strength(Curve(((0, 0), (8, 1))), region=LEFT), 0.9))
    return {
        "1 LoRA": Case((Entry(one, 0.8),), ({0: 0.8},) * ROWS),
        "4 LoRA, unlike": Case(tuple(Entry(files[i], strength) for i, strength in unlike.items()), (unlike,) * ROWS),
        "schedule": Case((Entry(one, RAMP), Entry(other, 0.5)), ({0: AT_MOMENT, 1: 0.5},) * ROWS),
        "per image": Case((Entry(one, PerImage((0.2, 0.9))),), ({0: 0.2}, {0: 0.9})),
        "region": Case((Entry(one, Strength(0.8, region=LEFT)), Entry(other, 0.3))),
        "all together": Case((Entry(one, varied), Entry(other, RAMP), Entry(files[2], -0.4))),
    }


def checks(setup: Setup) -> Checks:
    """Try all stacks in fp32 and in the dtype of most models, and two of them with each setting of the engine."""
    made = unet(small=setup.small)
    files = loras(setup.folder, made, RANKS)
    stacks = cases(files)
    for dtype in setup.dtypes:
        trial = Trial(setup, made, dtype, files)
        most = dtype in ({setup.half} if setup.small else {setup.dtypes[0], setup.half})
        for name, case in stacks.items() if most else [next(iter(stacks.items()))]:
            yield f"{short(dtype)}, {name}", partial(trial.found, case)
    some = bytes_of(files[0], setup.half.itemsize) // 2
    settings: dict[str, dict[str, Any]] = {
        "storage bfloat16": {"storage": "bfloat16"},
        "storage float8": {"storage": "float8"},
        "device budget of 0": {"device_budget": 0},
        "device budget of some": {"device_budget": some},
        "rank buckets": {"rank_buckets": RANK_BUCKETS},
    }
    for setting, options in settings.items():
        for name in ("4 LoRA, unlike", "all together")[setup.small :]:
            yield f"{short(setup.half)}, {setting}, {name}", partial(trial.found, stacks[name], **options)
    for dtype in dict.fromkeys((setup.dtypes[0], setup.half)):
        of_dtype = Trial(setup, made, dtype, files)
        yield f"{short(dtype)} under autocast, 1 LoRA", partial(of_dtype.found, stacks["1 LoRA"], autocast=True)


class Trial:
    """A UNet on the device, and the same weights in fp64 on the CPU."""

    def __init__(self, setup: Setup, made: nn.Module, dtype: torch.dtype, files: Sequence[Path]) -> None:
        self._setup = setup
        self._own = copy.deepcopy(made).to(dtype)
        self._exact = copy.deepcopy(self._own).double()
        self._deltas = [dense_deltas(file, {"unet": made})["unet"] for file in files]
        self._own.to(setup.device)
        self._before = {name: value.clone() for name, value in self._own.state_dict().items()}
        self._step, self._exactly = step_of(self._own), step_of(self._exact)
        self._plains: dict[bool, Tensor] = {}
        """Without LoRA, by autocast."""
        self._wanted: dict[int, Tensor] = {}

    def found(self, case: Case, *, autocast: bool = False, **options: Any) -> Found:
        """Put a stack on the model and take it off; the error may be thrice that of the model without LoRA."""
        self._refuse(options)
        with self._cast(autocast):
            plain = self._plain(autocast)
            engine = Engine({"unet": self._own}, **options)
            try:
                engine.activate(Stack(case.entries))
                engine.set_moment(MOMENT)
                got = self._step(self._own).clone()
                streaming = engine.memory().streaming
            finally:
                engine.close()
            removed = torch.equal(self._step(self._own), plain) and unchanged(self._own, self._before)
        want, base = self._want(case), self._exactly(self._exact)
        off, effect = apart(got, want), apart(want, base)
        bound = max(3 * apart(plain, base), 1e-5) + effect * STORED[options.get("storage", "file")]
        streams = options.get("device_budget") is None or streaming > 0
        figure = f"off by {off:.1e} (at most {bound:.1e}), changed by {effect:.1e}"
        figure += "" if removed else ", removal is not exact"
        figure += "" if streams else ", no layer streams"
        return Found(off <= bound < effect and removed and streams, figure)

    def _refuse(self, options: Mapping[str, Any]) -> None:
        if self._setup.on_cpu and "device_budget" in options:
            raise SkipError("a CPU has no budget")
        if options.get("storage") == "float8" and not devices.has_float8(self._setup.device):
            raise SkipError(f"{self._setup.device.type} has no float8")

    def _plain(self, autocast: bool) -> Tensor:
        if autocast not in self._plains:
            self._plains[autocast] = self._step(self._own).clone()
        return self._plains[autocast]

    def _cast(self, wanted: bool) -> contextlib.AbstractContextManager[Any]:
        if not wanted:
            return contextlib.nullcontext()
        dtype = next(one for one in reversed(self._setup.dtypes) if one != torch.float32)
        return torch.autocast(self._setup.device.type, dtype=dtype)

    def _want(self, case: Case) -> Tensor:
        if id(case) not in self._wanted:
            self._wanted[id(case)] = self._by_merging(case) if case.rows else self._by_engine(case)
        return self._wanted[id(case)]

    def _by_merging(self, case: Case) -> Tensor:
        keys = [tuple(strengths.items()) for strengths in case.rows]
        found: dict[tuple[tuple[int, float], ...], Tensor] = {}
        for key in dict.fromkeys(keys):
            model = self._exact
            for number, strength in key:
                model = merged(model, self._deltas[number], strength)
            found[key] = self._exactly(model)
        return torch.stack([found[key][row] for row, key in enumerate(keys)])

    def _by_engine(self, case: Case) -> Tensor:
        with Engine({"unet": self._exact}) as engine:
            engine.activate(Stack(case.entries))
            engine.set_moment(MOMENT)
            return self._exactly(self._exact).clone()
