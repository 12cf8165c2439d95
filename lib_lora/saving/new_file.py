"""A file of changes: which rank each layer has, its tensors, and the error that is found where it is read back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from ..adapters.lokr import LoKr
from ..errors import ArgumentError, FileError, LoraError, OneLine, shown
from ..files.file import AdapterFile
from ..tensors import plain_mode
from .changes import unchanged
from .difference import NOISE, Difference, Limits, chosen_ranks
from .inputs import InputSamples
from .merging import SUM, Combination
from .spelling import (
    ONLY_LORA,
    PARAMETERS,
    PEFT_CONFIG,
    PEFT_FILE,
    PEFT_PREFIX,
    KeyNames,
    Spelling,
    diffusers_header,
    peft_config,
    peft_settings,
)
from .trees import ChangedWeight
from .writing import (
    OpenFile,
    PlannedTensor,
    check_place,
    check_room,
    free_folder,
    header_of,
    size_of,
    unfinished_files,
    write_tensors,
)

Kind = Literal["lora", "lokr"]
"""What a change becomes: a product of two thin matrices, or the Kronecker product of two."""
Progress: TypeAlias = Callable[[int, int], None]
"""Is called with the number of layers that are done, and of all; what it raises ends the work.

Both are 0 until the layers are counted.
"""
ROUNDING = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""Dtypes of a file -> the error that rounding to it may make, as a share of the change."""
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in ROUNDING}
FACTOR = 8
"""Rows and columns of the first matrix of a LoKr, at most, if no number is given."""
_CPU = torch.device("cpu")
_DIGITS = 60  # bytes of a header that the shapes and places of a tensor may differ by
_HELD = 1 << 28  # bytes of singular vectors that are kept from the choice of the ranks until they are written
_MATRIX = 2  # dimensions
_TABLES: Mapping[Spelling, int] = {"diffusers": 2, "peft": 4}  # of the names of layers of other ranks, beside tensors


@dataclass(frozen=True, slots=True, repr=False)
class SavedLayer(OneLine):
    """One layer of a saved file."""

    component: str
    name: str
    rank: int | None
    """Of a LoKr, of its second matrix; None where the file has the whole difference; 0 where the layer is left out."""
    error: float
    """The size of the error as a share of the size of the layer's change, both as roots of sums of squares."""
    output_error: float | None = None
    """The same of what they make of the layer's inputs, where these are given."""


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
    output_error: float | None = None
    """Of the layers whose inputs are given, likewise."""

    def summary(self, *, layers: bool = False) -> str:
        """Return lines for people, with one for each layer if wanted."""
        ranks = [one.rank for one in self.layers if one.rank]
        whole, left = (len([one for one in self.layers if one.rank == rank]) for rank in (None, 0))
        parts = [f"{len(ranks)} layers of rank {min(ranks)} to {max(ranks)}"] if ranks else []
        parts += [f"{whole} whole differences"] if whole else []
        parts += [f"{left} layers left out"] if left else []
        lines = [f"{self.path}: {self.nbytes:,} bytes, {', '.join(parts)}, error {self.error:.2e} in all", *self.notes]
        if self.output_error is not None:
            lines.append(f"error of the outputs for the inputs of the layers: {self.output_error:.2e}")
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
    kind: Kind = "lora"
    factor: int = FACTOR
    """Rows and columns of the first matrix of a LoKr, at most."""
    pad: int | None = None
    """The rank to which LoRA of lower ranks are filled up with zeros."""
    inputs: InputSamples | None = None

    @property
    def keeps_dora(self) -> bool:
        """Return whether a DoRA stays one: the nearest one of a rank is not known."""
        return not self.limits.approximates

    @property
    def only_lora(self) -> bool:
        """Return whether the file is for a reader that reads no whole differences."""
        return self.spelling in ONLY_LORA

    def to_json(self) -> dict[str, object]:
        """Return plain data for the header: what makes a difference to the file."""
        limits = {"rank": self.limits.rank, "size": self.limits.size, "error": self.limits.error}
        others = self.combination.to_json()
        if self.kind != "lora":
            others |= {"kind": self.kind, "factor": self.factor}
        if self.pad is not None:
            others["pad"] = self.pad
        return {
            "spelling": self.spelling,
            "dtype": str(self.dtype).removeprefix("torch."),
            **limits,
            **others,
        }


