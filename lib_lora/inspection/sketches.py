"""Sketches of files: a few hundred numbers that tell whether two files are the same change, or one is a sum of two.

Number k is the sum over all layers of u_k^T dW v_k, times 1 / sqrt(NUMBERS), where u_k and v_k have entries 1 and -1
that depend on k and on the shape of the weight alone. It is computed through the factors. It is linear in the change,
and neither precision nor rank, names, or how the factors share the change make a difference. The cosine of two sketches
estimates the cosine of the changes, in which layers of one shape are added up.

Without the base weight, a change that depends on it is unknown. In its place are the parameters, less their mean: those
of another file begin at the same number. A magnitude of DoRA is left out.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..adapters import Modifier
from ..adapters.base import Adapter
from ..adapters.lokr import LoKr
from .deltas import Delta, DenseDelta, LowRankDelta
from .layers import FileLayer, FileLayers, Progress, counted, unheard
from .steps import by_training

NUMBERS = 256
VERSION = 1
"""Of the numbers and of how they are stored; sketches of different versions are not compared."""
_STORED = struct.Struct(f"<{NUMBERS}f")
_LONGEST = 1 << 18
"""The most rows or columns of a layer that is counted; no weight of a model has more."""
_LARGEST = 1 << 25
"""The most entries of a layer without factors that is counted: such a layer takes three matrices in fp64."""
_SAME = 0.998
"""The cosine from which two files are the same change, up to the rounding of float8."""
_NEAR = 0.8
"""The cosine from which two files are near-duplicates."""
_CONTINUED = 0.7
"""The cosine from which two files whose names say so are of one training; two trainings of one thing may have 0.66."""
_MERGED = 0.2
"""The share of the energy of a sum of two files that neither of them explains."""
_APART = 0.6
"""The cosine from which two files are no parts of a sum: rather, they are one at two strengths that are not linear."""
_PART = 0.02
"""The least share of the energy of a sum that each of the two must have."""
_BETTER = 0.5
"""How much less of a sum two files must leave than one of them alone."""
_EQUAL = 0.02
"""How much the factor between two files may differ from 1."""
_JOINED = 64
"""The rank from which pairs of factors are not put together: their product is fast, and they take some memory."""
_HASHED = 1 << 20
"""The signs that are made at a time."""
_AT_ONCE = 128
"""The files that are compared with all others at a time."""
_CANDIDATES = 48
"""The files that are most like a file, among which its parts are looked for."""
_DIGITS, _LONGEST_NAME = 10, 100
"""The most that is kept of a header: digits of a number of steps, and characters of a name."""

Alike = Literal["same", "precision", "rank", "scaled", "resized", "near", "epoch"]


class Training(NamedTuple):
    """The training that wrote a file, and how far it was."""

    session: str
    """The same in all files of one training, and in no others."""
    steps: int

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Training | None:
        """Return what kohya's trainers write; None where the metadata have none of it."""
        session, began = (metadata.get(key, "") for key in ("ss_session_id", "ss_training_started_at"))
        steps = metadata.get("ss_steps", "")
        is_told = session and began and steps.isdecimal() and len(steps) < _DIGITS
        return cls(f"{session} {began}"[:_LONGEST_NAME], int(steps)) if is_told else None


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """The sketch of one file, and what tells copies apart."""

    numbers: Tensor  # (NUMBERS,), fp64
    dtypes: frozenset[str]
    ranks: tuple[int, int] | None
    kinds: Mapping[str, int]
    training: Training | None = None

    def to_bytes(self) -> bytes:
        """Return about 1,100 bytes that `from_bytes` reads: a line of JSON, then the numbers in fp32."""
        said = {"version": VERSION, "dtypes": sorted(self.dtypes), "ranks": self.ranks, "kinds": dict(self.kinds)}
        said["training"] = self.training
        return json.dumps(said).encode() + b"\n" + _STORED.pack(*self.numbers.float().tolist())

    @classmethod
    def from_bytes(cls, stored: bytes) -> Sketch | None:
        """Return the sketch that `to_bytes` stored; None if it is of another version, or damaged."""
        head, _, rest = stored.partition(b"\n")
        try:
            said = json.loads(head)
            numbers = torch.tensor(_STORED.unpack(rest), dtype=torch.float64)
            ranks = None if said["ranks"] is None else (int(said["ranks"][0]), int(said["ranks"][1]))
            kinds = {str(kind): int(count) for kind, count in said["kinds"].items()}
            dtypes = frozenset(map(str, said["dtypes"]))
            told = said.get("training")
            training = None if told is None else Training(str(told[0]), int(told[1]))
        except (ValueError, TypeError, LookupError, AttributeError, struct.error, RecursionError):
            return None
        return cls(numbers, dtypes, ranks, kinds, training) if said.get("version") == VERSION else None


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


