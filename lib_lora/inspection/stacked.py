"""Files on one model together: which reinforce, cancel or collide, and how large their sum is.

The cosine of two changes comes from their factors. The overlap of two subspaces of n dimensions is the sum of the
squared cosines of their principal angles, divided by the smaller of their dimensions p and q. By chance, of random
subspaces, it has the mean max(p, q) / n and the variance

    2 p q (n - p) (n - q) / (n^2 (n - 1) (n + 2) min(p, q)^2).

The cosine of a change with another one whose directions are random has the mean 0 and the variance 1 / (out * in).

A file that was trained against another one undoes little of it in the few layers with most of the energy, but it turns
against it in most layers. So two files also cancel where the mean of the cosines of their layers is below 0: each layer
counts the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from ..naming.blocks import block_order
from .deltas import Delta
from .layers import FileLayer, FileLayers, Progress, counted, unheard

Relation = Literal["reinforce", "cancel", "collide", "independent"]

_SHARE = 0.9
"""The singular vectors that have this share of a layer's energy span its subspaces."""
_ALIKE = 0.1
"""The cosine from which two files reinforce or cancel each other."""
_AGAINST, _FAR = 0.02, 10
"""The mean of the layers' cosines, below 0, from which two files cancel each other, and its deviations from chance."""
_SHARED = 0.1
"""The part of the way from chance to the same subspace, on both sides, from which two files collide."""
_SIGMAS = 4
"""Deviations by which a figure is beyond chance."""


def overlap_by_chance(first: int, second: int, size: int) -> tuple[float, float]:
    """Return the mean and the variance of the overlap of random subspaces of two dimensions, in a space of `size`."""
    least = min(first, second)
    free = 2 * first * second * (size - first) * (size - second)
    return max(first, second) / size, free / (size**2 * max(size - 1, 1) * (size + 2) * least**2)


@dataclass(slots=True)
class PairMeasures:
    """Two files on the layers that both change, in one band of blocks of one component."""

    files: tuple[int, int]
    """Positions in the stack."""
    component: str
    band: str
    layers: int = 0
    inner: float = 0.0
    energies: tuple[float, float] = (0.0, 0.0)
    inner_variance: float = 0.0
    cosines: list[float] = field(default_factory=list)
    """Layer by layer."""
    cosine_variances: list[float] = field(default_factory=list)
    """Of these, by chance."""
    overlaps: list[tuple[float, float]] = field(default_factory=list)
    """Layer by layer, of the outputs and of the inputs."""
    chances: list[tuple[tuple[float, float], tuple[float, float]]] = field(default_factory=list)
    """Mean and variance of each overlap by chance."""

    @property
    def cosine(self) -> float:
        """Return the cosine of the two changes; 0 where one of them is nothing."""
        size = math.sqrt(self.energies[0] * self.energies[1])
        return self.inner / size if size else 0.0

    @property
    def cosine_by_chance(self) -> float:
        """Return the standard deviation of the cosine of changes in random directions."""
        size = math.sqrt(self.energies[0] * self.energies[1])
        return math.sqrt(self.inner_variance) / size if size else 0.0

    @property
    def mean_cosine(self) -> float:
        """Return the mean of the layers' cosines, whatever their energies."""
        return sum(self.cosines) / max(len(self.cosines), 1)

    @property
    def mean_by_chance(self) -> float:
        """Return the standard deviation of that mean, of changes in random directions."""
        return math.sqrt(sum(self.cosine_variances)) / max(len(self.cosines), 1)

    def overlap(self, side: int) -> tuple[float, float, float]:
        """Return the mean overlap of the outputs (0) or the inputs (1), its mean by chance, and the deviation of that.

        Layers in which chance alone makes the subspaces the same tell nothing, and are left out.
        """
        found = [
            (overlap[side], *chance[side])
            for overlap, chance in zip(self.overlaps, self.chances, strict=True)
            if chance[side][0] < 1
        ]
        if not found:
            return 0.0, 0.0, 0.0
        values, means, variances = (torch.tensor(one, dtype=torch.float64) for one in zip(*found, strict=True))
        return float(values.mean()), float(means.mean()), float(variances.sum().sqrt()) / len(found)

    def excess(self, side: int) -> float:
        """Return the part of the way from chance to the same subspace; 0 where chance explains the overlap."""
        value, chance, deviation = self.overlap(side)
        return (value - chance) / (1 - chance) if value > chance + _SIGMAS * deviation else 0.0

    @property
    def relation(self) -> Relation:
        """Return what the two files do to each other."""
        if self.mean_cosine < -max(_AGAINST, _FAR * self.mean_by_chance):
            return "cancel"
        if abs(self.cosine) > max(_ALIKE, _SIGMAS * self.cosine_by_chance):
            return "reinforce" if self.cosine > 0 else "cancel"
        return "collide" if min(self.excess(0), self.excess(1)) > _SHARED else "independent"

    def add(self, deltas: tuple[Delta, Delta], spaces: tuple[_Space, _Space]) -> None:
        """Count one layer in."""
        self.layers += 1
        inner = deltas[0].inner(deltas[1])
        first, second = spaces[0].energy, spaces[1].energy
        self.inner += inner
        self.energies = self.energies[0] + first, self.energies[1] + second
        self.inner_variance += first * second / math.prod(deltas[0].shape)
        if not (first and second):
            return
        self.cosines.append(inner / math.sqrt(first * second))
        self.cosine_variances.append(1 / math.prod(deltas[0].shape))
        pairs = list(zip(spaces[0].vectors, spaces[1].vectors, strict=True))
        left, right = [
            float((one.T @ other).square().sum()) / min(one.shape[1], other.shape[1]) for one, other in pairs
        ]
        self.overlaps.append((left, right))
        outputs, inputs = [overlap_by_chance(one.shape[1], other.shape[1], len(one)) for one, other in pairs]
        self.chances.append((outputs, inputs))

    def to_json(self) -> dict[str, object]:
        """Return plain data for `json.dumps`."""
        fields = ("overlap", "chance", "deviation")
        sides = {name: dict(zip(fields, self.overlap(i), strict=True)) for i, name in enumerate(("outputs", "inputs"))}
        return {
            "files": list(self.files),
            "component": self.component,
            "band": self.band,
            "layers": self.layers,
            "cosine": self.cosine,
            "cosine_by_chance": self.cosine_by_chance,
            "mean_cosine": self.mean_cosine,
            "mean_by_chance": self.mean_by_chance,
            **sides,
            "relation": self.relation,
        }