class Changes(Protocol):
    """The changes of a model that a file is to have; see `StackChanges`."""

    @property
    def weights(self) -> Sequence[ChangedWeight]: ...
    @property
    def files(self) -> Sequence[AdapterFile]: ...
    @property
    def notes(self) -> Sequence[str]: ...
    def read_back(self, path: Path, component: str | None) -> Sequence[ChangedWeight]:
        """Return what a file changes of the same model, or of one component."""


@dataclass(slots=True)
class _Layer:
    """A layer of the file that is written."""

    weight: ChangedWeight
    prefix: str
    """Of its keys."""
    shape: tuple[int, ...]
    rank: int | None
    """None where the weight's change is written whole, as a LoKr of whole matrices, or does not change."""
    has_weight: bool
    has_bias: bool
    parts: float
    """As `Difference.parts`."""
    size: float
    pad: int = 0
    """The rank that its factors have at least."""
    norms: tuple[int, ...] | None = None
    """The shape of the norms, where it is written as DoRA."""
    first: tuple[int, int] | None = None
    """The shape of the first matrix, where the change becomes a LoKr."""
    values: Tensor | None = None
    """The singular values of what has a rank, where that is approximated."""
    limit: int | None = None
    """The largest rank that the file may have."""
    vectors: Tensor | None = None
    """Of `Difference.spectrum`, where they are kept."""
    lost: float = 0.0
    """The sum of the squares that no rank can have."""
    is_whole: bool = False
    """Whether it has no factors of its own, and has all ranks for a reader of LoRA alone."""

    @property
    def inner(self) -> tuple[int, ...]:
        """Return the shape of what has a rank: the weight, or the second matrix of a LoKr."""
        rows, columns = self.first or (1, 1)
        return (self.shape[0] // rows, *[one // columns for one in self.shape[1:2]], *self.shape[2:])

    @property
    def cost(self) -> int:
        """Return how many numbers a component has."""
        return self.inner[0] + math.prod(self.inner[1:])

    @property
    def dropped(self) -> float:
        """Return the size of what is left out, as a share of the size of its change."""
        left = 0.0 if self.values is None else float(self.values[self.rank :].square().sum())
        return math.sqrt(left + self.lost) / self.size

    @property
    def width(self) -> int | None:
        """Return the rank of its tensors."""
        return max(self.rank, self.pad) if self.rank and self.first is None else self.rank

    @property
    def saved_rank(self) -> int | None:
        """Return the rank that `SavedLayer` has."""
        if self.first is None or self.rank is not None:
            return self.rank
        return min(self.inner[0], math.prod(self.inner[1:]))

    def approximate(self, found: Difference, choices: FileChoices) -> None:
        """Find what its ranks are chosen by, or that it stays a DoRA."""
        if choices.kind == "lokr" and self.weight.target.kind in LoKr.kinds:
            self.rank, self.first = None, first_of_lokr(self.shape, choices.factor)
            _, second = found.kronecker(self.first)
            self.lost, found = max(float(found.dense().norm()) ** 2 - second.size() ** 2, 0.0), second
        elif found.dora is not None and choices.keeps_dora:
            norms, by_rows = tuple(found.dora.norms.shape), found.dora.norms.shape[1] == 1
            if choices.only_lora and by_rows:  # in the shapes of PEFT, which has no others
                norms = self.shape[:1] if len(norms) == _MATRIX else (1, *self.shape[:1], *norms[2:])
            if by_rows or not choices.only_lora:
                self.rank, self.norms = found.dora.lora(self.shape).rank_of_pair, norms
        if choices.limits.approximates:
            self.limit = choices.limits.rank
            self.values, self.vectors = found.spectrum(self.limit)
            if found.noise and choices.limits.error is None:  # an error is one of all numbers
                is_more = self.values > found.noise
                self.lost += float(self.values[~is_more].square().sum())
                self.values = self.values[is_more]

    def leave_out(self) -> None:
        """Write nothing of it."""
        self.rank, self.has_weight, self.has_bias, self.lost = 0, False, False, self.size**2

    def fill(self) -> None:
        """Become a LoRA of all ranks."""
        self.rank, self.norms, self.is_whole = min(self.shape[0], math.prod(self.shape[1:])), None, True

    def choose(self, rank: int, *, may_grow: bool) -> None:
        """Write so many components; a whole second matrix of a LoKr where that has fewer numbers.

        LyCORIS reads factors of a LoKr below half of its longer side. A larger rank becomes the whole if it may grow.
        """
        self.rank = rank
        if self.first is None:
            return
        most = max((max(self.inner[:2]) - 1) // 2, 1)
        if rank * self.cost >= math.prod(self.inner) or (rank > most and may_grow):
            self.rank = self.values = self.vectors = None
        else:
            self.rank = min(rank, most)

    @property
    def alpha(self) -> float:
        """Return the alpha of a scale of 1; 0 where there is none. LyCORIS reads no LoKr without one."""
        return float(self.width or (self.rank is None and self.first is not None))

    def least(self, choices: FileChoices) -> int:
        """Return the bytes that it takes at least, before the ranks are chosen over all layers."""
        if self.values is None:
            return sum([one.nbytes for one in self.planned(choices).values()])
        is_known = self.first is None and choices.limits.size is None and choices.limits.error is None
        return len(self.values[: self.limit]) * self.cost * choices.dtype.itemsize if is_known else 0

    def planned(self, choices: FileChoices) -> dict[str, PlannedTensor]:
        """Return its tensors by their keys, without alpha."""
        shapes: dict[str, tuple[int, ...]] = {}
        names = PARAMETERS[choices.spelling]
        if self.first is not None and self.rank != 0:
            shapes["lokr_w1"], inner = self.first, self.inner
            if self.rank is None:
                shapes["lokr_w2"] = inner
            else:
                shapes |= {"lokr_w2_a": (inner[0], self.rank), "lokr_w2_b": (self.rank, math.prod(inner[1:]))}
        elif self.width:
            shapes[names["down"]] = (self.width, *self.shape[1:])
            shapes[names["up"]] = (self.shape[0], self.width, *(1,) * (len(self.shape) - 2))
            shapes |= {} if self.norms is None else {names["norms"]: self.norms}
        elif self.rank is None and self.has_weight:
            shapes["diff"] = self.shape
        if self.has_bias:
            shapes[names["bias"]] = self.shape[:1]
        return {f"{self.prefix}.{name}": PlannedTensor(choices.dtype, shape) for name, shape in shapes.items()}

    def tensors(self) -> Iterator[Tensor]:
        """Yield the numbers of `planned`, in fp64."""
        found = self.weight.difference()
        if self.first is not None and self.rank != 0:
            first, second = found.kronecker(self.first)
            yield first
            yield from reversed(self._pair(second)) if self.rank else [second.dense()]
        elif self.norms is not None and found.dora is not None:
            yield from self._pair(found.dora.lora(self.shape))
            yield found.dora.norms
        elif self.rank:
            yield from self._pair(found)
        elif self.rank is None and self.has_weight:
            yield found.dense()
        if self.has_bias:
            yield torch.zeros(self.shape[0]) if found.bias is None else found.bias

    def _pair(self, found: Difference) -> tuple[Tensor, Tensor]:
        """Return the factors down and up of the nearest change of the rank."""
        pair = self._cut(found).joined()
        self.vectors = None
        zeros = max((self.width or 0) - pair.up.shape[1], 0)
        down = torch.cat([pair.down, pair.down.new_zeros(zeros, *pair.down.shape[1:])])
        return down, torch.cat([pair.up, pair.up.new_zeros(len(pair.up), zeros)], 1)

    def _cut(self, found: Difference) -> Difference:
        if self.values is None:
            return found
        assert self.rank is not None
        return found.cut(self.rank, self.vectors, self.limit)

    def written(self, found: Difference) -> Difference:
        """Return what the file has of the weight's change, but for rounding."""
        if self.rank == 0:
            return Difference(self.shape)
        if self.first is None:
            return self._cut(found)
        first, second = found.kronecker(self.first)
        inner = self._cut(second).dense().reshape(*second.shape[:2], -1)
        whole = torch.einsum("ab,cdk->acbdk", first, inner)  # torch.kron refuses some transposed ones
        return Difference(self.shape, (), whole.reshape(self.shape))


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

    `metadata` returns what the header says. It is called when all changes were computed once.

    Raises:
        FileError: a source has changed, the disk is full, the name is taken, numbers are too large for the dtype, or a
            limit cannot be met. Nothing is written then.
    """
    if choices.preview:
        return _preview(path, changes, choices, names, metadata)
    is_folder = choices.spelling == "peft"
    path = free_folder(path) if is_folder else check_place(path, replace=choices.replace)
    weights = names.layers(changes.weights)
    count = _LayerCount(choices.progress, len(weights), 3)
    opened = unfinished_files(path, is_folder=is_folder, replace=choices.replace)
    with opened as open_file, unchanged(changes.files), plain_mode(_CPU):
        layers, dropped, files = _plan(path, weights, choices, names, metadata, count)
        check_room(path, nbytes := sum([one.nbytes for one in files]))
        there = {one.component: one.write(path, open_file, count) for one in files}
        saved, error, of_outputs = _read_back(path, there, changes, layers, names, choices.inputs, count)
        size = math.hypot(*[layer.size for layer in layers])
        rounding = ROUNDING[choices.dtype] * max(sum([layer.parts for layer in layers]) / size, 1.0)
        if not error <= dropped + rounding:  # also where it is NaN
            raise FileError(path, f"it was not written: read back, it differs from what was meant by {error:.2e}")
        wanted = choices.limits.error
        if wanted is not None and error > wanted * (1 + 1e-6):
            text = f"its error would be {error:.2e}, not {wanted:g}"
            raise FileError(path, f"{text}; allow a larger rank or size, or write the dtype float32")
    return SavedFile(path, nbytes, tuple(saved), error, (*changes.notes, *_notes(layers, choices)), of_outputs)


def first_of_lokr(shape: Sequence[int], factor: int) -> tuple[int, int]:
    """Return the shape of the first matrix, as LyCORIS has it, which could not read another one.

    It is the factor, or its quotient if that is smaller; else the largest divisor that is smaller than both.
    """
    rows, columns = (_divisor(size, factor) for size in shape[:2])
    return rows, columns


def _divisor(size: int, factor: int) -> int:
    if size % factor == 0:
        return min(factor, size // factor)
    return next(one for one in range(min(factor, math.isqrt(size)), 0, -1) if size % one == 0)


def _preview(
    path: Path, changes: Changes, choices: FileChoices, names: KeyNames, metadata: Callable[[], Mapping[str, str]]
) -> SavedFile:
    """Return what a file would be, and write nothing."""
    weights = names.layers(changes.weights)
    count = _LayerCount(choices.progress, len(weights), 1 if choices.inputs is None else 2)
    saved, of_outputs = list[SavedLayer](), _Share()
    with unchanged(changes.files), plain_mode(_CPU):
        layers, dropped, files = _plan(path, weights, choices, names, metadata, count)
        for layer in layers:
            output_error = None
            if choices.inputs is not None:
                wanted = layer.weight.difference()
                missed = wanted.minus(layer.written(wanted))
                output_error = _output_error(layer, missed, wanted, choices.inputs, of_outputs)
                count.add()
            saved.append(SavedLayer(*layer.weight.place, layer.saved_rank, layer.dropped, output_error))
    nbytes = sum([one.nbytes for one in files])
    notes = (*changes.notes, *_notes(layers, choices))
    return SavedFile(path, nbytes, tuple(saved), dropped, notes, of_outputs.share)


def _plan(
    path: Path,
    weights: Sequence[ChangedWeight],
    choices: FileChoices,
    names: KeyNames,
    metadata: Callable[[], Mapping[str, str]],
    count: _LayerCount,
) -> tuple[list[_Layer], float, list[_File]]:
    """Return the layers of a file, the share of the change that they leave out, and the files that are written."""
    count.add(0)
    layers, held, least = list[_Layer](), 0, 0
    for weight in weights:
        layer = _layer(path, weight, choices, names)
        count.add()
        if layer is None:
            continue
        held += 0 if layer.vectors is None else layer.vectors.nbytes
        layer.vectors = layer.vectors if held <= _HELD else None
        layers.append(layer)
        least += layer.least(choices)
        if not choices.preview:
            check_room(path, least)  # before all others are computed
    if choices.only_lora:
        _make_alike(layers)
    if all(layer.rank == 0 for layer in layers):
        why = _notes(layers, choices) or ["what would be in it changes nothing"]
        raise FileError(path, f"it was not written: {why[0]}")
    if all(layer.values is not None and not len(layer.values) and not layer.has_bias for layer in layers):
        text = "all that it would have may be the rounding of quantized weights"
        raise FileError(path, f"it was not written: {text}; give finer models, or no rank and no size")
    said = metadata()
    dropped = _choose(path, layers, choices, said)
    largest = max([layer.rank or 0 for layer in layers])
    if choices.pad is not None and largest > choices.pad:
        raise FileError(path, f"it was not written: a layer has the rank {largest}; pad to {largest}, or cut to a rank")
    return layers, math.sqrt(dropped) / math.hypot(*[layer.size for layer in layers]), _files(layers, choices, said)


def _layer(path: Path, weight: ChangedWeight, choices: FileChoices, names: KeyNames) -> _Layer | None:
    """Return the layer that a weight is; None where it does not change."""
    if weight.target.kind == "experts":
        raise FileError(path, f"it was not written: {weight.target.name} is of experts, which cannot be saved")
    found = weight.difference()
    size, rank = found.size(), found.rank_of_pair
    if size <= NOISE * found.parts:  # nothing, or what is left where parts cancel each other
        return None
    if not math.isfinite(size):
        text = "has numbers that are NaN or infinite"
        raise FileError(path, f"it was not written: the change of {weight.target.name} {text}")
    has_weight, has_bias = bool(found.pairs) or found.rest is not None, found.bias is not None
    prefix, pad = names.prefix(*weight.place), choices.pad or 0
    layer = _Layer(weight, prefix, found.shape, rank, has_weight, has_bias, found.parts, size, pad)
    if choices.only_lora and weight.target.kind in ("norm", "embedding"):
        layer.leave_out()
    elif has_weight and found.is_matrix:
        layer.approximate(found, choices)
    if choices.only_lora and layer.rank is None and layer.values is None:
        if has_weight:
            layer.fill()
        else:
            layer.rank = 1  # of zeros, beside the bias
    return layer


def _make_alike(layers: Sequence[_Layer]) -> None:
    """Make layers of a component alike in what PEFT has one setting for: whether they are DoRA, and have a bias.

    With DoRA, PEFT would scale the bias, too.
    """
    by_component: dict[str, list[_Layer]] = {}
    for layer in layers:
        if layer.rank != 0:
            by_component.setdefault(layer.weight.place[0], []).append(layer)
    for own in by_component.values():
        has_bias = any(layer.has_bias for layer in own)
        is_dora = not has_bias and all(layer.norms is not None for layer in own)
        for layer in own:
            layer.has_bias = has_bias
            if layer.norms is not None and not is_dora:
                layer.fill()


def _notes(layers: Sequence[_Layer], choices: FileChoices) -> list[str]:
    """Return what a reader of LoRA alone cannot read, or only in a larger file."""
    reader = ONLY_LORA.get(choices.spelling)
    left = len([layer for layer in layers if not layer.has_weight and not layer.has_bias])
    whole = len([layer for layer in layers if layer.is_whole])
    notes = list[str]()
    if left:
        text = f"{reader} reads no changes of norms and embeddings: {left} of {len(layers)} layers are left out"
        notes.append(f"{text}; write the spelling kohya to keep them")
    if whole:
        text = f"{reader} reads LoRA alone: {whole} of {len(layers)} layers have no factors and get all ranks"
        notes.append(f"{text}; give a rank, or write the spelling kohya, for a smaller file")
    return notes


def _choose(path: Path, layers: Sequence[_Layer], choices: FileChoices, metadata: Mapping[str, str]) -> float:
    """Choose the rank of each layer that is approximated; return the sum of the squares that are left out."""
    own = [layer for layer in layers if layer.values is not None]
    values, nbytes = [layer.values for layer in own if layer.values is not None], choices.dtype.itemsize
    for layer in own:
        layer.rank = 1  # for the length of the header
    room = None
    if choices.limits.size is not None:
        files = _files(layers, choices, metadata)
        least = sum([one.nbytes + _DIGITS * len(one.tensors) for one in files])
        least += _TABLES.get(choices.spelling, 0) * sum([len(layer.prefix) + _DIGITS for layer in own])
        least -= sum([layer.cost * nbytes for layer in own])
        if (room := choices.limits.size - least) < 0:
            raise FileError(path, f"it takes {least:,} bytes at least; allow a larger size")
    lost = sum([layer.lost for layer in layers])
    ranks = chosen_ranks(values, [layer.cost * nbytes for layer in own], choices.limits, room, lost)
    for layer, rank in zip(own, ranks, strict=True):
        layer.choose(rank, may_grow=room is None)
        if choices.only_lora and layer.has_bias and not rank:  # there is no bias without factors
            layer.has_bias, layer.values, layer.lost = False, None, layer.size**2
    return sum([(layer.dropped * layer.size) ** 2 for layer in layers])


@dataclass(frozen=True, slots=True)
class _File:
    """A file that is written: the only one, or that of a component in a folder."""

    place: Path
    component: str | None
    layers: Sequence[_Layer]
    header: bytes
    tensors: Mapping[str, PlannedTensor]
    config: bytes = b""
    """What is written beside it for PEFT."""

    @property
    def nbytes(self) -> int:
        return size_of(self.header, self.tensors) + len(self.config)

    def write(self, path: Path, open_file: OpenFile, count: _LayerCount) -> Path:
        """Write it, and return a path to read it by."""
        stream, there = open_file(self.place)
        write_tensors(stream, self.header, _numbers(path, self.layers, self.tensors, count))
        if self.config:
            write_tensors(open_file(self.place.with_name(PEFT_CONFIG))[0], self.config, ())
        return there


def _files(layers: Sequence[_Layer], choices: FileChoices, metadata: Mapping[str, str]) -> list[_File]:
    """Return the files that are written, each with all tensors by their keys, in the order in which they are."""
    by_component: dict[str, list[_Layer]] = {}
    for layer in layers:
        by_component.setdefault(layer.weight.place[0], []).append(layer)
    own = {name: _settings(name, one) for name, one in by_component.items() if any(layer.width for layer in one)}
    if choices.spelling != "peft":
        more = diffusers_header(own) if choices.only_lora else {}
        header, tensors = _planned(layers, choices, {**metadata, **more})
        return [_File(Path(), None, layers, header, tensors)]
    files = list[_File]()
    for name, settings in own.items():
        place, config = Path(name, PEFT_FILE) if len(own) > 1 else Path(PEFT_FILE), peft_config(settings)
        header, tensors = _planned(by_component[name], choices, {**metadata, "format": "pt", "adapter_config": config})
        files.append(_File(place, name, by_component[name], header, tensors, config.encode()))
    return files


def _settings(component: str, layers: Sequence[_Layer]) -> dict[str, object]:
    """Return the settings of a component for PEFT.

    They have no `text_model.`, which CLIP has in some versions of transformers, and which diffusers takes off the keys
    alone.
    """
    names = [layer.prefix.removeprefix(PEFT_PREFIX).removeprefix(f"{component}.") for layer in layers]
    ranks = {
        name.removeprefix("text_model."): layer.width for name, layer in zip(names, layers, strict=True) if layer.width
    }
    is_dora, has_bias = any(layer.norms is not None for layer in layers), any(layer.has_bias for layer in layers)
    return peft_settings(ranks, is_dora=is_dora, has_bias=has_bias)


def _planned(
    layers: Sequence[_Layer], choices: FileChoices, metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, PlannedTensor]]:
    """Return what is before the tensors, and all tensors by their keys, in the order in which they are written."""
    tensors = {key: one for layer in layers for key, one in layer.planned(choices).items()}
    if not choices.only_lora:
        alphas = [f"{layer.prefix}.alpha" for layer in layers if layer.alpha]
        tensors = dict.fromkeys(alphas, PlannedTensor(torch.float32, ())) | tensors
    return header_of(tensors, metadata), tensors


def _numbers(
    path: Path, layers: Sequence[_Layer], tensors: Mapping[str, PlannedTensor], count: _LayerCount
) -> Iterator[Tensor]:
    """Yield the tensors that are written; an alpha is the rank, as the strengths are in the factors."""
    yield from [torch.tensor(layer.alpha) for layer in layers if f"{layer.prefix}.alpha" in tensors]
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
    path: Path,
    there: Mapping[str | None, Path],
    changes: Changes,
    layers: Sequence[_Layer],
    names: KeyNames,
    inputs: InputSamples | None,
    count: _LayerCount,
) -> tuple[list[SavedLayer], float, float | None]:
    """Compare the files that lie `there` with what was meant; return the layers, and the errors of them all."""
    kept = {layer.weight.place for layer in layers if layer.rank != 0 or layer.has_bias}
    try:
        files = there.items() if kept else ()
        back = names.layers([one for component, file in files for one in changes.read_back(file, component)])
    except LoraError as error:
        text = "it was not written: read back, it is not what was meant"
        raise FileError(path, f"{text}: {error}") from error
    found = {one.place: one for one in back}
    if strange := kept ^ found.keys():
        text = "is not found under its name" if min(strange) in kept else "is changed, too"
        name = ".".join(min(strange))
        raise FileError(path, f"it was not written: read back, {name} {text}; another spelling may do")
    saved, of_changes, of_outputs = list[SavedLayer](), _Share(), _Share()
    for layer in layers:
        wanted = layer.weight.difference()
        got = found[place].difference() if (place := layer.weight.place) in found else Difference(wanted.shape)
        missed = wanted.minus(got)
        output_error = None if inputs is None else _output_error(layer, missed, wanted, inputs, of_outputs)
        share = of_changes.add(missed.size(), layer.size)
        saved.append(SavedLayer(*place, layer.saved_rank, share or 0.0, output_error))
        count.add()
    return saved, of_changes.share or 0.0, of_outputs.share


def _output_error(
    layer: _Layer, missed: Difference, wanted: Difference, inputs: InputSamples, total: _Share
) -> float | None:
    """Return the error of what a layer makes of its inputs, and add it to all; None where these are not known."""
    columns = inputs.of(layer.weight.place[0], layer.weight.target.path)
    if columns is None or len(columns) != wanted.inside or not layer.has_weight:
        return None
    return total.add(*[float(one.outputs(columns).norm()) for one in (missed, wanted)])


@dataclass(slots=True)
class _Share:
    """What is missed of all."""

    missed: float = 0.0
    size: float = 0.0

    def add(self, missed: float, size: float) -> float | None:
        """Add a part, and return its own share."""
        self.missed, self.size = math.hypot(self.missed, missed), math.hypot(self.size, size)
        return _Share(missed, size).share

    @property
    def share(self) -> float | None:
        return self.missed / self.size if self.size else None
