"""Packings: their base class, and which one a tensor has."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ...files.file import AdapterFile, TensorInfo
from ...registry import discover_classes
from .. import packings as folder

_PACKED = frozenset({torch.int16, torch.int32})
_LONGEST = 1 << 16  # bytes of JSON
EXACT = torch.float64
SLACK = 1 + 1e-3
"""Programs that quantize compute in float32, so that numbers in the middle of two codes may take either."""


class StoredTensor(NamedTuple):
    """A tensor of a file."""

    file: AdapterFile
    key: str

    @property
    def info(self) -> TensorInfo:
        return self.file.infos[self.key]

    @property
    def is_packed(self) -> bool:
        """Return whether it has the form of the numbers of a quantized weight."""
        dtype, shape, *_ = self.info
        is_small = dtype.itemsize == 1 and dtype is not torch.bool
        return len(shape) > 1 and (is_small or dtype in _PACKED)

    def whole(self) -> Tensor:
        """Read all numbers."""
        dtype, shape, start, end = self.info
        with self.file.reading() as reader:
            return reader.flat(dtype, start, end).reshape(shape)

    def said(self) -> Any:
        """Read the JSON that its bytes are; raise ValueError where they are none."""
        if math.prod(self.info.shape) > _LONGEST:
            raise ValueError("it is too long")
        return json.loads(bytes(self.whole().flatten().tolist()))

    def rows(self, start: int, stop: int) -> Tensor:
        """Read some rows, each with all that is behind its number."""
        shape = self.info.shape
        length = math.prod(shape[1:])
        return self.flat(start * length, stop * length).reshape(stop - start, -1)

    def flat(self, start: int, stop: int) -> Tensor:
        """Read some numbers, in the order of the file."""
        dtype, _, first, _ = self.info
        with self.file.reading() as reader:
            return reader.flat(dtype, first + start * dtype.itemsize, first + stop * dtype.itemsize)


class Rounding(NamedTuple):
    """What rounding to the numbers that can be stored makes of each number."""

    most: Tensor
    """The largest error."""
    squares: Tensor
    """The square of the error on average."""

    def after(self, wrong: Tensor) -> Rounding:
        """Return the same for numbers that were wrong by so much, at most, before they were rounded."""
        return Rounding(self.most + wrong, self.squares + wrong.square() / 3)


class StoredRows(NamedTuple):
    """Some rows of a weight, as they are stored."""

    kind: object
    """Rows of one kind whose tensors are equal are the same numbers."""
    stored: tuple[Tensor, ...]
    numbers: Callable[[], Tensor]
    """Returns what they mean, (rows, columns) in fp64."""
    rounding: Callable[[], Rounding]

    def equals(self, other: StoredRows) -> bool:
        """Return whether the same bytes mean the same numbers in both."""
        return self.kind == other.kind and all(map(torch.equal, self.stored, other.stored))


class Packing(ABC):
    """A weight on disk, and the tensors that it is read from. Rows are read when they are needed."""

    name: ClassVar[str]
    before: ClassVar[tuple[str, ...]] = ("plain",)

    def __init__(self, weight: StoredTensor, parts: Mapping[str, StoredTensor], shape: tuple[int, ...]) -> None:
        self.weight, self.parts, self.shape = weight, parts, shape

    @classmethod
    @abstractmethod
    def of(cls, weight: StoredTensor, beside: Mapping[str, StoredTensor]) -> Packing | None:
        """Return the weight that a tensor is, with parts of the tensors beside it; None where it has another packing.

        Raises:
            FileError: the tensors do not fit.
        """

    @abstractmethod
    def rows(self, start: int, stop: int) -> StoredRows:
        """Read some rows."""


def packing_of(weight: StoredTensor, beside: Mapping[str, StoredTensor]) -> Packing | None:
    """Return the packing of a tensor; None where no file of the folder knows it."""
    for one in discover_classes(folder, Packing):  # type: ignore[type-abstract]
        found = one.of(weight, beside)
        if found is not None:
            return found
    return None


def last_places(stored: Tensor) -> Tensor:
    """Return the distance of each floating-point number to the next one."""
    limits, sizes = torch.finfo(stored.dtype), stored.to(EXACT).abs()
    exponent = torch.frexp(sizes.clamp(min=limits.tiny)).exponent - 1
    return torch.ldexp(torch.full_like(sizes, limits.eps), exponent)


def of_steps(steps: Tensor) -> Rounding:
    """Return the rounding to numbers that are evenly spaced."""
    return Rounding(steps / 2, steps.square() / 12)


def of_table(table: Tensor) -> Rounding:
    """Return the rounding to each number of a table."""
    values, places = torch.unique(table, return_inverse=True)
    gaps = torch.cat([values.new_zeros(1), values.diff(), values.new_zeros(1)])
    below, above = gaps[:-1][places], gaps[1:][places]
    return Rounding(torch.maximum(below, above) / 2, (below**3 + above**3) / (below + above) / 12)


class Blocks(NamedTuple):
    """The blocks of numbers, in the order of the file, in which some rows lie."""

    first: int
    stop: int
    skipped: int
    """Numbers of the first block before the first row."""
    rows: int
    columns: int

    @classmethod
    def around(cls, shape: tuple[int, ...], size: int, start: int, stop: int) -> Blocks:
        columns = math.prod(shape[1:])
        first, end = start * columns // size, -(-stop * columns // size)
        return cls(first, end, start * columns - first * size, stop - start, columns)

    def cut(self, numbers: Tensor) -> Tensor:
        """Return the rows of the numbers of the blocks."""
        flat = numbers.reshape(-1)[self.skipped : self.skipped + self.rows * self.columns]
        return flat.reshape(self.rows, self.columns)
