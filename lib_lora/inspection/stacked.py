"""Files on one model together: which reinforce, cancel or collide, and how large their sum is.

The cosine of two changes comes from their factors. The overlap of two subspaces of n dimensions is the sum of the
squared cosines of their principal angles, divided by the smaller of their dimensions p and q. By chance, of random
subspaces, it has the mean max(p, q) / n and the variance

    2 p q (n - p) (n - q) / (n^2 (n - 1) (n + 2) min(p, q)^2).

The cosine of a change with another one whose directions are random has the mean 0 and the variance 1 / (out * in).

A file that was trained against another one undoes little of it in the few layers with most of the energy, but it turns
against it in most layers. So two files also cancel where the mean of the cosines of their layers is below 0: each layer
counts the same.

Layers are measured at strength 1. Strengths and block weights come afterwards, so that other ones cost nothing. A
negative strength turns a change round: what reinforces another one at 1 cancels it at -1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from ..errors import StackError, check_type
from ..files.components import DENOISER, TEXT_ENCODER, role
from ..naming.blocks import BlockNames, block_order, side_of
from ..naming.index import LayerIndex
from ..strengths.stack_strengths import block_rules
from ..strengths.strength import AnyMultiplier, Curve, checked, strengths_by_image
from .deltas import Delta
from .layers import UNKNOWN, FileLayer, FileLayers, Progress, counted, unheard

Relation = Literal["reinforce", "cancel", "collide", "independent"]
_Block: TypeAlias = tuple[str, str]
"""A component, and the name that block weights have for one of its blocks."""

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
_ALIVE, _AIM = 0.5, 0.51
"""The part of a file's change that a sum should leave, and what the search for strengths aims at."""
_WEAKEST, _ROUNDS = 0.05, 500
"""The smallest factor on a strength in that search, and its rounds."""
_NO_MODEL = BlockNames(())


def overlap_by_chance(first: int, second: int, size: int) -> tuple[float, float]:
    """Return the mean and the variance of the overlap of random subspaces of two dimensions, in a space of `size`."""
    least = min(first, second)
    free = 2 * first * second * (size - first) * (size - second)
    return max(first, second) / size, free / (size**2 * max(size - 1, 1) * (size + 2) * least**2)


class _Shared(NamedTuple):
    """Two files on one layer that both change."""

    inner: float
    """The sum of the products of all entries."""
    energies: tuple[float, float]
    entries: int
    """Of the weight."""
    overlaps: tuple[float, float]
    """Of the outputs and of the inputs."""
    chances: tuple[tuple[float, float], tuple[float, float]]
    """Mean and variance of each overlap by chance."""

    @property
    def cosine(self) -> float:
        """Return the cosine of the two changes, of which none is nothing."""
        return self.inner / math.sqrt(self.energies[0] * self.energies[1])

    def at(self, first: float, second: float) -> _Shared:
        """Return the same with a factor on each file."""
        energies = first**2 * self.energies[0], second**2 * self.energies[1]
        return self._replace(inner=first * second * self.inner, energies=energies)


@dataclass(frozen=True, slots=True)
class PairMeasures:
    """Two files on the layers that both change, in one band of blocks of one component."""

    files: tuple[int, int]
    """Positions in the stack."""
    component: str
    band: str
    shared: tuple[_Shared, ...]

    @property
    def layers(self) -> int:
        """Return how many layers both change."""
        return len(self.shared)

    @property
    def _size(self) -> float:
        return math.sqrt(math.prod(sum(one.energies[side] for one in self.shared) for side in (0, 1)))

    @property
    def cosine(self) -> float:
        """Return the cosine of the two changes; 0 where one of them is nothing."""
        return sum(one.inner for one in self.shared) / self._size if self._size else 0.0

    @property
    def cosine_by_chance(self) -> float:
        """Return the standard deviation of the cosine of changes in random directions."""
        variance = sum(math.prod(one.energies) / one.entries for one in self.shared)
        return math.sqrt(variance) / self._size if self._size else 0.0

    @property
    def _acting(self) -> list[_Shared]:
        return [one for one in self.shared if math.prod(one.energies)]

    @property
    def mean_cosine(self) -> float:
        """Return the mean of the layers' cosines, whatever their energies."""
        return sum(one.cosine for one in self._acting) / max(len(self._acting), 1)

    @property
    def mean_by_chance(self) -> float:
        """Return the standard deviation of that mean, of changes in random directions."""
        return math.sqrt(sum(1 / one.entries for one in self._acting)) / max(len(self._acting), 1)

    def overlap(self, side: int) -> tuple[float, float, float]:
        """Return the mean overlap of the outputs (0) or the inputs (1), its mean by chance, and the deviation of that.

        Layers in which chance alone makes the subspaces the same tell nothing, and are left out.
        """
        found = [(one.overlaps[side], *one.chances[side]) for one in self._acting if one.chances[side][0] < 1]
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


