"""Two hundred variants of twelve LoRA, the demo's and six made ones: what they were made from, and how.

`python -m tests.lib_lora.inspection.variants FOLDER SEED` writes whole files, and prints how many copies are found.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch
from safetensors.torch import load_file

from lib_lora.inspection.layers import layers_of
from lib_lora.inspection.sketches import Sketch, compare, sketch
from tests.fakes import spoiled
from tests.fakes.files import save
from tests.lib_lora.inspection.test_files import LORAS

NAMES = ("neon", "night", "outline", "stars", "stripes", "zorp")
"""The demo's."""
REDRAWN = {"clay": "stripes", "etch": "outline", "fuse": "neon", "ivy": "night", "moth": "zorp"}
"""Made one -> the one of the demo whose shapes and spectra it has."""
RELATED = "dusk"
"""Made one that has a part in common with night, at a cosine of 0.6: it is no copy."""
PLAIN = ("clay", "dusk", "ivy", "night", "stripes")
RANKS = {
    "clay": (2, 3),
    "dusk": (8, 6),
    "fuse": (32, 48),
    "ivy": (4, 3),
    "moth": (3, 4),
    "neon": (32, 48),
    "night": (4, 3),
    "stripes": (2, 3),
    "zorp": (3, 4),
}
"""File -> the ranks to which it is resized; others have no plain form without the model."""
WITHOUT_ALPHA = ("fuse", "neon", "stars")
"""Files in which alpha is no factor."""
MERGED = (
    *combinations(("neon", "night", "stripes", "zorp"), 2),
    *(("night", "ivy"), ("stripes", "clay"), ("neon", "moth"), ("zorp", "fuse"), ("ivy", "moth"), ("clay", "fuse")),
)


@dataclass(frozen=True)
class Variant:
    """One file of the set."""

    path: Path
    sources: tuple[str, ...]
    """One, or two of a merge."""
    how: str
    largest: float = 0.0
    """The share of the larger part in the energies of the parts of a merge."""

    def __str__(self) -> str:
        return f"{' + '.join(self.sources)} ({self.how})"

    def is_like(self, other: Variant) -> bool | None:
        """Return whether two files are duplicates; None of two merges, and where a merge is nearly one of its parts."""
        if len(self.sources) == len(other.sources) == 1:
            return self.sources == other.sources
        return None if len(self.sources) == len(other.sources) or max(self.largest, other.largest) > 0.9 else False


def write_variants(folder: Path, seed: int, every: int = 1) -> list[Variant]:
    """Write the twelve, their variants and merges of two, with all layers or one of a few."""
    generator = torch.Generator().manual_seed(seed)
    originals = sources(generator, every)

    def number(low: float, high: float) -> float:
        return low + (high - low) * torch.rand((), generator=generator).item()

    made: list[tuple[tuple[str, ...], str, float, spoiled.Tensors]] = []
    for name, tensors in originals.items():
        changed = {
            "original": tensors,
            "bf16": spoiled.cast(tensors, torch.bfloat16),
            "fp32": spoiled.cast(tensors, torch.float32),
            "fp8": spoiled.cast(tensors, torch.float8_e5m2),
            "half as strong": spoiled.scaled(tensors, number(0.4, 0.6)),
            "stronger": spoiled.scaled(tensors, number(1.5, 2.5)),
            "noise 1%": spoiled.noisy(tensors, 0.01, generator),
            "noise 10%": spoiled.noisy(tensors, 0.1, generator),
            "bf16, noise 3%": spoiled.cast(spoiled.noisy(tensors, 0.03, generator), torch.bfloat16),
            "stronger, bf16": spoiled.cast(spoiled.scaled(tensors, number(1.2, 3)), torch.bfloat16),
        }
        if name not in WITHOUT_ALPHA:
            changed["half the alpha"] = spoiled.with_alpha(tensors, 0.5)
        if name in PLAIN:
            changed["padded"] = spoiled.padded(tensors, 2)
            changed["turned"] = spoiled.turned(tensors, generator)
            changed["renamed"] = spoiled.spelled(tensors)
            changed["renamed, turned"] = spoiled.spelled(spoiled.turned(tensors, generator))
        for rank in RANKS.get(name, ()):
            changed[f"rank {rank}"] = spoiled.resized(tensors, rank)
        if name in RANKS:
            lower = spoiled.scaled(spoiled.resized(tensors, 24), number(0.7, 1.3))
            changed["converted, bf16, scaled"] = spoiled.cast(lower, torch.bfloat16)
        made += [((name,), how, 0.0, one) for how, one in changed.items()]
    norms = {name: norm_of(originals[name]) for name in {name for pair in MERGED for name in pair}}
    for pair in MERGED:
        for rank in (16, 32, 64):
            strengths = [number(0.4, 1.0), number(0.4, 1.0)]
            energies = [(strength * norms[name]) ** 2 for strength, name in zip(strengths, pair, strict=True)]
            parts = [(strength, originals[name]) for strength, name in zip(strengths, pair, strict=True)]
            merged = spoiled.merged(parts, rank)
            made.append((pair, f"merged, rank {rank}", max(energies) / sum(energies), merged))
    return [
        Variant(save(folder / f"{at}.safetensors", tensors), names, how, largest)
        for at, (names, how, largest, tensors) in enumerate(made)
    ]


