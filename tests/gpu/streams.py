"""Adapters on other streams of CUDA, and in graphs that were captured by hand."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import torch
from torch import nn

from lib_lora import Engine, Entry, Stack

from .check import Checks, Found, Setup, SkipError, apart
from .models import loras, step_of, unet, with_biases

TURNS = 30
STRENGTHS = (0.8, -0.5, 0.0, 1.3)
SAME = 3e-2
"""How far a replay may be from the same operations outside a graph, whose products may be computed in another way."""


def checks(setup: Setup) -> Checks:
    """Try side streams and graphs."""
    if setup.device.type != "cuda":
        raise SkipError("streams and graphs are CUDA's")
    model = unet(small=setup.small, dtype=setup.half)
    files = loras(setup.folder, model, (32, 17))
    biased = with_biases(files[1], model)
    model.to(setup.device)
    for budget in (None, 0):
        yield f"placed on a side stream, dropped early, budget {budget}", partial(beside, setup, model, files, budget)
    for name, stack in (("1 LoRA", files[:1]), ("2 LoRA", files), ("LoRA with biases", [biased])):
        yield f"graph by hand, strength changed, {name}", partial(captured, model, stack)


def beside(setup: Setup, model: nn.Module, files: list[Path], budget: int | None) -> Found:
    """Place adapters on one stream, use them on another, and drop them while it still computes."""
    step = step_of(model)
    side, wrong = torch.cuda.Stream(setup.device), 0
    with Engine({"unet": model}, device_budget=budget) as engine:
        wants = []
        for file in files:
            engine.activate(Stack([Entry(file, 0.8)]))
            wants.append(step(model).clone())
            engine.deactivate()
        for turn in range(TURNS):
            main = torch.cuda.current_stream(setup.device)
            where = side if turn % 2 else main
            where.wait_stream(main)
            with torch.cuda.stream(where):
                engine.activate(Stack([Entry(files[turn % 2], 0.8)]))
            main.wait_stream(where)
            got = step(model)
            engine.activate(Stack())
            with torch.cuda.stream(side):
                torch.full((1 << 22,), math.nan, device=setup.device)
            wrong += not torch.equal(got, wants[turn % 2])
    return Found(wrong == 0, f"{wrong} of {TURNS} outputs are wrong")


def captured(model: nn.Module, files: list[Path]) -> Found:
    """Capture a step, and replay it at other strengths."""
    step = step_of(model)
    with Engine({"unet": model}) as engine:
        engine.activate(Stack([Entry(file, 0.8) for file in files]))
        for _ in range(3):
            step(model)
        torch.cuda.synchronize()
        graph, worst = torch.cuda.CUDAGraph(), 0.0
        with torch.cuda.graph(graph):
            output = step(model)
        graph.replay()  # the capture computed nothing
        first, moved = output.clone(), 0.0
        for strength in STRENGTHS:
            engine.set_multiplier(0, strength)
            graph.replay()
            wanted = step(model)
            worst, moved = max(worst, apart(output.clone(), wanted)), max(moved, apart(wanted, first))
    ok = worst < SAME < moved
    return Found(ok, f"off by {worst:.1e} (at most {SAME:.0e}) where strengths change the output by {moved:.1e}")
