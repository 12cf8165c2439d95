"""Times of a step and of changes beside PEFT, PEFT's hotswap and baked weights, all in turns."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from _common import Samples, Variant, duration, measure
from _models import LoraFile, kohya_key, peft_activate, peft_load, peft_scale, twin, write_lora
from safetensors.torch import save_file
from switch import Bake, HotSwap, Ours, Peft, Way, strengthener, switcher
from switch_sdxl import check_layer, some
from torch import Tensor, nn

from lib_lora import Engine, Entry, Stack, install, uninstall

from . import device as devices
from .check import Checks, Found, Setup, SkipError
from .plans import Plan, plans

ROUNDS, ROUNDS_OF_CHANGES, ROUNDS_OF_FIRST = 10, 3, 1
MULTIPLIER = 1.2
STEPS = ((16, (1, 4)), (64, (1,)))
"""Rank, and numbers of LoRA."""
FEW_STEPS = ((4, (2,)),)
CALLS = 100
FIRST, BACK, STRENGTH = "first use of a file, and a step", "back to another file, and a step", "another strength"
GOAL_OF_LOHA = 2.0


def checks(setup: Setup) -> Checks:
    """Measure each model, one after the other."""
    if setup.on_cpu and not setup.small:
        raise SkipError("install.py bench measures a CPU")
    for number, plan in enumerate(plans(setup)):
        folder = setup.folder / str(number)
        folder.mkdir()
        try:
            trial = Trial(setup, plan, folder)
        except (RuntimeError, MemoryError) as error:
            yield f"{plan.name}: it is made", partial(_fail, str(error))
            continue
        yield from trial.checks()
        del trial
        devices.give_back(setup.device)
        shutil.rmtree(folder, ignore_errors=True)  # Windows keeps files that are mapped


def _fail(text: str) -> Found:
    return Found(False, text)


class Trial:
    """A model in several trees of modules over one set of weights."""

    def __init__(self, setup: Setup, plan: Plan, folder: Path) -> None:
        self._setup = setup
        self._folder = folder
        self._plan = plan
        self._base = plan.build()
        self._step = plan.step(self._base)
        self._layers = plan.layers(self._base)
        self._number = 0

    def checks(self) -> Checks:
        """Measure steps, then changes."""
        made: list[LoraFile] = []
        for rank, counts in FEW_STEPS if self._setup.small else STEPS:
            files = [self._file(rank) for _ in range(max(counts))]
            made += files
            for count in counts:
                yield f"{self._plan.name}: a step, {count} LoRA of rank {rank}", partial(self.step, files[:count])
        if not self._plan.changes:
            return
        yield f"{self._plan.name}: a step, a program's own forward", partial(self.own_forward, made[0])
        yield f"{self._plan.name}: a step, 1 LoHa of rank 8", self.loha
        changes = {BACK: self.back, STRENGTH: self.strength, FIRST: self.first}  # PEFT takes long for the last
        for name, change in changes.items():
            yield f"{self._plan.name}: {name}", partial(change, made[:2])

    def step(self, files: Sequence[LoraFile]) -> Found:
        """Compare steps with PEFT's; both may be what they are only if their layers give the same."""
        devices.give_back(self._setup.device)
        models = {"base": self._base, "ours": twin(self._base), "PEFT": twin(self._base)}
        with Engine({"unet": models["ours"]}) as engine:
            engine.activate(Stack([Entry(file.kohya, MULTIPLIER) for file in files]))
            with _one_dtype(self._base):
                for number, file in enumerate(files):
                    peft_load(models["PEFT"], file, f"l{number}")
                    peft_scale(models["PEFT"], f"l{number}", MULTIPLIER)
            peft_activate(models["PEFT"], [f"l{number}" for number in range(len(files))])
            self._compare(models["ours"], models["PEFT"])
            runs = {name: Variant(partial(self._step, model)) for name, model in models.items()}
            samples = self._times(runs, ROUNDS)
        if samples is None:
            return Found(True)
        ours, peft = samples.ratio("ours", "base"), samples.ratio("PEFT", "base")
        figure = f"{duration(samples.median('base'))}, x {ours:.3f} (goal {self._plan.goal}), PEFT x {peft:.3f}"
        values = {"table": "step", "model": self._plan.name, "loras": len(files), "rank": files[0].rank}
        values |= {"base_s": samples.median("base"), "ours": ours, "peft": peft, "goal": self._plan.goal}
        return Found(ours <= self._plan.goal and ours < peft, figure, values | {"seconds": samples.seconds})

    def own_forward(self, file: LoraFile) -> Found:
        """Measure where a program has given linear layers a forward of its own, before Remora came."""
        with _forward_of_another():
            return self._alone(file.kohya, self._plan.goal, "1, own forward", file.rank)

    def loha(self) -> Found:
        """Measure a file of another kind."""
        tensors: dict[str, Tensor] = {}
        for path in self._layers:
            out, inside = self._base.get_submodule(path).weight.shape
            for name in ("w1", "w2"):
                tensors[f"{kohya_key(path)}.hada_{name}_a"] = (torch.randn(out, 8) * 0.1).half()
                tensors[f"{kohya_key(path)}.hada_{name}_b"] = (torch.randn(8, inside) * 0.1).half()
            tensors[f"{kohya_key(path)}.alpha"] = torch.tensor(8.0)
        file = self._folder / "loha.safetensors"
        save_file(tensors, file)
        return self._alone(file, GOAL_OF_LOHA, "1 LoHa", 8)

    def _alone(self, file: Path, goal: float, what: str, rank: int) -> Found:
        """Compare a step with one without LoRA."""
        ours = twin(self._base)
        with Engine({"unet": ours}) as engine:
            engine.activate(Stack([Entry(file, MULTIPLIER)]))
            plain, got = self._step(self._base), self._step(ours)
            if not torch.isfinite(got).all() or torch.equal(got, plain):
                return Found(False, "the output is not finite, or that of the model without LoRA")
            runs = {name: Variant(partial(self._step, model)) for name, model in (("base", self._base), ("ours", ours))}
            samples = self._times(runs, ROUNDS)
        if samples is None:
            return Found(True)
        ratio = samples.ratio("ours", "base")
        values = {"table": "step", "model": self._plan.name, "loras": what, "rank": rank, "peft": None}
        values |= {"base_s": samples.median("base"), "ours": ratio, "goal": goal, "seconds": samples.seconds}
        return Found(ratio <= goal, f"x {ratio:.3f} (goal {goal})", values)

    def first(self, files: Sequence[LoraFile]) -> Found:
        """Make a file act that nobody has read."""
        ways = self._ways(files, hotswap=False)

        def use(way: Way) -> None:
            way.first()
            self._step(way.model)

        runs = {name: partial(use, way) for name, way in ways.items()}
        variants = {name: Variant(run, ways[name].forget) for name, run in runs.items()}
        return self._change(FIRST, ways, variants, ROUNDS_OF_FIRST)

    def back(self, files: Sequence[LoraFile]) -> Found:
        """Make that of two files act which acted before the last one."""
        ways = self._ways(files, hotswap=True)

        def use(way: Way, switch: Callable[[], None]) -> None:
            switch()
            self._step(way.model)

        runs = {name: partial(use, way, switcher(way)) for name, way in ways.items()}
        for run in [*runs.values()] * (0 if self._setup.small else 2):  # until both files have acted
            run()
        return self._change(BACK, ways, {name: Variant(run) for name, run in runs.items()})

    def strength(self, files: Sequence[LoraFile]) -> Found:
        """Change the strength of the file that acts."""
        ways = self._ways(files[:1], hotswap=False)
        for way in ways.values():
            way.switch(0)
        calls = {"ours": CALLS}  # one is too short for the clock
        runs = {name: Variant(strengthener(way), calls=calls.get(name, 1)) for name, way in ways.items()}
        return self._change(STRENGTH, ways, runs)

    def _change(
        self, what: str, ways: Mapping[str, Way], runs: Mapping[str, Variant], rounds: int = ROUNDS_OF_CHANGES
    ) -> Found:
        """Measure a change, and take everything off."""
        try:
            samples = self._times(runs, rounds)
            for way in ways.values():
                way.strength(1.0)
            self._put_back(ways)
            self._compare(ways["ours"].model, ways["PEFT"].model)
        finally:
            self._put_back(ways)
            ways["ours"].off()
        if samples is None:
            return Found(True)
        medians = {name: samples.median(name) for name in ways}
        others = [value for name, value in medians.items() if name != "ours"]
        values = {"table": "change", "model": self._plan.name, "what": what, "median_s": medians}
        figure = ", ".join(f"{name} {duration(value)}" for name, value in medians.items())
        return Found(medians["ours"] <= min(others), figure, values | {"seconds": samples.seconds})

    def _put_back(self, ways: Mapping[str, Way]) -> None:
        """Undo the bake: the others stand on the same weights."""
        if "bake" in ways:
            ways["bake"].off()

    def _ways(self, files: Sequence[LoraFile], *, hotswap: bool) -> dict[str, Way]:
        devices.give_back(self._setup.device)
        ways: dict[str, Way] = {"ours": Ours(twin(self._base), files)}
        with _one_dtype(self._base):
            ways["PEFT"] = Peft(twin(self._base), files)
            if hotswap:
                ways["hotswap"] = HotSwap(twin(self._base), files)
        if self._plan.baked:
            ways["bake"] = Bake(self._base, files)
        return ways

    def _times(self, runs: Mapping[str, Variant], rounds: int) -> Samples | None:
        """Measure in turns; with small models, only run each once."""
        if not self._setup.small:
            return measure(runs, rounds)
        for variant in runs.values():
            replace(variant, calls=1).time()
        return None

    def _compare(self, ours: nn.Module, other: nn.Module) -> None:
        """Compare some layers on the same input: rounding errors of all of them multiply.

        Raises:
            RuntimeError: they are further apart than rounding explains.
        """
        for path in some(self._layers)[: 4 if self._setup.small else None]:
            check_layer(path, ours, other, self._base)

    def _file(self, rank: int) -> LoraFile:
        self._number += 1
        return write_lora(self._folder, f"{self._number}-{rank}", self._base, self._layers, rank)


@contextmanager
def _one_dtype(model: nn.Module) -> Iterator[None]:
    """Have diffusers tell the dtype of a model without looking at all of it; PEFT asks once for each new layer."""
    dtype = next(model.parameters()).dtype
    with patch("diffusers.models.modeling_utils.get_parameter_dtype", lambda _: dtype):
        yield


@contextmanager
def _forward_of_another() -> Iterator[None]:
    """Give `nn.Linear` a forward that is not torch's, as web UIs do."""
    uninstall()
    forward = nn.Linear.forward

    def theirs(self: nn.Linear, x: Tensor) -> Tensor:
        return forward(self, x)

    nn.Linear.forward = theirs
    install()
    try:
        yield
    finally:
        uninstall()
        nn.Linear.forward = forward
        install()
