"""Copies of the demo's LoRA that are spoiled on purpose, with the verdicts that they must have."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from lib_lora.inspection.layers import layers_of
from lib_lora.inspection.measures import measure
from lib_lora.inspection.skeleton import mapped_model
from lib_lora.inspection.verdicts import verdicts
from tests.fakes import spoiled
from tests.fakes.files import save
from tests.lib_lora.inspection.test_files import LORAS, MODEL
from tests.lib_lora.inspection.variants import NAMES, every_of

PLAIN = ("night", "stripes")
LINEAR = ("neon", "night", "stripes", "zorp")
"""Files whose change is proportional to one of their parameters."""


@dataclass(frozen=True)
class Copy:
    """One file, and what is wrong with it."""

    name: str
    how: str
    tensors: spoiled.Tensors
    metadata: Mapping[str, str]
    wrong: frozenset[str] = frozenset()
    """The verdicts that it must have."""
    beside: frozenset[str] = frozenset()
    """The verdicts that it may have, as the damage has several sides."""


def originals(every: int = 1) -> dict[str, tuple[spoiled.Tensors, dict[str, str]]]:
    """Return the tensors and the metadata of the demo's LoRA, with all layers or one of a few."""
    found = {}
    for name in NAMES:
        path = LORAS / f"{name}.safetensors"
        with safe_open(path, "pt") as file:
            metadata = dict(file.metadata() or {})
        found[name] = every_of(load_file(path), every), metadata
    return found


