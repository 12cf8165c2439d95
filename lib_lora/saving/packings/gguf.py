"""GGUF: blocks of codes with scales, which the optional package `gguf` decodes.

Source: ggml docs/gguf.md and ggml-common.h; ComfyUI-GGUF, whose files say the shapes of weights that it has folded.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import FileError
from ...files.file import AdapterFile, TensorInfo, stamp_of
from ...files.reading import open_regular
from .base import EXACT, Blocks, Packing, Rounding, StoredRows, StoredTensor

SUFFIX = ".gguf"
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
_SHAPE = "comfy.gguf.orig_shape."
_HALF = 2.0**-11
"""The error of a scale in float16, as a share of it."""
_SMALLEST = 2.0**-25  # its error where the scale is tiny


class _Codes(NamedTuple):
    """Where the codes of a block are, and what they may be."""

    first: int
    stop: int
    levels: int
    """Steps from the lowest number to the highest."""
    clipped: float
    """Steps by which numbers may lie behind the lowest or the highest one, beside the half that all may."""


_TYPES = {
    "Q4_0": _Codes(2, 18, 15, 0.5),
    "Q4_1": _Codes(4, 20, 15, 0),
    "Q5_0": _Codes(2, 22, 31, 0.5),
    "Q5_1": _Codes(4, 24, 31, 0),
    "Q8_0": _Codes(2, 34, 255, 0),
    "Q2_K": _Codes(16, 80, 3, math.inf),
    "Q3_K": _Codes(0, 96, 7, math.inf),
    "Q4_K": _Codes(16, 144, 15, math.inf),
    "Q5_K": _Codes(16, 176, 31, math.inf),
    "Q6_K": _Codes(0, 192, 63, math.inf),
}
"""Without a limit where scales are rounded after the codes are chosen, or chosen for the least error."""
_SIGNED = frozenset({"Q8_0"})  # whose lowest code is -128


class GGUFFile(AdapterFile):
    """An open GGUF file. A quantized tensor is bytes: one row for each block."""

    types: Mapping[str, Any]
    """Of the quantized tensors, as the package has them."""
    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def open(cls, path: str | Path) -> GGUFFile:
        path = Path(path).absolute()
        library = _library(path)
        try:
            with open_regular(path) as stream:
                stamp = stamp_of(os.fstat(stream.fileno()))
            reader = library.GGUFReader(path)
            shapes = {one.name: _shape(reader, one) for one in reader.tensors}
            types = {one.name: one.tensor_type for one in reader.tensors if one.tensor_type.name not in _DTYPES}
            infos = {one.name: _info(library, one, shapes[one.name]) for one in reader.tensors}
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError, MemoryError) as error:
            raise FileError(path, f"it is truncated or damaged: {error}; download it again") from error
        if any(info.end > stamp[0] for info in infos.values()):
            raise FileError(path, "it is truncated; download it again")
        found = cls(path, infos, {}, stamp)
        found.types, found.shapes = types, shapes
        return found


class GGUF(Packing):
    """Blocks of a file in GGUF."""

    name = "gguf"
    kind: Any
    """Its type, as the package has it."""
    library: Any
    """The package."""

    @classmethod
    def of(cls, weight: StoredTensor, beside: Mapping[str, StoredTensor]) -> Packing | None:
        file = weight.file
        if not isinstance(file, GGUFFile) or weight.key not in file.types:
            return None
        kind = file.types[weight.key]
        if kind.name not in _TYPES:
            return None
        found = cls(weight, {}, file.shapes[weight.key])
        found.kind, found.library = kind, _library(file.path)
        return found

    def rows(self, start: int, stop: int) -> StoredRows:
        size, _ = self.library.GGML_QUANT_SIZES[self.kind]
        blocks = Blocks.around(self.shape, size, start, stop)
        stored = self.weight.rows(blocks.first, blocks.stop)
        kind = (self.name, self.kind.name, blocks.skipped)
        numbers = cache(partial(self._decoded, blocks, stored))
        return StoredRows(kind, (stored,), numbers, lambda: self._rounding(blocks, stored, numbers()))

    def _decoded(self, blocks: Blocks, stored: Tensor) -> Tensor:
        decoded = self.library.dequantize(stored.numpy().reshape(1, -1), self.kind)  # which goes row by row
        return blocks.cut(torch.from_numpy(decoded).to(EXACT))

    def _rounding(self, blocks: Blocks, stored: Tensor, numbers: Tensor) -> Rounding:
        """Return what rounding makes, by what blocks with the same scales and other codes are."""
        first, end, levels, clipped = _TYPES[self.kind.name]
        fills = (0x80, 0x7F) if self.kind.name in _SIGNED else (0, 0xFF)
        ends = list[Tensor]()
        for fill in fills:
            same = stored.clone()
            same[:, first:end] = fill
            ends.append(self._decoded(blocks, same))
        low, high = ends
        steps = (high - low).abs() / levels
        most = steps / 2 + (low.abs() + high.abs()) * _HALF + levels * _SMALLEST
        is_end = (numbers == low) | (numbers == high)
        most = torch.where(is_end, most + (steps * clipped if math.isfinite(clipped) else math.inf), most)
        return Rounding(most, steps.square() / 12)


def open_model_file(path: Path) -> AdapterFile:
    """Open a file of a model by the ending of its name."""
    return GGUFFile.open(path) if path.suffix.lower() == SUFFIX else AdapterFile.open(path)


def _library(path: Path) -> Any:
    try:
        return import_module("gguf")
    except ImportError as error:
        raise FileError(path, "the package gguf is needed to read it; run `pip install gguf`") from error


def _shape(reader: Any, tensor: Any) -> tuple[int, ...]:
    field = reader.fields.get(f"{_SHAPE}{tensor.name}")
    stored = tuple(int(one) for one in reversed(tensor.shape.tolist()))
    shape = stored if field is None else tuple(int(field.parts[place][0]) for place in field.data)
    if math.prod(shape) != math.prod(stored):
        raise ValueError(f"the shape of {tensor.name} does not fit")
    return shape


def _info(library: Any, tensor: Any, shape: tuple[int, ...]) -> TensorInfo:
    dtype, start, nbytes = _DTYPES.get(tensor.tensor_type.name), int(tensor.data_offset), int(tensor.n_bytes)
    if dtype is None:
        _, size = library.GGML_QUANT_SIZES[tensor.tensor_type]
        dtype, shape = torch.uint8, (nbytes // size, size)
    return TensorInfo(dtype, shape, start, start + nbytes)