def sources(generator: torch.Generator, every: int = 1) -> dict[str, spoiled.Tensors]:
    """Return the demo's six and six made ones."""
    found = {name: every_of(load_file(LORAS / f"{name}.safetensors"), every) for name in NAMES}
    found |= {name: spoiled.redrawn(found[other], generator) for name, other in REDRAWN.items()}
    others = spoiled.redrawn(found["night"], generator)
    share = 0.8 * norm_of(found["night"]) / norm_of(others)
    found[RELATED] = spoiled.merged([(0.6, found["night"]), (share, others)], 16)
    return found


@dataclass(frozen=True)
class Counts:
    """What was found among variants."""

    pairs: int
    """That are copies."""
    found: int
    """Of these."""
    wrong: tuple[str, ...]
    """Pairs that are none."""
    missed: tuple[str, ...]
    sums: int
    merges: int
    """That were found, with the right files."""
    wrong_merges: tuple[str, ...]


def judged(variants: Sequence[Variant], sketches: Sequence[Sketch]) -> Counts:
    """Compare variants, and count."""
    alike, merges = compare(sketches)
    truth = {(i, j): one.is_like(variants[j]) for i, one in enumerate(variants) for j in range(i + 1, len(variants))}
    right = {pair for pair, is_like in truth.items() if is_like}
    found = {one.files for one in alike if truth[one.files] is not None}
    whose = {one.file: {source for i in one.parents for source in variants[i].sources} for one in merges}
    good = {at for at, parts in whose.items() if parts == set(variants[at].sources) and len(parts) == 2}

    def said(pairs: set[tuple[int, int]]) -> tuple[str, ...]:
        return tuple([f"{variants[i]} and {variants[j]}" for i, j in sorted(pairs)])

    return Counts(
        len(right),
        len(found & right),
        said(found - right),
        said(right - found),
        sum(len(one.sources) == 2 for one in variants),
        len(good),
        tuple([f"{variants[at]} of {sorted(parts)}" for at, parts in whose.items() if at not in good]),
    )


def every_of(tensors: spoiled.Tensors, every: int) -> spoiled.Tensors:
    """Return one layer of a few."""
    kept = set(spoiled.layers(tensors)[::every])
    return {key: value for key, value in tensors.items() if key.partition(".")[0] in kept}


def norm_of(tensors: spoiled.Tensors) -> float:
    """Return the Frobenius norm of the whole change."""
    deltas = [spoiled.delta(tensors, name) for name in spoiled.layers(tensors)]
    return math.sqrt(sum(delta.square().sum().item() for delta in deltas))


def main(folder: Path, seed: int) -> None:
    """Run the trial."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    variants = write_variants(folder, seed)
    began = time.perf_counter()
    sketches = [sketch(layers_of(one.path)) for one in variants]
    made = time.perf_counter()
    counts = judged(variants, sketches)
    compared = time.perf_counter()
    each = (made - began) / len(variants)
    lines = [
        f"seed {seed}: {len(variants)} files, {each:.2f} s each, all {compared - made:.2f} s",
        f"pairs {counts.pairs}, found {counts.found}, wrong {len(counts.wrong)}",
        f"sums {counts.sums}, found {counts.merges}, wrong {len(counts.wrong_merges)}",
        *("missed", *counts.missed, "wrong", *counts.wrong, "wrong sums", *counts.wrong_merges),
    ]
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
