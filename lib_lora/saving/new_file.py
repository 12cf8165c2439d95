"""A file of changes: which rank each layer has, its tensors, and the error that is found where it is read back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from ..errors import ArgumentError, FileError, LoraError, OneLine, shown
from ..files.file import AdapterFile
from ..naming.places import Target
from ..tensors import plain_mode
from .changes import unchanged
from .difference import NOISE, Difference, Limits, chosen_ranks
from .merging import SUM, Combination
from .spelling import PARAMETERS, KeyNames, Spelling, diffusers_header
from .writing import PlannedTensor, check_place, check_room, header_of, unfinished, write_tensors

Progress: TypeAlias = Callable[[int, int], None]
"""Is called with the number of layers that are done, and of all; what it raises ends the work.

Both are 0 until the layers are counted.
"""
ROUNDING = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""Dtypes of a file -> the error that rounding to it may make, as a share of the change."""
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in ROUNDING}
_CPU = torch.device("cpu")
_DIGITS = 60  # bytes of a header that the shapes and places of a tensor may differ by
_TABLES = 2  # of the names of layers of other ranks, in the header that diffusers reads


@dataclass(frozen=True, slots=True, repr=False)
class SavedLayer(OneLine):
    """One layer of a saved file."""

    component: str
    name: str
    rank: int | None
    """None where the file has the whole difference; 0 where it leaves the layer out."""
    error: float
    """The size of the error as a share of the size of the layer's change, both as roots of sums of squares."""


@dataclass(frozen=True, slots=True, repr=False)
class SavedFile(OneLine):
    """A file that was saved, as it was read back; or of a preview, as it would be but for rounding."""

    path: Path
    nbytes: int
    layers: tuple[SavedLayer, ...]
    error: float
    """Of all layers together, likewise."""
    notes: tuple[str, ...] = ()
    """One sentence for each thing about the sources that the user should know."""

    def summary(self, *, layers: bool = False) -> str:
        """Return lines for people, with one for each layer if wanted."""
        ranks = [one.rank for one in self.layers if one.rank]
        whole, left = (len([one for one in self.layers if one.rank == rank]) for rank in (None, 0))
        parts = [f"{len(ranks)} layers of rank {min(ranks)} to {max(ranks)}"] if ranks else []
        parts += [f"{whole} whole differences"] if whole else []
        parts += [f"{left} layers left out"] if left else []
        lines = [f"{self.path}: {self.nbytes:,} bytes, {', '.join(parts)}, error {self.error:.2e} in all", *self.notes]
        worst = max(self.layers, key=lambda one: one.error, default=None)
        if worst is not None:
            lines.append(f"largest error of a layer: {worst.error:.2e}, {worst.name}")
        each = [f"{one.error:.2e}  rank {'-' if one.rank is None else one.rank:>4}  {one.name}" for one in self.layers]
        return "\n".join([*lines, *(each if layers else ())])


@dataclass(frozen=True, slots=True)
class FileChoices:
    """What a file is to be like."""

    spelling: Spelling = "kohya"
    dtype: torch.dtype = torch.float32
    limits: Limits = field(default_factory=Limits)
    replace: bool = False
    combination: Combination = SUM
    preview: bool = False
    progress: Progress | None = None

    def to_json(self) -> dict[str, object]:
        """Return plain data for the header: what makes a difference to the file."""
        limits = {"rank": self.limits.rank, "size": self.limits.size, "error": self.limits.error}
        combination = {} if self.combination == SUM else {"combination": asdict(self.combination)}
        return {
            "spelling": self.spelling,
            "dtype": str(self.dtype).removeprefix("torch."),
            **limits,
            **combination,
        }


class ChangedWeight(Protocol):
    """A weight of a model, and its change; see `StackWeight`."""

    @property
    def target(self) -> Target: ...
    @property
    def place(self) -> tuple[str, str]: ...
    def difference(self) -> Difference:
        """Return the change."""


class Changes(Protocol):
    """The changes of a model that a file is to have; see `StackChanges`."""

    @property
    def weights(self) -> Sequence[ChangedWeight]: ...
    @property
    def files(self) -> Sequence[AdapterFile]: ...
    @property
    def notes(self) -> Sequence[str]: ...
    def read_back(self, path: Path) -> Mapping[tuple[str, str], ChangedWeight]:
        """Return what a file changes of the same model."""