@dataclass(frozen=True, slots=True, eq=False)
class _Space:
    """The energy of a change, and the singular vectors that have most of it."""

    energy: float
    vectors: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, delta: Delta) -> _Space:
        values, left, right = delta.principal(_SHARE)
        return cls(float(values.square().sum()), (left, right))


@dataclass(frozen=True, slots=True, eq=False)
class StackMeasures:
    """The measures of files on one model together."""

    pairs: tuple[PairMeasures, ...]
    gram: Tensor
    """Sums of products of all entries, file by file."""

    @property
    def cancelling(self) -> list[tuple[int, int]]:
        """Return the pairs of files that cancel each other in a band."""
        return list(dict.fromkeys([pair.files for pair in self.pairs if pair.relation == "cancel"]))

    def norm(self, strengths: Sequence[float]) -> float:
        """Return the Frobenius norm of the sum of all files at their strengths."""
        given = torch.tensor(strengths, dtype=torch.float64)
        return math.sqrt(max(float(given @ self.gram @ given), 0.0))

    def factor(self, strengths: Sequence[float]) -> float:
        """Return the factor on all strengths at which the sum has the norm of the strongest file alone."""
        alone = max([abs(one) * math.sqrt(float(self.gram[i, i])) for i, one in enumerate(strengths)], default=0.0)
        return alone / self.norm(strengths) if self.norm(strengths) else 1.0


def measure_stack(files: Sequence[FileLayers], progress: Progress = unheard) -> StackMeasures:
    """Compare files on the layers that they have in common; one layer of all files is in memory at a time.

    Layers match by their names: in the model, where the files were resolved against one, else as the files spell them.

    Args:
        files: the layers of each.
        progress: is called before each layer of the model.

    Raises:
        FileError: a file changed on disk.
    """
    places: dict[tuple[str, str], dict[int, FileLayer]] = {}
    for i, file in enumerate(files):
        for layer in file.layers:
            places.setdefault(layer.place, {})[i] = layer
    bands = _bands([layer for of_place in places.values() for layer in of_place.values()])
    pairs: dict[tuple[int, int, str, str], PairMeasures] = {}
    gram = torch.zeros(len(files), len(files), dtype=torch.float64)
    for (component, _), of_place in counted(list(places.items()), progress):
        deltas = {i: delta for i, layer in of_place.items() if (delta := layer.delta()) is not None}
        spaces = {i: _Space.of(delta) for i, delta in deltas.items()}
        for i, space in spaces.items():
            gram[i, i] += space.energy
        band = bands[component, next(iter(of_place.values())).block]
        for i, j in combinations(sorted(deltas), 2):
            if deltas[i].shape != deltas[j].shape:
                continue
            pair = pairs.setdefault((i, j, component, band), PairMeasures((i, j), component, band))
            before = pair.inner
            pair.add((deltas[i], deltas[j]), (spaces[i], spaces[j]))
            gram[i, j] += pair.inner - before
            gram[j, i] = gram[i, j]
    return StackMeasures(tuple(pairs[key] for key in sorted(pairs)), gram)


def _bands(layers: Sequence[FileLayer]) -> dict[tuple[str, str], str]:
    """Return the component and the block of each layer -> the third of the component's blocks that it is in."""
    blocks: dict[str, set[str]] = {}
    for layer in layers:
        blocks.setdefault(layer.place[0], set()).add(layer.block)
    found = {}
    for component, names in blocks.items():
        found[component, ""] = "no block"
        ordered = sorted(names - {""}, key=block_order)
        thirds = [ordered[len(ordered) * i // 3 : len(ordered) * (i + 1) // 3] for i in range(3)]
        for third in thirds:
            text = " to ".join(dict.fromkeys([*third[:1], *third[-1:]]))
            found |= {(component, name): text for name in third}
    return found