def _shared(deltas: tuple[Delta, Delta], spaces: tuple[_Space, _Space]) -> _Shared:
    """Compare two changes of one weight."""
    pairs = list(zip(spaces[0].vectors, spaces[1].vectors, strict=True))
    left, right = [float((one.T @ other).square().sum()) / min(one.shape[1], other.shape[1]) for one, other in pairs]
    outputs, inputs = [overlap_by_chance(one.shape[1], other.shape[1], len(one)) for one, other in pairs]
    energies = spaces[0].energy, spaces[1].energy
    return _Shared(deltas[0].inner(deltas[1]), energies, math.prod(deltas[0].shape), (left, right), (outputs, inputs))


class StackLayer(NamedTuple):
    """A layer that files of a stack change."""

    component: str
    block: str
    """As block weights name it; empty for a layer in no block."""
    name: str
    """Of the model's layer, or as the files spell it, with underscores."""
    band: str
    """Of blocks."""


Naming: TypeAlias = Callable[[StackLayer], Iterable[str]]
"""Returns all names of a layer, which rules for some layers look at."""


def naming_in(components: Mapping[str, nn.Module]) -> Naming:
    """Return what tells the names that layers have in a model, as an engine knows them; of any other layer, its own.

    A layer of a file that is several in the model has the names of all of these.
    """
    indexes = [LayerIndex(name, module) for name, module in components.items()]

    def names(layer: StackLayer) -> list[str]:
        for index in indexes:
            if layer.component in (index.component, role(index.component), UNKNOWN):
                place = index.find(layer.name)
                if place is not None:
                    return [name for one in place.windows for name in index.names.get(one.path, [one.path])]
        return [layer.name]

    return names


def own_name(layer: StackLayer) -> tuple[str, ...]:
    """Return the one name that a file tells of a layer."""
    return (layer.name,)


def factor_on(
    strength: AnyMultiplier, layer: StackLayer, model: BlockNames = _NO_MODEL, naming: Naming = own_name
) -> float:
    """Return the factor of a strength on one layer; of a schedule, the value farthest from 0.

    The first image and the positive prompt count.

    Raises:
        StackError: the model takes no such list of block weights.
    """
    component, block = layer.component, layer.block
    own = strengths_by_image(strength)[0][0]
    named = own.of if isinstance(own.of, Mapping) else {}
    is_text = role(component) == TEXT_ENCODER
    components = [block if is_text else component]
    if component in (DENOISER, UNKNOWN):  # a file does not tell which denoiser it is
        components = [one for one in named if role(one) == DENOISER] or components
    amounts = [own.amount(one, None if is_text else side_of(block)) for one in components]
    points = [one.points if isinstance(one, Curve) else ((0.0, one),) for one in amounts]
    factor = max([value for part in points for _, value in part], key=abs)
    if own.blocks is None:
        return factor
    names = list(naming(layer)) if own.blocks.elements else []
    rules = [rule for rule in block_rules(own) if rule.suits(block, names, model)]
    return factor * own.blocks.weight(block, rules, model)