@dataclass(slots=True)
class _Layer:
    """A layer of the file that is written."""

    weight: ChangedWeight
    prefix: str
    """Of its keys."""
    shape: tuple[int, ...]
    rank: int | None
    """None where the weight's change is written whole, or does not change."""
    has_weight: bool
    has_bias: bool
    parts: float
    """As `Difference.parts`."""
    size: float
    values: Tensor | None = None
    """The singular values, where the change is approximated."""

    @property
    def cost(self) -> int:
        """Return how many numbers a component has."""
        return self.shape[0] + math.prod(self.shape[1:])

    @property
    def dropped(self) -> float:
        """Return the size of what its rank leaves out, as a share of the size of its change."""
        return 0.0 if self.values is None else float(self.values[self.rank :].norm()) / self.size

    def planned(self, choices: FileChoices) -> dict[str, PlannedTensor]:
        """Return its tensors by their keys, without alpha."""
        shapes: dict[str, tuple[int, ...]] = {}
        names = PARAMETERS[choices.spelling]
        if self.rank:
            shapes[names["down"]] = (self.rank, *self.shape[1:])
            shapes[names["up"]] = (self.shape[0], self.rank, *(1,) * (len(self.shape) - 2))
        elif self.rank is None and self.has_weight:
            shapes["diff"] = self.shape
        if self.has_bias:
            shapes["diff_b"] = self.shape[:1]
        return {f"{self.prefix}.{name}": PlannedTensor(choices.dtype, shape) for name, shape in shapes.items()}

    def tensors(self) -> Iterator[Tensor]:
        """Yield the numbers of `planned`, in fp64."""
        found = self.weight.difference()
        if self.rank:
            pair = (found if self.values is None else found.cut(self.rank)).joined()
            yield from (pair.down, pair.up)
        elif self.rank is None and self.has_weight:
            yield found.dense()
        if found.bias is not None:
            yield found.bias


def check_progress(progress: object) -> None:
    """Raise ArgumentError where `progress` can not be called."""
    if progress is not None and not callable(progress):
        raise ArgumentError(f"progress must be a function of two numbers, or None, not {shown(progress)}")


@dataclass(slots=True)
class _LayerCount:
    """Tells how many layers are done of all; each is gone through several times."""

    progress: Progress | None
    layers: int
    times: int
    count: int = 0

    def add(self, count: int = 1) -> None:
        self.count += count
        if self.progress is not None:
            self.progress(self.count // self.times, self.layers)


def write_changes(
    path: Path, changes: Changes, choices: FileChoices, names: KeyNames, metadata: Callable[[], Mapping[str, str]]
) -> SavedFile:
    """Write a file, read it back by the ordinary reader, compare, and put it in its place.

    `metadata` returns what the header says.

    Raises:
        FileError: a source has changed, the disk is full, the name is taken, numbers are too large for the dtype, or a
            limit cannot be met. Nothing is written then.
    """
    if choices.preview:
        return _preview(path, changes, choices, names, metadata)
    path = check_place(path, replace=choices.replace)
    count = _LayerCount(choices.progress, len(changes.weights), 3)
    with unfinished(path, replace=choices.replace) as (stream, there), unchanged(changes.files), plain_mode(_CPU):
        count.add(0)
        said = metadata()
        layers, dropped = _layers(path, changes, choices, names, said, count)
        header, tensors = _planned(layers, choices, said)
        check_room(path, nbytes := len(header) + sum([one.nbytes for one in tensors.values()]))
        write_tensors(stream, header, _numbers(path, layers, tensors, count))
        saved, error, size = _read_back(path, there, changes, layers, count)
        rounding = ROUNDING[choices.dtype] * max(sum([layer.parts for layer in layers]) / size, 1.0)
        if not error <= dropped + rounding:  # NaN is no more and no less
            raise FileError(path, f"it was not written: read back, it differs from what was meant by {error:.2e}")
        wanted = choices.limits.error
        if wanted is not None and error > wanted * (1 + 1e-6):
            text = f"its error would be {error:.2e}, not {wanted:g}"
            raise FileError(path, f"{text}; allow a larger rank or size, or write the dtype float32")
    return SavedFile(path, nbytes, tuple(saved), error, tuple(changes.notes))


def _preview(
    path: Path, changes: Changes, choices: FileChoices, names: KeyNames, metadata: Callable[[], Mapping[str, str]]
) -> SavedFile:
    """Return what a file would be, and write nothing."""
    count = _LayerCount(choices.progress, len(changes.weights), 1)
    with unchanged(changes.files), plain_mode(_CPU):
        count.add(0)
        said = metadata()
        layers, dropped = _layers(path, changes, choices, names, said, count)
        header, tensors = _planned(layers, choices, said)
        saved = tuple([SavedLayer(*layer.weight.place, layer.rank, layer.dropped) for layer in layers])
    nbytes = len(header) + sum([one.nbytes for one in tensors.values()])
    return SavedFile(path, nbytes, saved, dropped, tuple(changes.notes))


def _layers(
    path: Path,
    changes: Changes,
    choices: FileChoices,
    names: KeyNames,
    metadata: Mapping[str, str],
    count: _LayerCount,
) -> tuple[list[_Layer], float]:
    """Return the layers of a file, and what of the change they leave out, as a share of its size."""
    layers, squares = list[_Layer](), 0.0
    for weight in changes.weights:
        if weight.target.kind == "experts":
            raise FileError(path, f"it was not written: {weight.target.name} is of experts, which cannot be saved")
        found = weight.difference()
        count.add()
        size = found.size()
        if size <= NOISE * found.parts:  # nothing, or what is left where parts cancel each other
            continue
        if not math.isfinite(size):
            text = "has numbers that are NaN or infinite"
            raise FileError(path, f"it was not written: the change of {weight.target.name} {text}")
        has_weight, has_bias = bool(found.pairs) or found.rest is not None, found.bias is not None
        prefix = names.prefix(*weight.place)
        layer = _Layer(weight, prefix, found.shape, None, has_weight, has_bias, found.parts, size)
        squares += size**2
        if choices.limits.approximates and has_weight and found.is_matrix:
            layer.values = found.singular_values()
        else:
            layer.rank = found.rank_of_pair
        layers.append(layer)
    if not layers:
        raise FileError(path, "it was not written: what would be in it changes nothing")
    dropped = _choose(path, layers, choices, metadata)
    return layers, math.sqrt(dropped / squares)


def _choose(path: Path, layers: Sequence[_Layer], choices: FileChoices, metadata: Mapping[str, str]) -> float:
    """Choose the rank of each layer that is approximated; return the sum of the squares that are left out."""
    own = [layer for layer in layers if layer.values is not None]
    values, nbytes = [layer.values for layer in own if layer.values is not None], choices.dtype.itemsize
    for layer in own:
        layer.rank = 1  # for the length of the header
    room = None
    if choices.limits.size is not None:
        header, tensors = _planned(layers, choices, metadata)
        least = len(header) + sum([_DIGITS + one.nbytes for one in tensors.values()])
        if choices.spelling == "diffusers":
            least += _TABLES * sum([len(layer.prefix) + _DIGITS for layer in own])
        least -= sum([layer.cost * nbytes for layer in own])
        if (room := choices.limits.size - least) < 0:
            raise FileError(path, f"it takes {least:,} bytes at least; allow a larger size")
    ranks = chosen_ranks(values, [layer.cost * nbytes for layer in own], choices.limits, room)
    for layer, rank in zip(own, ranks, strict=True):
        layer.rank = rank
    return sum([one[rank:].square().sum().item() for one, rank in zip(values, ranks, strict=True)])


def _planned(
    layers: Sequence[_Layer], choices: FileChoices, metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, PlannedTensor]]:
    """Return what is before the tensors, and all tensors by their keys, in the order in which they are written."""
    tensors = {key: one for layer in layers for key, one in layer.planned(choices).items()}
    ranks = {layer.prefix: layer.rank for layer in layers if layer.rank}
    if choices.spelling == "diffusers":
        metadata = {**metadata, **diffusers_header(ranks)}
    else:
        tensors = {f"{prefix}.alpha": PlannedTensor(torch.float32, ()) for prefix in ranks} | tensors
    return header_of(tensors, metadata), tensors


