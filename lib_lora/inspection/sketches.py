"""Sketches of files: a few hundred numbers that tell whether two files are the same change, or one is a sum of two.

Number k is the sum over all layers of u_k^T dW v_k, times 1 / sqrt(NUMBERS), where u_k and v_k have entries 1 and -1
that depend on k and on the shape of the weight alone. It is computed through the factors. It is linear in the change,
and neither precision nor rank, names, or how the factors share the change make a difference. The cosine of two sketches
estimates the cosine of the changes, in which layers of one shape are added up.

Without the base weight, a change that depends on it is unknown. In its place are the parameters, less their mean: those
of another file begin at the same number. A magnitude of DoRA is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from ..adapters import Modifier
from ..adapters.base import Adapter
from .deltas import Delta, DenseDelta, LowRankDelta
from .layers import FileLayers

NUMBERS = 256
_LONGEST = 1 << 18
"""The most rows or columns of a layer that is counted; no weight of a model has more."""
_SAME = 0.998
"""The cosine from which two files are the same change, up to the rounding of float8."""
_NEAR = 0.8
"""The cosine from which two files are near-duplicates."""
_MERGED = 0.2
"""The share of the energy of a sum of two files that neither of them explains."""
_PART = 0.02
"""The least share of the energy of a sum that each of the two must have."""
_BETTER = 0.5
"""How much less of a sum two files must leave than one of them alone."""
_EQUAL = 0.02
"""How much the factor between two files may differ from 1."""

Alike = Literal["same", "precision", "rank", "scaled", "resized", "near"]


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """The sketch of one file, and what tells copies apart."""

    numbers: Tensor  # (NUMBERS,), fp64
    dtypes: frozenset[str]
    ranks: tuple[int, int] | None
    kinds: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Likeness:
    """Two files of a set that are alike."""

    files: tuple[int, int]
    """Positions in the set."""
    alike: Alike
    cosine: float
    factor: float
    """The second file is about this times the first."""


@dataclass(frozen=True, slots=True)
class Merge:
    """A file of a set that is the sum of two others."""

    file: int
    parents: tuple[int, int]
    strengths: tuple[float, float]
    left: float
    """The share of its energy that the parents do not explain."""


def sketch(file: FileLayers) -> Sketch:
    """Return the sketch of a file.

    Raises:
        FileError: it changed on disk.
    """
    total = torch.zeros(NUMBERS, dtype=torch.float64)
    with file.parsed.file.reading() as reader:
        for layer in file.layers:
            delta = layer.delta()
            if delta is not None:
                total += _numbers(delta)
        unknown = [key for group in file.shapeless for key in group.reads]
        unknown += [key for layer in file.layers if _reads_base(layer.adapter) for key in layer.keys]
        for tensor in file.parsed.file.tensors(unknown).values():
            if tensor.numel() > 1:
                entries = reader.copy(tensor).double()
                total += _numbers(DenseDelta((entries - entries.mean()).reshape(len(entries), -1)))
    infos = file.parsed.file.infos
    named = [named for group in file.parsed.groups for named in group.keys.items()]
    dtypes = {str(infos[key].dtype) for param, key in named if param != "alpha"}
    return Sketch(total, frozenset(dtypes), file.report.ranks, file.report.kinds)


def _reads_base(adapter: Adapter) -> bool:
    """Return whether an adapter depends on the base weight, modifiers aside."""
    return _reads_base(adapter.inner) if isinstance(adapter, Modifier) else adapter.reads_base


def _numbers(delta: Delta) -> Tensor:
    rows, columns = delta.shape
    if max(delta.shape) > _LONGEST:
        return torch.zeros(NUMBERS, dtype=torch.float64)
    left, right = _signs(rows, 0), _signs(columns, 1)
    if isinstance(delta, LowRankDelta):  # without a matrix of all rows, and in fp32, which is exact enough
        products = (left.T @ delta.up.float()) * (delta.down.float() @ right).T
        return products.sum(1).double() / math.sqrt(NUMBERS)
    return (left.double() * delta.times(right.double())).sum(0) / math.sqrt(NUMBERS)


@lru_cache(maxsize=64)
def _signs(size: int, side: int) -> Tensor:
    """Return (size, NUMBERS) signs for the outputs (0) or the inputs (1) of weights that have so many.

    By a hash that is the same with every version of torch (splitmix64).
    """
    mixed = torch.arange(size * NUMBERS) * -7046029254386353131 + (2 * size + side) * 104_729
    mixed = (mixed ^ (mixed >> 30)) * -4658895280553007687
    mixed = (mixed ^ (mixed >> 27)) * -7723592293110705685
    signs = ((mixed ^ (mixed >> 31)) & 1) * 2 - 1
    return signs.float().reshape(size, NUMBERS)


def compare(sketches: Sequence[Sketch]) -> tuple[list[Likeness], list[Merge]]:
    """Return the pairs of files that are alike, the most alike first, and the files that are sums of two others.

    A sum is like its larger part, and like another sum with that part. Such pairs are left out.
    """
    numbers = torch.stack([one.numbers for one in sketches])
    gram = numbers @ numbers.T
    norms = gram.diagonal().sqrt().clamp_min(torch.finfo(gram.dtype).tiny)
    cosines = gram / norms / norms.unsqueeze(1)
    own = torch.ones(len(sketches), dtype=torch.bool)
    sums = [i for i in range(len(sketches)) if _parents(gram, cosines, i, own) is not None]
    own[sums] = False  # a sum may explain another sum with the same parts, but made none
    merges = [merge for i in sums if (merge := _parents(gram, cosines, i, own)) is not None]
    found = []
    for i, j in (cosines.triu(1) > _NEAR).nonzero().tolist():
        cosine, factor = float(cosines[i, j]), float(gram[i, j] / gram[i, i])
        if cosine > _SAME or not {i, j} & {merge.file for merge in merges}:
            found.append(Likeness((i, j), _alike(sketches[i], sketches[j], cosine, factor), cosine, factor))
    return sorted(found, key=lambda one: -one.cosine), merges


def _alike(first: Sketch, second: Sketch, cosine: float, factor: float) -> Alike:
    resized = (first.ranks, first.kinds) != (second.ranks, second.kinds)
    if cosine < _SAME:
        return "resized" if resized else "near"
    if abs(factor - 1) > _EQUAL:
        return "scaled"
    if resized:
        return "rank"
    return "same" if first.dtypes == second.dtypes else "precision"


def _parents(gram: Tensor, cosines: Tensor, i: int, allowed: Tensor) -> Merge | None:
    """Return the two allowed files of which file `i` is a sum, by least squares with all pairs; None without such.

    Both have positive strengths: else a parent would be the sum of its child and, negatively, of the other parent. Two
    that are alike are one parent, and what one explains nearly as well is no sum.
    """
    energy, with_own, diagonal = gram[i, i], gram[i], gram.diagonal()
    area = torch.outer(diagonal, diagonal) - gram.square()
    first = (torch.outer(with_own, diagonal) - with_own * gram) / area  # of the pair (row, column), the row's strength
    explained = (first * with_own.unsqueeze(1) + first.T * with_own) / energy
    left = 1 - explained
    alone = 1 - torch.maximum(cosines[i].unsqueeze(1), cosines[i]).square()
    shares = first.square() * diagonal.unsqueeze(1) / energy
    other = allowed & (cosines[i] < _SAME)
    fits = (torch.minimum(shares, shares.T) > _PART) & (cosines < _NEAR) & torch.outer(other, other)
    fits &= torch.minimum(first, first.T) > 0
    left = torch.where(fits & (left < _MERGED) & (left < _BETTER * alone), left, torch.inf)
    best = int(left.argmin())
    j, k = divmod(best, len(gram))
    if not torch.isfinite(left[j, k]):
        return None
    return Merge(i, (j, k), (float(first[j, k]), float(first[k, j])), float(left[j, k]))