@dataclass(frozen=True, slots=True, eq=False)
class StackMeasures:
    """The measures of files on one model together, at strengths; `measure_stack` returns them at strength 1."""

    files: int
    layers: tuple[StackLayer, ...]
    shared: tuple[Mapping[tuple[int, int], _Shared], ...]
    """The pairs of files on each layer."""
    grams: Tensor  # (layers, files, files): sums of products of all entries
    factors: Tensor  # (layers, files)

    def at(
        self, strengths: Sequence[AnyMultiplier], model: BlockNames = _NO_MODEL, naming: Naming = own_name
    ) -> StackMeasures:
        """Return the measures at other strengths.

        Args:
            strengths: of each file.
            model: the blocks of the model, which tell what a list of block weights means.
            naming: tells the names of a layer, for rules of block weights.

        Raises:
            StackError: a strength is not finite, there is not one for each file, or the model takes no such list of
                block weights.
        """
        check_type(strengths, Sequence, "strengths", "a list with the strength of each file")
        if len(strengths) != self.files:
            raise StackError(f"{len(strengths)} strengths for {self.files} files")
        given = [checked(one, "a strength") for one in strengths]
        factors = [[factor_on(one, layer, model, naming) for one in given] for layer in self.layers]
        return replace(self, factors=torch.tensor(factors, dtype=torch.float64).reshape(-1, self.files))

    @property
    def pairs(self) -> tuple[PairMeasures, ...]:
        """Return what each two files do to each other in each band of blocks in which both act."""
        found: dict[tuple[int, int, str, str], list[_Shared]] = {}
        for layer, shared, factors in zip(self.layers, self.shared, self.factors.tolist(), strict=True):
            for (first, second), one in shared.items():
                if factors[first] and factors[second]:
                    own = found.setdefault((first, second, layer.component, layer.band), [])
                    own.append(one.at(factors[first], factors[second]))
        return tuple(PairMeasures(key[:2], *key[2:], tuple(found[key])) for key in sorted(found))

    @property
    def gram(self) -> Tensor:
        """Return sums of products of all entries, file by file."""
        return (self.grams * self.factors.unsqueeze(2) * self.factors.unsqueeze(1)).sum(0)

    @property
    def cancelling(self) -> list[tuple[int, int]]:
        """Return the pairs of files that cancel each other in a band."""
        return list(dict.fromkeys([pair.files for pair in self.pairs if pair.relation == "cancel"]))

    @property
    def norm(self) -> float:
        """Return the Frobenius norm of the sum of all files."""
        return math.sqrt(max(float(self.gram.sum()), 0.0))

    @property
    def alone(self) -> list[float]:
        """Return the norm of each file."""
        return [math.sqrt(float(one)) for one in self.gram.diagonal()]

    @property
    def left(self) -> list[float]:
        """Return how much of each file is left in the sum along its own change: 1 is all of it, 0 is nothing.

        It is the product of the sum with the file's change, divided by the square of the norm of the change.
        """
        gram = self.gram
        return [float(row.sum() / row[i]) if row[i] else 0.0 for i, row in enumerate(gram)]

    def alive(self) -> list[float] | None:
        """Return factors on the strengths, 1 at most, at which the sum leaves half of each file; None if none do.

        Each file asks that a sum of the others' products with it is not too small: a half space. The strengths are
        moved to each half space in turn, so they change little.
        """
        norms = torch.tensor(self.alone, dtype=torch.float64)
        acting = norms > 0
        sizes = norms[acting]
        cosines = self.gram[acting][:, acting] / torch.outer(sizes, sizes)
        asked = cosines - _AIM * torch.eye(len(sizes))
        found = sizes.clone()
        for _ in range(_ROUNDS):
            if ((cosines @ found) >= _ALIVE * found).all():
                factors = torch.ones_like(norms)
                factors[acting] = found / sizes
                return [float(one) for one in factors / factors.max()] if acting.any() else factors.tolist()
            for row in asked:
                found -= (row @ found).clamp_max(0.0) * row / (row @ row)
                found = found.maximum(_WEAKEST * sizes)
        return None

    def factor(self, norm: float | None = None) -> float:
        """Return the factor on all strengths at which the sum has a norm; without one, that of the strongest file."""
        wanted = max(self.alone, default=0.0) if norm is None else norm
        return wanted / self.norm if self.norm else 1.0


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
    layers, every = list[StackLayer](), list[dict[tuple[int, int], _Shared]]()
    grams = torch.zeros(len(places), len(files), len(files), dtype=torch.float64)
    for at, ((component, name), of_place) in enumerate(counted(list(places.items()), progress)):
        deltas = {i: delta for i, layer in of_place.items() if (delta := layer.delta()) is not None}
        spaces = {i: _Space.of(delta) for i, delta in deltas.items()}
        block = next(iter(of_place.values())).block
        layers.append(StackLayer(component, block, name, bands[component, block]))
        for i, space in spaces.items():
            grams[at, i, i] = space.energy
        shared = {
            (i, j): _shared((deltas[i], deltas[j]), (spaces[i], spaces[j]))
            for i, j in combinations(sorted(deltas), 2)
            if deltas[i].shape == deltas[j].shape
        }
        for (i, j), one in shared.items():
            grams[at, i, j] = grams[at, j, i] = one.inner
        every.append(shared)
    return StackMeasures(len(files), tuple(layers), tuple(every), grams, torch.ones(len(places), len(files)).double())


def _bands(layers: Sequence[FileLayer]) -> dict[_Block, str]:
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
