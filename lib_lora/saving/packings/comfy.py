"""ComfyUI's quantized weights: int8, NVFP4 and MXFP8.

Each layer has its format as JSON in `comfy_quant`, or the header has the formats of all layers. Source: ComfyUI
comfy/quant_ops.py, and comfy-kitchen comfy_kitchen/tensor/ and comfy_kitchen/backends/eager/quantization.py. Weights
that were rotated before, or that are multiplied with scales of their inputs, are not read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from .base import EXACT, SLACK, Packing, Rounding, StoredRows, StoredTensor, last_places, of_steps, of_table

_FLOAT4 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
"""The numbers of float4, of which each may be negative."""
_BLOCK4, _BLOCK8 = 16, 32  # numbers with one scale
_DIVIDED = torch.finfo(torch.bfloat16).eps
"""The error, as a share of a number, of a weight in bfloat16 that is divided by its scale in bfloat16."""
_LEAST = 6 * 2.0**-10
"""The largest number, by the scale of the whole weight, of a block whose scale becomes 0."""
_TILE = (128, 4)  # scales that lie together, in the order of NVIDIA's cuBLAS


class ComfyInt8(Packing):
    """One int8 for each number, and one scale, or one for each row."""

    name = "comfy_int8"

    @classmethod
    def of(cls, weight: StoredTensor, beside: Mapping[str, StoredTensor]) -> Packing | None:
        parts, shape = _parts(weight, beside, "int8_tensorwise", torch.int8), weight.info.shape
        if parts is None or math.prod(parts["scale"].info.shape) not in (1, shape[0]):
            return None
        return cls(weight, parts, shape)

    def rows(self, start: int, stop: int) -> StoredRows:
        stored, steps = self.weight.rows(start, stop), self.parts["scale"].whole().to(EXACT).reshape(-1, 1)
        steps = steps if len(steps) == 1 else steps[start:stop]
        numbers, spread = stored.to(EXACT) * steps, steps.expand(stored.shape) * SLACK
        wrong = numbers.abs() * _DIVIDED
        return StoredRows(self.name, (stored, steps), lambda: numbers, lambda: of_steps(spread).after(wrong))


class NVFP4(Packing):
    """Two numbers of 4 bits in a byte, a scale in float8 for 16 of them, and one for all."""

    name = "comfy_nvfp4"

    @classmethod
    def of(cls, weight: StoredTensor, beside: Mapping[str, StoredTensor]) -> Packing | None:
        parts = _parts(weight, beside, "nvfp4", torch.uint8, "weight_scale_2")
        if parts is None:
            return None
        shape = (weight.info.shape[0], 2 * weight.info.shape[1])
        is_one = math.prod(parts["weight_scale_2"].info.shape) == 1
        fits = is_one and _fits(parts["scale"], shape, _BLOCK4, torch.float8_e4m3fn)
        return cls(weight, parts, shape) if fits else None

    def rows(self, start: int, stop: int) -> StoredRows:
        codes, whole = self.weight.rows(start, stop).long(), self.parts["weight_scale_2"].whole().float()
        scales = _scales(self.parts["scale"], self.shape[1] // _BLOCK4, start, stop).float() * whole
        steps = scales.to(EXACT).repeat_interleave(_BLOCK4, 1)
        places = torch.stack([codes >> 4, codes & 15], -1).flatten(1)
        table = torch.tensor([*_FLOAT4, *[-one for one in _FLOAT4]], dtype=EXACT)

        def rounding() -> Rounding:
            most, squares = of_table(table)
            return Rounding(most[places] * steps * SLACK + _LEAST * whole, squares[places] * steps.square())

        return StoredRows(self.name, (codes, scales), lambda: table[places] * steps, rounding)


class MXFP8(Packing):
    """Float8, and a power of two for 32 numbers."""

    name = "comfy_mxfp8"
    before = ("plain", "scaled_float8")

    @classmethod
    def of(cls, weight: StoredTensor, beside: Mapping[str, StoredTensor]) -> Packing | None:
        parts, shape = _parts(weight, beside, "mxfp8", torch.float8_e4m3fn), weight.info.shape
        if parts is None or not _fits(parts["scale"], shape, _BLOCK8, torch.uint8):
            return None
        return cls(weight, parts, shape)

    def rows(self, start: int, stop: int) -> StoredRows:
        stored = self.weight.rows(start, stop)
        exponents = _scales(self.parts["scale"], self.shape[1] // _BLOCK8, start, stop)
        steps = torch.ldexp(torch.ones(exponents.shape, dtype=EXACT), exponents.int() - 127) * (exponents > 0)
        steps = steps.repeat_interleave(_BLOCK8, 1)
        return StoredRows(
            self.name,
            (stored, exponents),
            lambda: stored.to(EXACT) * steps,
            lambda: of_steps(last_places(stored) * steps * SLACK),
        )


def _parts(
    weight: StoredTensor, beside: Mapping[str, StoredTensor], wanted: str, dtype: torch.dtype, *others: str
) -> dict[str, StoredTensor] | None:
    """Return the tensors of a weight of a format; None where it has another one, or is changed besides."""
    path, marker = weight.key.removesuffix("weight"), f"{weight.key.removesuffix('weight')}comfy_quant"
    keys = {"scale": f"{path}weight_scale"} | {name: path + name for name in others}
    is_matrix = weight.info.dtype is dtype and len(weight.info.shape) == 2 and weight.key.endswith("weight")
    if not is_matrix or not all(key in beside for key in keys.values()):
        return None
    said = _settings(weight, beside.get(marker), path.rstrip("."))
    if said.get("format") != wanted or said.get("convrot") or f"{path}pre_quant_scale" in beside:
        return None
    parts = {name: beside[key] for name, key in keys.items()}
    return parts | ({"marker": beside[marker]} if marker in beside else {})


def _settings(weight: StoredTensor, marker: StoredTensor | None, layer: str) -> Mapping[str, object]:
    """Return what is said of the format of a layer; nothing where that cannot be read."""
    try:
        if marker is not None:
            said = marker.said()
        else:
            said = json.loads(weight.file.metadata.get("_quantization_metadata", "{}")).get("layers", {}).get(layer)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _fits(scale: StoredTensor, shape: tuple[int, ...], size: int, dtype: torch.dtype) -> bool:
    """Return whether there is a scale of a dtype for each block, and for what fills the tiles."""
    rows, columns = -(-shape[0] // _TILE[0]) * _TILE[0], -(-shape[1] // size // _TILE[1]) * _TILE[1]
    fits = scale.info.dtype is dtype and math.prod(scale.info.shape) == rows * columns
    return shape[1] % size == 0 and fits


def _scales(stored: StoredTensor, columns: int, start: int, stop: int) -> Tensor:
    """Read the scales of some rows, which lie in tiles of 128 rows and 4 columns: 32 times 4 rows of 4."""
    across = -(-columns // _TILE[1])
    first, end = start // _TILE[0], -(-stop // _TILE[0])
    size = across * _TILE[0] * _TILE[1]
    tiles = stored.flat(first * size, end * size).view(torch.uint8).reshape(end - first, across, 32, 4, 4)
    rows = tiles.permute(0, 3, 2, 1, 4).reshape((end - first) * _TILE[0], across * _TILE[1])
    return rows[start - first * _TILE[0] : stop - first * _TILE[0], :columns].contiguous().view(stored.info.dtype)
