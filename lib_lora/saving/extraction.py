"""The difference of two models on disk as one LoRA file.

Both are read layer by layer. A layer whose numbers differ by no more than rounding to what is stored is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..errors import FileError, check_path
from ..files.file import AdapterFile
from ..naming.index import LayerIndex
from ..naming.places import Target
from ..stack import Entry, Stack
from ..tensors import plain_mode
from .changes import StackChanges, StackWeight
from .difference import Difference
from .model_files import PLAIN, ModelFiles, joined_name, parts_of
from .new_file import FileChoices, Progress, SavedFile, write_changes
from .packings.base import Packing, StoredRows
from .provenance import HEADER, carried
from .spelling import KeyNames
from .stack_file import choices_of
from .writing import check_place, check_room

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .stack_file import SaveOptions

_ARCHITECTURE = "modelspec.architecture"
_CPU, _EXACT = torch.device("cpu"), torch.float64
_SCALES = ("scale_weight", "weight_scale", "weight_scale_2")
_OF_INPUTS = ("scale_input", "input_scale", *_SCALES)
"""Parameters that say how weights or inputs are rounded."""
_SPREAD = 4.0  # standard deviations of the estimate of what rounding makes
_BIAS = 0.02  # of the estimate, which takes the numbers between two that can be stored as evenly spread
_EVERY = 3.0  # times the estimate, where every number is in the middle of two that can be stored
_LEAST = 0.5  # of the estimate, below which numbers of two dtypes differ by other things than rounding
_TELLING = 0.1  # of the size of the differences
_NAMED = 3  # layers in a sentence
_NO_HASH = "0" * 64  # as long as a hash, which takes the time of reading a model


def extract_lora(
    base: str | PathLike[str],
    tuned: str | PathLike[str],
    path: str | PathLike[str],
    **options: Unpack[SaveOptions],
) -> SavedFile:
    """Write what one model on disk has more than another one as a LoRA file.

    Without a limit it has the whole differences. With a rank, a size or an error it is the nearest LoRA. Norms and
    biases go along as they are. The models may have unlike names, files and dtypes, and may be quantized.

    Args:
        base: a checkpoint, the index of its shards, the folder of a component, or a diffusers folder.
        tuned: the model that the file makes of `base`, likewise.
        path: of the new file.
        options: see `save_stack`.

    Raises:
        FileError: a file cannot be read or written, the name is taken, a limit cannot be met, a model is quantized in a
            way that is not known, or the models do not differ.
        ComponentError: there is no component in a model.
        StackError: the spelling has no name for a layer.
        ArgumentError: an argument is of another type.
    """
    for one in (base, tuned, path):
        check_path(one, "extract_lora('base.safetensors', 'tuned.safetensors', 'lora.safetensors', rank=32)")
    choices, path = choices_of(options), Path(path)
    return extract_from(ModelFiles(Path(base)), ModelFiles(Path(tuned)), path, choices, path.stem)


def extract_from(base: ModelFiles, tuned: ModelFiles, path: Path, choices: FileChoices, title: str) -> SavedFile:
    """Write the difference of two models as a file, which calls itself by its title; raise as `extract_lora`."""
    if not choices.preview:
        check_place(path, replace=choices.replace)  # before minutes of work
    with plain_mode(_CPU):
        changes = ModelChanges(base, tuned, choices.progress)
        if not (choices.preview or choices.limits.approximates or choices.kind == "lokr"):
            check_room(path, changes.count * choices.dtype.itemsize)
        names = KeyNames(choices.spelling, changes.indexes)
        return write_changes(path, changes, choices, names, partial(_metadata, title, changes, choices))


def _metadata(title: str, changes: ModelChanges, choices: FileChoices) -> dict[str, str]:
    """Return what the header of a file says: the sources, and how it was made."""
    made: dict[str, object] = {"version": 1, "torch": torch.__version__, "title": title}
    for name, model in (("base", changes.base), ("tuned", changes.tuned)):
        made[f"{name}_name"] = model.path.name
        made[name] = dict.fromkeys(model.places(), _NO_HASH) if choices.preview else model.hashes()
    said = carried([changes.tuned.files[0], changes.base.files[0]], title)
    if _ARCHITECTURE in said:
        said[_ARCHITECTURE] += "/lora"
    return said | {HEADER: json.dumps(made | choices.to_json(), sort_keys=True, ensure_ascii=False)}


class _Piece(NamedTuple):
    """Rows of a parameter of the base, and the same rows in the other model."""

    first: int
    length: int
    tuned: Packing
    its_first: int


@dataclass(slots=True)
class _Rounding:
    """How two tensors differ, beside what rounding to the numbers that each can store makes."""

    squares: float = 0.0
    count: int = 0
    expected: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """The sums of the squares of what rounding makes in each."""
    of_packings: float = 0.0
    """The part of these that dtypes below 16 bits make, and quantization."""
    alone: list[bool] = field(default_factory=lambda: [True, True])
    """Whether no number differs by more than rounding makes in one of them."""
    is_within: bool = True
    """Whether no number differs by more than rounding makes in both."""
    of_one_kind: bool = True

    def add(self, base: StoredRows, tuned: StoredRows) -> None:
        missed = (tuned.numbers() - base.numbers()).abs_()
        both = [one.rounding() for one in (base, tuned)]
        self.is_within &= bool((missed <= both[0].most + both[1].most).all())
        for place, (one, rows) in enumerate(zip(both, (base, tuned), strict=True)):
            self.alone[place] &= bool((missed <= one.most).all())
            self.expected[place] += float(one.squares.sum())
            self.of_packings += float(one.squares.sum()) if rows.kind not in PLAIN else 0.0
        self.squares += float(missed.square_().sum())
        self.count += missed.numel()
        self.of_one_kind &= base.kind == tuned.kind

    @property
    def is_all(self) -> bool:
        """Return whether rounding is all that they differ by.

        Either both were rounded from the same numbers. Of one kind they differ by a last place here and there. Of two,
        the finer one has digits that the other lost, and then there are about as many as expected. Or the finer one
        has the numbers of the other one, rounded once more. Where they differ by something between the two, the finer
        one was made of the other.
        """
        expected, finer = sum(self.expected), self.expected.index(min(self.expected))
        if self.alone[finer] and self.squares <= _EVERY * self.expected[finer]:
            return True
        least = 0.0 if self.of_one_kind else _LEAST * expected
        most = (1 + _BIAS + _SPREAD / math.sqrt(max(self.count, 1))) * expected
        return self.is_within and least <= self.squares <= most


@dataclass(frozen=True, slots=True)
class ModelWeight:
    """A weight of a model, and the bias beside it, in two models."""

    index: LayerIndex
    target: Target
    weight: tuple[Packing, tuple[_Piece, ...]] | None
    """The tensor of the base and the rows of the other model; None where they do not differ."""
    bias: tuple[Packing | None, tuple[_Piece, ...]] | None

    @property
    def place(self) -> tuple[str, str]:
        return self.index.component, self.target.name

    def difference(self) -> Difference:
        """Read both and subtract."""
        shape = self.target.shape
        rest, noise = (None, 0.0) if self.weight is None else self._difference(*self.weight)
        bias = None if self.bias is None else self._difference(*self.bias)[0].flatten()
        return Difference(shape, (), None if rest is None else rest.reshape(shape), bias, noise=noise)

    def _difference(self, base: Packing | None, pieces: Sequence[_Piece]) -> tuple[Tensor, float]:
        """Return the difference, and the largest singular value that rounding to packings may have.

        Errors that are independent and zero on average have at most about the length of the longest row plus that of
        the longest column (Bandeira and van Handel, Sharp nonasymptotic bounds on the norm of random matrices, 2016).
        """
        total: Tensor | None = None
        longest, columns = 0.0, torch.zeros((), dtype=_EXACT)
        for start, one, other in both(self.target, base, pieces):
            tuned, sides = other.numbers(), [other] if one is None else [one, other]
            if total is None:
                total = torch.empty(self.target.shape[0], tuned.shape[1], dtype=_EXACT)
            total[start : start + len(tuned)] = tuned if one is None else tuned - one.numbers()
            squares = [side.rounding().squares for side in sides if side.kind not in PLAIN]
            if squares:
                both_squares = torch.stack(squares).sum(0)
                longest = max(longest, float(both_squares.sum(1).max()))
                columns = columns + both_squares.sum(0)
        assert total is not None
        return total, math.sqrt(longest) + math.sqrt(float(columns.max()))


def both(
    target: Target, base: Packing | None, pieces: Sequence[_Piece]
) -> Iterator[tuple[int, StoredRows | None, StoredRows]]:
    """Yield rows of a weight in both models, and the number of the first one; None where the base has none."""
    for piece in pieces:
        inside = piece.tuned.shape[1:]
        for start, stop in parts_of((piece.length, *inside)):
            first = piece.first + start
            one = None if base is None else base.rows(first, piece.first + stop)
            yield first - target.first, one, piece.tuned.rows(piece.its_first + start, piece.its_first + stop)


class ModelChanges:
    """What one model on disk has more than another one.

    Args:
        base: the other one.
        tuned: the model.
        progress: is called with 0 layers of 0 while they are compared; what it raises ends the work.

    Raises:
        FileError: they have no component in common, do not differ, or one is quantized.
    """

    def __init__(self, base: ModelFiles, tuned: ModelFiles, progress: Progress | None = None) -> None:
        self.base, self.tuned, self._progress = base, tuned, progress
        self.files: list[AdapterFile] = [*base.files, *tuned.files]
        self.indexes = {name: LayerIndex(name, one) for name, one in base.components.items()}
        self.weights, self._rounded = list[ModelWeight](), list[str]()
        self._missing, self._unknown, self._others = list[str](), list[str](), list[str]()
        self._squares = self._expected = 0.0  # of what has been read where they differ
        components = [name for name in self.indexes if name in tuned.components]
        if not components:
            raise FileError(tuned.path, f"it has no component of {base.path.name}, which has {', '.join(self.indexes)}")
        for name in components:
            for model in (base, tuned):
                _check_numbers(model, name)
            self._compare(name)
        alone = self.indexes.keys() ^ tuned.components.keys()
        texts = {
            f"components that one of the models has: {_some(sorted(alone))}": alone,
            f"layers that differ by rounding alone are left out: {_some(self._rounded)}": self._rounded,
            f"layers of {base.path.name} that {tuned.path.name} does not have: {_some(self._missing)}": self._missing,
            f"layers of {tuned.path.name} that {base.path.name} does not have: {_some(self._unknown)}": self._unknown,
            f"parameters that differ and that no LoRA file can change: {_some(self._others)}": self._others,
        }
        self.notes = [text for text, names in texts.items() if names]
        share = math.sqrt(self._expected / self._squares) if self._squares else 0.0
        if share >= _TELLING:
            text = f"rounding makes about {min(share, 1):.0%} of the differences that are left"
            self.notes.append(f"{text}; with a rank or a size, the file has less of it")
        if not self.weights:
            raise FileError(tuned.path, "; ".join([f"it does not differ from {base.path.name}", *self.notes]))

    @property
    def count(self) -> int:
        """Return how many numbers differ, by layers."""
        of_weights = [math.prod(one.target.shape) for one in self.weights if one.weight is not None]
        return sum([*of_weights, *[one.target.shape[0] for one in self.weights if one.bias is not None]])

    def read_back(self, path: Path, component: str | None = None) -> Sequence[StackWeight]:
        """Return what a file changes of the base, or of one component."""
        components = self.base.components if component is None else {component: self.base.components[component]}
        return StackChanges(Stack([Entry(path)]), components).weights

    def _compare(self, component: str) -> None:
        """Find the weights of a component that differ."""
        index, other = self.indexes[component], LayerIndex(component, self.tuned.components[component])
        weights, biases = (self._pieces(index, other, is_bias=one) for one in (False, True))
        known = set[str]()
        for target in _named_weights(index):
            if self._progress is not None:
                self._progress(0, 0)
            name, of_bias = (joined_name(target.path, one) for one in (target.param, target.bias))
            known |= {name, of_bias}
            base, base_bias = (self.base.packings.get((component, one)) for one in (name, of_bias))
            rows, rows_of_bias = _within(target, weights.get(name, ())), _within(target, biases.get(of_bias, ()))
            if base is None:
                continue
            if not rows or (base_bias is not None and not rows_of_bias):
                self._missing.append(f"{component}.{target.name}")
                continue
            differ, rounded = self._differ(target, base, rows)
            bias_differs, bias_rounded = self._differ(target, base_bias, rows_of_bias)
            if differ or bias_differs:
                weight, bias = (base, rows) if differ else None, (base_bias, rows_of_bias) if bias_differs else None
                self.weights.append(ModelWeight(index, target, weight, bias))
            elif rounded or bias_rounded:
                self._rounded.append(f"{component}.{target.name}")
        self._others += [f"{component}.{name}" for name in self._unlike(component, known)]

    def _differ(self, target: Target, base: Packing | None, pieces: Sequence[_Piece]) -> tuple[bool, bool]:
        """Return whether rows differ by more than rounding, and whether they differ by rounding alone.

        Where no rounding makes what has been read, the rest is not read.
        """
        found, is_new = _Rounding(), False
        for _, one, other in both(target, base, pieces):
            if one is None:
                is_new |= bool(other.numbers().any())
            elif not one.equals(other):
                found.add(one, other)
            if is_new or not found.is_within:
                break
        if base is None or found.squares == 0:
            return is_new, False
        differs = not found.is_all
        if differs:
            self._squares, self._expected = self._squares + found.squares, self._expected + found.of_packings
        return differs, not differs

    def _pieces(self, index: LayerIndex, other: LayerIndex, *, is_bias: bool) -> dict[str, list[_Piece]]:
        """Return where the other model has the rows of each parameter of the base."""
        found: dict[str, list[_Piece]] = {}
        for target in _named_weights(other):
            place, own = index.find(target.name), target.bias if is_bias else target.param
            stored = self.tuned.packings.get((index.component, joined_name(target.path, own)))
            if stored is None:
                continue
            if place is None or _flat(place.shape) != _flat(target.shape):
                self._unknown += [] if is_bias else [f"{index.component}.{target.name}"]
                continue
            first = target.first
            for window in place.windows:
                name = joined_name(window.path, window.bias if is_bias else window.param)
                found.setdefault(name, []).append(_Piece(window.first, window.shape[0], stored, first))
                first += window.shape[0]
        return found

    def _unlike(self, component: str, known: set[str]) -> Iterator[str]:
        """Yield the parameters that both models have, that are of no layer, and that differ."""
        for (owner, name), one in self.base.packings.items():
            other = self.tuned.packings.get((owner, name))
            is_scale = name.rpartition(".")[2] in _OF_INPUTS
            if owner != component or name in known or other is None or is_scale:
                continue
            if one.shape != other.shape or any(
                not torch.equal(one.rows(*rows).numbers(), other.rows(*rows).numbers()) for rows in parts_of(one.shape)
            ):
                yield name


def _flat(shape: Sequence[int]) -> tuple[int, int]:
    return shape[0], math.prod(shape[1:])


def _named_weights(index: LayerIndex) -> list[Target]:
    """List the weights of a component. The parts of a fused weight stand alone where they have names."""
    fused = {(one.path, one.param) for one in index.targets if one.rows is not None}
    return [one for one in index.targets if one.rows is not None or (one.path, one.param) not in fused]


def _within(target: Target, pieces: Sequence[_Piece]) -> tuple[_Piece, ...]:
    """Return the pieces that are rows of a weight; none where they are not all of them."""
    stop = target.first + target.shape[0]
    own = sorted([one for one in pieces if target.first <= one.first < stop], key=lambda one: one.first)
    return tuple(own) if sum([one.length for one in own]) == target.shape[0] else ()


def _check_numbers(model: ModelFiles, component: str) -> None:
    """Refuse a model with weights whose numbers are stored in a way that is not known."""
    for (owner, name), one in model.stored.items():
        is_strange = name.rpartition(".")[2] in _SCALES  # of no weight that is known
        if owner == component and (is_strange or (one.is_packed and (owner, name) not in model.packings)):
            text = f"its weights are quantized in a way that Remora cannot read ({one.key})"
            raise FileError(one.file.path, f"{text}; give the model in float16, bfloat16 or float32")


def _some(names: Sequence[str]) -> str:
    left = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {left} more" if left > 0 else "")
