"""About a hundred variants of the demo's LoRA: what they were made from, and how."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.fakes import spoiled
from tests.fakes.files import save
from tests.lib_lora.inspection.test_files import LORAS

NAMES = ("neon", "night", "outline", "stars", "stripes", "zorp")


@dataclass(frozen=True)
class Variant:
    """One file of the set."""

    path: Path
    sources: tuple[str, ...]
    """One, or two of a merge."""
    how: str
    largest: float = 0.0
    """The share of the larger part in the energies of the parts of a merge."""

    def is_like(self, other: Variant) -> bool | None:
        """Return whether two files are duplicates; None of two merges, and where a merge is nearly one of its parts."""
        if len(self.sources) == len(other.sources) == 1:
            return self.sources == other.sources
        return None if len(self.sources) == len(other.sources) or max(self.largest, other.largest) > 0.9 else False


def write_variants(folder: Path, seed: int, every: int = 1) -> list[Variant]:
    """Write the originals, their variants and merges of two, with all layers or one of a few."""
    generator = torch.Generator().manual_seed(seed)
    whole = {name: load_file(LORAS / f"{name}.safetensors") for name in NAMES}
    originals = {name: every_of(tensors, every) for name, tensors in whole.items()}
    made: list[tuple[tuple[str, ...], str, spoiled.Tensors]] = []
    largest: dict[int, float] = {}

    def number(low: float, high: float) -> float:
        return low + (high - low) * torch.rand((), generator=generator).item()

    for name, tensors in originals.items():
        made.append(((name,), "original", tensors))
        made.append(((name,), "bf16", spoiled.cast(tensors, torch.bfloat16)))
        made.append(((name,), "fp32", spoiled.cast(tensors, torch.float32)))
        made.append(((name,), "fp8", spoiled.cast(tensors, torch.float8_e5m2)))
        made.append(((name,), "half as strong", spoiled.scaled(tensors, number(0.4, 0.6))))
        made.append(((name,), "stronger", spoiled.scaled(tensors, number(1.5, 2.5))))
        made.append(((name,), "noise 1%", spoiled.noisy(tensors, 0.01, generator)))
        made.append(((name,), "noise 10%", spoiled.noisy(tensors, 0.1, generator)))
        made.append(((name,), "bf16, noise 3%", spoiled.cast(spoiled.noisy(tensors, 0.03, generator), torch.bfloat16)))
        made.append(((name,), "stronger, bf16", spoiled.cast(spoiled.scaled(tensors, number(1.2, 3)), torch.bfloat16)))
        if name not in ("neon", "stars"):  # in which alpha is no factor
            made.append(((name,), "half the alpha", spoiled.with_alpha(tensors, 0.5)))
        if name in ("night", "stripes"):
            made.append(((name,), "padded", spoiled.padded(tensors, 2)))
            made.append(((name,), "turned", spoiled.turned(tensors, generator)))
            made.append(((name,), "renamed", spoiled.spelled(tensors)))
            made.append(((name,), "renamed, turned", spoiled.spelled(spoiled.turned(tensors, generator))))
        if name not in ("outline", "stars"):
            for rank in {"neon": (32, 48), "night": (4, 3), "stripes": (2, 3), "zorp": (3, 4)}[name]:
                made.append(((name,), f"rank {rank}", spoiled.resized(tensors, rank)))
            lower = spoiled.cast(spoiled.scaled(spoiled.resized(tensors, 24), number(0.7, 1.3)), torch.bfloat16)
            made.append(((name,), "converted, bf16, scaled", lower))
    mergeable = ("neon", "night", "stripes", "zorp")
    norms = {name: norm_of(originals[name]) for name in mergeable}
    for first, second in itertools.combinations(mergeable, 2):
        for rank in (16, 32, 64):
            parts = [(number(0.4, 1.0), originals[first]), (number(0.4, 1.0), originals[second])]
            energies = [
                (strength * norms[name]) ** 2 for (strength, _), name in zip(parts, (first, second), strict=True)
            ]
            largest[len(made)] = max(energies) / sum(energies)
            made.append(((first, second), f"merged, rank {rank}", spoiled.merged(parts, rank)))
    found = []
    for i, (sources, how, tensors) in enumerate(made):
        found.append(Variant(save(folder / f"{i}.safetensors", tensors), sources, how, largest.get(i, 0.0)))
    return found


def every_of(tensors: spoiled.Tensors, every: int) -> spoiled.Tensors:
    """Return one layer of a few."""
    kept = set(spoiled.layers(tensors)[::every])
    return {key: value for key, value in tensors.items() if key.partition(".")[0] in kept}


def norm_of(tensors: spoiled.Tensors) -> float:
    """Return the Frobenius norm of the whole change."""
    deltas = [spoiled.delta(tensors, name) for name in spoiled.layers(tensors)]
    return math.sqrt(sum(delta.square().sum().item() for delta in deltas))