def sketch(file: FileLayers, progress: Progress = unheard) -> Sketch:
    """Return the sketch of a file.

    Args:
        file: its layers.
        progress: is called before each layer.

    Raises:
        FileError: it changed on disk.
    """
    total = torch.zeros(NUMBERS, dtype=torch.float64)
    with file.reading():
        deltas = (None if _is_too_large(layer) else layer.delta() for layer in counted(file.layers, progress))
        for delta in _joined(deltas):
            total += _numbers(delta)
        unknown = [(own, key) for own, group in file.shapeless for key in group.reads]
        unknown += [(layer.file, key) for layer in file.layers if _reads_base(layer.adapter) for key in layer.keys]
        for own, key in counted(list(dict.fromkeys(unknown)), progress):
            tensor = own.tensors([key])[key]
            if tensor.numel() > 1:
                entries = own.reading().copy(tensor).double()
                total += _numbers(DenseDelta((entries - entries.mean()).reshape(len(entries), -1)))
    named = [(one.file.infos, named) for one in file.files for group in one.groups for named in group.keys.items()]
    dtypes = {str(infos[key].dtype) for infos, (param, key) in named if param != "alpha"}
    training = Training.of(file.report.metadata)
    return Sketch(total, frozenset(dtypes), file.report.ranks, file.report.kinds, training)


def _is_too_large(layer: FileLayer) -> bool:
    """Return whether a change has no factors, and takes too much memory as a matrix."""
    return not has_factors(layer.adapter) and math.prod(layer.shape) > _LARGEST


def has_factors(adapter: Adapter) -> bool:
    """Return whether a change is a product of matrices, modifiers aside."""
    while isinstance(adapter, Modifier):
        adapter = adapter.inner
    form = adapter.form()
    return isinstance(adapter, LoKr) or (form is not None and form.pair is not None)


def _reads_base(adapter: Adapter) -> bool:
    """Return whether an adapter depends on the base weight, modifiers aside."""
    return _reads_base(adapter.inner) if isinstance(adapter, Modifier) else adapter.reads_base


def _joined(deltas: Iterable[Delta | None]) -> Iterator[Delta]:
    """Yield changes, and in place of pairs of factors of one shape their sum: its numbers take one product."""
    waiting: dict[tuple[int, int], list[LowRankDelta]] = {}
    for delta in deltas:
        if isinstance(delta, LowRankDelta):
            pairs = waiting.setdefault(delta.shape, [])
            pairs.append(LowRankDelta(delta.up.float(), delta.down.float()))
            if sum([one.up.shape[1] for one in pairs]) >= _JOINED:
                yield _sum(waiting.pop(delta.shape))
        elif delta is not None:
            yield delta
    yield from map(_sum, waiting.values())


def _sum(pairs: Sequence[LowRankDelta]) -> LowRankDelta:
    return LowRankDelta(torch.cat([one.up for one in pairs], 1), torch.cat([one.down for one in pairs]))


def _numbers(delta: Delta) -> Tensor:
    rows, columns = delta.shape
    if max(delta.shape) > _LONGEST:
        return torch.zeros(NUMBERS, dtype=torch.float64)
    left, right = _signs(rows, 0), _signs(columns, 1)
    if isinstance(delta, LowRankDelta):  # without a matrix of all rows, and in fp32, which is exact enough
        products = (left.float().T @ delta.up.float()) * (delta.down.float() @ right.float()).T
        return products.sum(1).double() / math.sqrt(NUMBERS)
    return (left.double() * delta.times(right.double())).sum(0) / math.sqrt(NUMBERS)


