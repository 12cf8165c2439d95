"""A batch whose images have stacks of their own, of LoRA of six kinds: each is what it would be alone, in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from extension.standalone.demo import find_demo
from lib_lora import Engine, Entry, Halves, PerImage, Region, Row, Stack, Strength
from tests.fakes.demo import demo_pipeline

STACKS: tuple[dict[str, float], ...] = (
    {"stripes": 1.0, "outline": 0.7},  # LoCon, DoRA
    {"neon": 0.9},  # LoKr
    {"night": 0.8, "zorp": -0.5},  # LoRA, LoHa
    {"outline": 1.2, "neon": 0.4, "night": 0.3, "stripes": -0.6},
)
NAMES = ("stripes", "outline", "neon", "night", "zorp")
BOUND = 1e-11
"""Largest error over the largest value."""


@pytest.mark.long
@torch.no_grad()
def test_four_images_with_four_stacks_are_those_of_four_single_runs() -> None:
    unet, loras = demo_pipeline().unet.double(), find_demo().loras
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 4, 12, 12, generator=generator, dtype=torch.float64)
    words = torch.randn(8, 16, unet.config.cross_attention_dim, generator=generator, dtype=torch.float64)
    engine = Engine({"unet": unet})

    def run(rows: slice = slice(None)) -> torch.Tensor:
        out: torch.Tensor = unet(x[rows], torch.tensor(400), words[rows]).sample
        return out

    half = Region.rectangle(0, 0, 0.5, 1)
    for what in ("rows", "positive rows alone", "and a region"):

        def strength(multiplier: float, what: str = what) -> Any:
            if what == "rows":
                return multiplier
            own = Strength(multiplier, region=half) if what == "and a region" else multiplier
            return Halves(own, 0.0)

        singles = []
        for row in range(8):
            negative = row < 4
            engine.set_rows(lambda rows, negative=negative: [Row(0, negative)] * rows)
            stack = STACKS[row % 4]
            engine.activate(Stack(Entry(loras / f"{name}.safetensors", strength(one)) for name, one in stack.items()))
            singles.append(run(slice(row, row + 1)))
        engine.set_rows(lambda rows: [Row(row % 4, row < 4) for row in range(rows)])
        entries = [
            Entry(loras / f"{name}.safetensors", PerImage(tuple(strength(one.get(name, 0.0)) for one in STACKS)))
            for name in NAMES
        ]
        engine.activate(Stack(entries))
        got, want = run(), torch.cat(singles)
        assert (got - want).abs().max() < BOUND * want.abs().max(), what
        engine.deactivate()
        plain = run()
        assert min((got[row] - plain[row]).abs().max() for row in range(4, 8)) > 1e-3, "the LoRA must show"
