"""Compiled models through a session of changes: outputs as without the compiler, and no graph too many."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from _blocks import SDXL_BLOCKS, SMALL_BLOCKS, blocks_step, build, compile_model
from diffusers import Transformer2DModel
from torch import nn
from torch.utils._triton import has_triton

from lib_lora import RANK_BUCKETS, Engine, Entry, Stack

from .check import Checks, Found, Setup, SkipError, apart
from .models import loras, with_biases

BLOCKS = SDXL_BLOCKS | {"num_layers": 2, "use_linear_projection": False}
FEW = SMALL_BLOCKS | {"num_layers": 1, "use_linear_projection": False}
LATENT = 16
CALLS = 3
"""After each change; a graph of CUDA is recorded in the second."""
WAYS = {
    "blocks, default": ("blocks", {}),
    "blocks, reduce-overhead": ("blocks", {"mode": "reduce-overhead"}),
    "whole, default": ("whole", {}),
    "whole, reduce-overhead": ("whole", {"mode": "reduce-overhead"}),
}
TRACED = {f"{how}, traced only": (how, {"backend": "eager"}) for how in ("blocks", "whole")}
"""Without the compiler's second half, which takes a minute."""


@dataclass(frozen=True)
class Change:
    """One step of a session."""

    name: str
    entries: Sequence[Entry]
    compiles: bool
    """Whether a new graph is right."""


def session(files: Sequence[Path], *, buckets: bool) -> list[Change]:
    """Return the changes of a session with two LoRA, and a third that also has biases and convolutions."""
    one, other, odd = files
    return [
        Change("none", [], True),
        Change("1 LoRA", [Entry(one, 0.8)], True),
        Change("strength", [Entry(one, -0.4)], False),
        Change("file", [Entry(other, 0.8)], not buckets),
        Change("LoCon with biases", [Entry(odd, 0.8)], True),
        Change("strength", [Entry(odd, 0.3)], False),
        Change("file, back", [Entry(one, 0.8)], False),
        Change("none", [], False),
    ]


def checks(setup: Setup) -> Checks:
    """Compile blocks, and whole models, in each mode."""
    reason = why_not(setup)
    if reason:
        raise SkipError(reason)
    ways = TRACED if setup.small else {name: way for name, way in WAYS.items() if _has(setup, name)}
    model = build(Transformer2DModel, BLOCKS, FEW, tiny=setup.small, dtype=setup.half)
    one, other = loras(setup.folder, model, (16, 13), conv=False)
    odd = with_biases(loras(setup.folder, model, (17,))[0], model)
    model.to(setup.device)
    for buckets in (True, False):
        for name, (how, options) in ways.items():
            if buckets or name == "blocks, default":
                trial = partial(found, model, (one, other, odd), how, options, buckets=buckets)
                yield f"{name}, {'rank buckets' if buckets else 'no buckets'}", trial


def why_not(setup: Setup) -> str:
    """Return why nothing is compiled here, or nothing."""
    kind = setup.device.type
    if kind not in ("cuda", "xpu", "mps", "cpu"):
        return f"torch.compile has no backend for {kind}"
    if setup.small:
        return ""
    if kind in ("cuda", "xpu") and not has_triton():
        return "torch.compile needs Triton, which is not there"
    if kind == "cpu" and not any(map(shutil.which, ("g++", "clang++", "cl"))):
        return "torch.compile needs a C++ compiler on the CPU"
    return ""


def _has(setup: Setup, name: str) -> bool:
    return setup.device.type == "cuda" or "reduce-overhead" not in name


def found(model: nn.Module, files: Sequence[Path], how: str, options: dict[str, str], *, buckets: bool) -> Found:
    """Go through a session on a compiled model, and beside it on one that is not compiled."""
    own, bare = copy.deepcopy(model), copy.deepcopy(model)
    step = blocks_step(model, LATENT, 2)
    sizes = RANK_BUCKETS if buckets else ()
    worst, graphs, wrong = 0.0, [], []
    with counted() as count, Engine({"unet": own}, rank_buckets=sizes) as engine, Engine({"unet": bare}) as plain:
        compile_model(own, how, **options)
        for change in session(files, buckets=buckets):
            for one in (engine, plain):
                one.activate(Stack(change.entries))
            before = count()
            for _ in range(CALLS):
                torch.compiler.cudagraph_mark_step_begin()
                got = step(own).clone()
            error = apart(got, step(bare))
            worst = max(worst, error)
            graphs.append(count())
            if not change.compiles and count() > before:
                wrong.append(change.name)
    bound = 4 * torch.finfo(next(model.parameters()).dtype).eps
    figure = f"off by {worst:.1e} (at most {bound:.1e}); graphs after each change {graphs}"
    figure += f", more of them after: {', '.join(wrong)}" if wrong else ""
    return Found(worst <= bound and not wrong, figure, {"graphs": graphs})


@contextmanager
def counted() -> Iterator:
    """Yield a function that returns the number of graphs so far."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    try:
        yield lambda: counters["stats"]["unique_graphs"]
    finally:
        torch._dynamo.reset()