@lru_cache(maxsize=64)
def _signs(size: int, side: int) -> Tensor:
    """Return (size, NUMBERS) signs for the outputs (0) or the inputs (1) of weights that have so many, in int8.

    By a hash that is the same with every version of torch (splitmix64).
    """
    signs = torch.empty(size * NUMBERS, dtype=torch.int8)
    for start in range(0, len(signs), _HASHED):
        some = signs[start : start + _HASHED]
        mixed = torch.arange(start, start + len(some)) * -7046029254386353131 + (2 * size + side) * 104_729
        mixed = (mixed ^ (mixed >> 30)) * -4658895280553007687
        mixed = (mixed ^ (mixed >> 27)) * -7723592293110705685
        some.copy_(((mixed ^ (mixed >> 31)) & 1) * 2 - 1)
    return signs.reshape(size, NUMBERS)


def compare(sketches: Sequence[Sketch], paths: Sequence[Path] = ()) -> tuple[list[Likeness], list[Merge]]:
    """Return the pairs of files that are alike, the most alike first, and the files that are sums of two others.

    A sum is like its larger part, and like another sum with that part. Such pairs are left out. Each file of a training
    is paired with the latest one, however little they are alike.

    Args:
        sketches: of the files.
        paths: of the files, if known; see `later_epochs`.
    """
    if not sketches:
        return [], []
    numbers = torch.stack([one.numbers for one in sketches])
    norms = numbers.norm(dim=1).clamp_min(torch.finfo(numbers.dtype).tiny)
    units = numbers / norms.unsqueeze(1)
    pairs = {(i, j): cosine for i, j, cosine in _near(units)}
    merges = _sums(numbers, norms, [j for (_, j), cosine in pairs.items() if cosine > _SAME])
    later = later_epochs(sketches, paths)

    def is_epoch(i: int, j: int) -> bool:
        return later.get(i, i) == later.get(j, j) or _are_epochs(sketches[i], sketches[j])

    merges = [one for one in merges if not any(is_epoch(one.file, at) for at in one.parents)]
    merged = {merge.file for merge in merges}
    for i, j in later.items():
        pairs.setdefault((min(i, j), max(i, j)), float(units[i] @ units[j]))
    found = []
    for (i, j), cosine in pairs.items():
        if cosine > _SAME or not {i, j} & merged:
            factor = cosine * float(norms[j] / norms[i])
            alike = "epoch" if is_epoch(i, j) else _alike(sketches[i], sketches[j], cosine, factor)
            found.append(Likeness((i, j), alike, cosine, factor))
    return sorted(found, key=lambda one: -one.cosine), merges


def _near(units: Tensor) -> Iterator[tuple[int, int, float]]:
    """Yield the pairs of files that are alike, with their cosines."""
    for start in range(0, len(units), _AT_ONCE):
        cosines = units[start : start + _AT_ONCE] @ units[start:].T
        places = (cosines.triu(1) > _NEAR).nonzero()
        for (i, j), cosine in zip(places.tolist(), cosines[places[:, 0], places[:, 1]].tolist(), strict=True):
            yield start + i, start + j, cosine


def later_epochs(sketches: Sequence[Sketch], paths: Sequence[Path] = ()) -> dict[int, int]:
    """Return file -> the latest file of the same training, for all that are not the latest.

    By kohya's headers, else by names that differ in a number alone, if the files have one structure and are alike.

    Args:
        sketches: of the files.
        paths: of the files; without them, their names tell nothing.
    """
    own = [(one.training, at) for at, one in enumerate(sketches) if one.training is not None]
    latest = {training.session: (training, at) for training, at in sorted(own)}
    found = {at: latest[one.session][1] for one, at in own if one.steps < latest[one.session][0].steps}
    for files in by_training(paths):
        for place, (steps, at) in reversed(list(enumerate(files))):
            after = [other for more, other in files[place + 1 :] if more > steps]
            cosine, other = max(
                [(_cosine_of_epochs(sketches[at], sketches[one]), one) for one in after], default=(0, 0)
            )
            if cosine > _CONTINUED:
                found.setdefault(at, found.get(other, other))
    return found


def _cosine_of_epochs(first: Sketch, second: Sketch) -> float:
    """Return the cosine of two files that may be of one training; 0 if they are not, or if their headers tell."""
    size = float(first.numbers.norm() * second.numbers.norm())
    is_told = first.training is not None and second.training is not None
    if is_told or not size or (first.ranks, first.kinds) != (second.ranks, second.kinds):
        return 0.0
    return float(first.numbers @ second.numbers) / size