def _numbers(
    path: Path, layers: Sequence[_Layer], tensors: Mapping[str, PlannedTensor], count: _LayerCount
) -> Iterator[Tensor]:
    """Yield the tensors that are written; an alpha is the rank, as the strengths are in the factors."""
    ranks = [layer.rank for layer in layers if layer.rank and f"{layer.prefix}.alpha" in tensors]
    yield from map(torch.tensor, map(float, ranks))
    planned = iter([(key, one) for key, one in tensors.items() if not key.endswith(".alpha")])
    for layer in layers:
        for numbers, (key, one) in zip(layer.tensors(), planned, strict=False):
            tensor = numbers.to(one.dtype).reshape(one.shape)
            if not bool(tensor.isfinite().all()):
                name = str(one.dtype).removeprefix("torch.")
                raise FileError(path, f"{key} has numbers that {name} cannot hold; write the dtype bfloat16 or float32")
            yield tensor
        count.add()


def _read_back(
    path: Path, there: Path, changes: Changes, layers: Sequence[_Layer], count: _LayerCount
) -> tuple[list[SavedLayer], float, float]:
    """Compare the file that lies `there` with what was meant; return the layers, the error and the size of them all."""
    kept = {layer.weight.place for layer in layers if layer.rank != 0 or layer.has_bias}
    try:
        found = changes.read_back(there) if kept else {}
    except LoraError as error:
        text = "it was not written: read back, it is not what was meant"
        raise FileError(path, f"{text}: {error}") from error
    if strange := kept ^ found.keys():
        text = "is not found under its name" if min(strange) in kept else "is changed, too"
        name = ".".join(min(strange))
        raise FileError(path, f"it was not written: read back, {name} {text}; another spelling may do")
    saved, errors, sizes = list[SavedLayer](), 0.0, 0.0
    for layer in layers:
        wanted = layer.weight.difference()
        got = found[place].difference() if (place := layer.weight.place) in found else Difference(wanted.shape)
        missed = wanted.minus(got).size()
        errors, sizes = errors + missed**2, sizes + layer.size**2
        saved.append(SavedLayer(*place, layer.rank, missed / layer.size))
        count.add()
    return saved, math.sqrt(errors / sizes), math.sqrt(sizes)