class Maker:
    """Makes copies of damages whose degrees a seed draws."""

    def __init__(self, seed: int, every: int = 1) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.originals = originals(every)

    def number(self, low: float, high: float) -> float:
        """Draw a number, evenly by its logarithm."""
        share = torch.rand((), generator=self.generator).item()
        return low * (high / low) ** share

    def some(self, name: str, most: int, ending: str = "") -> list[str]:
        """Draw up to so many layers of a file that have a key with an ending."""
        tensors = self.originals[name][0]
        names = [key.partition(".")[0] for key in tensors if key.endswith(ending)]
        return spoiled.some(names, int(self.number(1, most + 0.99)), self.generator)

    def copies(self) -> Iterator[Copy]:
        """Yield sound copies and all damages."""
        for name, (tensors, metadata) in self.originals.items():
            for how, changed in self.sound(tensors):
                yield Copy(name, how, changed, metadata)
            for how, changed, wrong, beside in [*self.numbers(name), *self.sizes(name), *self.ranks(name)]:
                yield Copy(name, how, changed, metadata, frozenset(wrong), frozenset(beside))

    def sound(self, tensors: spoiled.Tensors) -> Iterator[tuple[str, spoiled.Tensors]]:
        """Yield what nothing is wrong with."""
        yield "original", tensors
        yield "bf16", spoiled.cast(tensors, torch.bfloat16)
        yield "fp32", spoiled.cast(tensors, torch.float32)
        yield "noise", spoiled.noisy(tensors, self.number(0.01, 0.3), self.generator)
        yield "weaker", spoiled.scaled(tensors, self.number(0.5, 0.9))
        yield "stronger", spoiled.scaled(tensors, self.number(1.1, 1.4))

    def numbers(self, name: str) -> Iterator[tuple[str, spoiled.Tensors, set[str], set[str]]]:
        """Yield damages of single numbers."""
        tensors, _ = self.originals[name]
        for value in (math.nan, math.inf):
            yield f"{value}", spoiled.with_nan(tensors, self.some(name, 4), value), {"not_finite"}, set()
        if name in LINEAR:  # DoRA's magnitude is left where the rest is zero
            yield "zeros", spoiled.zeroed(tensors, self.some(name, 8)), {"dead"}, set()
        if name in (*LINEAR, "outline"):
            size, beside = self.number(1.01, 4), {"strong", "spike", "dominant", "text_encoder"}
            yield "clipped", spoiled.clipped(tensors, self.some(name, 4), size), {"clipped"}, beside

    def sizes(self, name: str) -> Iterator[tuple[str, spoiled.Tensors, set[str], set[str]]]:
        """Yield damages of the size of all layers, or of some."""
        tensors, _ = self.originals[name]
        if name in (*PLAIN, "outline", "zorp"):
            for low, high in ((1 / 32, 1 / 2), (2, 32)):
                yield "alpha", spoiled.with_alpha(tensors, self.number(low, high)), {"alpha"}, {"strong", "weak"}
        if name in LINEAR:
            for _ in range(2):
                yield "strong", spoiled.scaled(tensors, self.number(6, 24)), {"strong"}, set()
                yield "weak", spoiled.scaled(tensors, 1 / self.number(128, 512)), {"weak"}, set()
                yield "dominant", self.dominated(tensors), {"dominant"}, {"strong", "spike", "text_encoder"}
        if name in PLAIN:
            for _ in range(4):
                names = self.some(name, 4, "lora_up.weight")
                spiked = spoiled.spiked(tensors, names, self.number(35, 150) * self.usual(tensors))
                yield "spiked", spiked, {"spike"}, {"strong", "dominant"}
        if name == "zorp":
            for _ in range(4):
                own = [one for one in spoiled.layers(tensors) if one.startswith("lora_te")]
                larger = self.grown(tensors, own, self.number(0.6, 0.95))
                yield "text encoder", larger, {"text_encoder"}, {"strong", "dominant", "spike"}

    def ranks(self, name: str) -> Iterator[tuple[str, spoiled.Tensors, set[str], set[str]]]:
        """Yield damages of the rank, and merges."""
        tensors, _ = self.originals[name]
        if name in PLAIN:
            yield "cut", spoiled.resized(tensors, 1 + int(self.number(1, 2.99))), {"resized"}, set()
            yield "cut, bf16", spoiled.cast(spoiled.resized(tensors, 2), torch.bfloat16), {"resized"}, set()
            for times in (2, 4):
                yield "padded", spoiled.padded(tensors, times), {"resized", "spare_rank"}, set()
            other = self.originals["zorp" if name == "night" else "night"][0]
            parts = [(self.number(0.5, 1), tensors), (self.number(0.5, 1), other)]
            yield "merged", spoiled.merged(parts, 32), {"resized"}, {"strong", "spare_rank"}

    def dominated(self, tensors: spoiled.Tensors) -> spoiled.Tensors:
        """Make one layer the most of a file."""
        names = spoiled.some(spoiled.layers(tensors), 1, self.generator)
        return self.grown(tensors, names, self.number(0.4, 0.9))

    def grown(self, tensors: spoiled.Tensors, names: Iterable[str], share: float) -> spoiled.Tensors:
        """Multiply some layers until they have a share of the energy."""
        energies = {name: spoiled.delta(tensors, name).square().sum().item() for name in spoiled.layers(tensors)}
        own = sum(energies[name] for name in names)
        factor = math.sqrt(share / (1 - share) * (sum(energies.values()) - own) / own)
        return spoiled.scaled(tensors, factor, names)

    def usual(self, tensors: spoiled.Tensors) -> float:
        """Return the median spectral norm."""
        deltas = [spoiled.delta(tensors, name).flatten(1) for name in spoiled.layers(tensors)]
        return median(torch.linalg.matrix_norm(one, 2).item() for one in deltas)


def judged(folder: Path, seed: int, every: int = 1) -> tuple[Counter[str], Counter[str], Counter[str], list[str]]:
    """Return right, wrong and missed verdicts by name, and each fault in a line."""
    model = mapped_model(MODEL)
    right, wrong, missed, lines = Counter[str](), Counter[str](), Counter[str](), []
    for copy in Maker(seed, every).copies():
        path = save(folder / "copy.safetensors", copy.tensors, copy.metadata)
        found = {one.name for one in verdicts(measure(layers_of(path, model)))}
        right.update(found & copy.wrong)
        wrong.update(found - copy.wrong - copy.beside)
        missed.update(copy.wrong - found)
        if found - copy.wrong - copy.beside or copy.wrong - found:
            lines.append(f"{copy.name}, {copy.how}: {sorted(found)}, not {sorted(copy.wrong)}")
    return right, wrong, missed, lines