def _are_epochs(one: Sketch, other: Sketch) -> bool:
    """Return whether two files are of one training, after different numbers of steps."""
    first, second = one.training, other.training
    return first is not None and second is not None and first.session == second.session and first != second


def _alike(first: Sketch, second: Sketch, cosine: float, factor: float) -> Alike:
    resized = (first.ranks, first.kinds) != (second.ranks, second.kinds)
    if cosine < _SAME:
        return "resized" if resized else "near"
    if abs(factor - 1) > _EQUAL:
        return "scaled"
    if resized:
        return "rank"
    return "same" if first.dtypes == second.dtypes else "precision"


def _sums(numbers: Tensor, norms: Tensor, copies: Sequence[int]) -> list[Merge]:
    """Return the files that are sums of two others, of which `copies`, the same as an earlier file, are none."""
    own = torch.ones(len(numbers), dtype=torch.bool)
    own[list(copies)] = False
    every = torch.arange(len(numbers))
    sums = [merge.file for merge in _merges(numbers, norms, every, own.nonzero().flatten())]
    own[sums] = False  # a sum may explain another sum with the same parts, but made none
    return list(_merges(numbers, norms, torch.tensor(sums, dtype=torch.long), own.nonzero().flatten()))


def _merges(numbers: Tensor, norms: Tensor, files: Tensor, parents: Tensor) -> Iterator[Merge]:
    """Yield the files that are sums of two parents."""
    if not len(files) or len(parents) < 2:
        return
    units = numbers / norms.unsqueeze(1)
    for start in range(0, len(files), _AT_ONCE):
        some = files[start : start + _AT_ONCE]
        cosines = units[some] @ units[parents].T
        cosines = torch.where(cosines < _SAME, cosines, -torch.inf)  # a file and its copies are no parts of it
        nearest, places = cosines.topk(min(_CANDIDATES, len(parents)))
        yield from _least(numbers, norms, some, parents[places], nearest)


def _least(numbers: Tensor, norms: Tensor, files: Tensor, candidates: Tensor, cosines: Tensor) -> Iterator[Merge]:
    """Yield the files that are sums of two of their candidates.

    By least squares with all pairs. Both strengths are positive: else a parent would be the sum of its child and,
    negatively, of the other parent. What one explains nearly as well is no sum.

    Args:
        numbers: of all files.
        norms: of these.
        files: the files, (n).
        candidates: of each, (n, m).
        cosines: of the candidates with their file; minus infinity for those that are none.
    """
    parts, energies = numbers[candidates], norms[files].square().reshape(-1, 1, 1)
    gram = parts @ parts.transpose(1, 2)
    with_file = (parts @ numbers[files].unsqueeze(2)).squeeze(2)
    squares = gram.diagonal(dim1=1, dim2=2)
    rows, columns = squares.unsqueeze(2), squares.unsqueeze(1)
    # of the pair (row, column), the row's strength
    first = (with_file.unsqueeze(2) * columns - with_file.unsqueeze(1) * gram) / (rows * columns - gram.square())
    second = first.transpose(1, 2)
    left = 1 - (first * with_file.unsqueeze(2) + second * with_file.unsqueeze(1)) / energies
    alone = 1 - torch.maximum(cosines.unsqueeze(2), cosines.unsqueeze(1)).square()
    shares = first.square() * rows / energies
    fits = torch.minimum(shares, shares.transpose(1, 2)) > _PART
    fits &= gram < _APART * (rows * columns).sqrt()
    fits &= (torch.minimum(first, second) > 0) & cosines.isfinite().unsqueeze(2) & cosines.isfinite().unsqueeze(1)
    left = torch.where(fits & (left < _MERGED) & (left < _BETTER * alone), left, torch.inf)
    for at, best in enumerate(left.flatten(1).argmin(1).tolist()):
        row, column = divmod(best, candidates.shape[1])
        share = float(left[at, row, column])
        if math.isfinite(share):
            strengths = float(first[at, row, column]), float(second[at, row, column])
            yield Merge(int(files[at]), (int(candidates[at, row]), int(candidates[at, column])), strengths, share)
