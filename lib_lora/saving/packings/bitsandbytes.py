"""bitsandbytes' 4-bit and 8-bit weights, as Forge's NF4 checkpoints and diffusers' folders have them.

Source: bitsandbytes functional.py, `QuantState.as_dict` and `dequantize_4bit`; nn/modules.py, `Linear8bitLt`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from ...errors import FileError
from .base import EXACT, SLACK, Blocks, Packing, Rounding, StoredRows, StoredTensor, of_steps, of_table

_STATE = "quant_state.bitsandbytes__"
_LEVELS = 127
_FLOAT16 = 2.0**-11  # the error of float16, as a share of a number, to which the library rounds before
_NESTED = ("nested_absmax", "nested_quant_map")


class BitsAndBytes4(Packing):
    """Numbers of a table of 16, times the largest number of each block; that may be quantized, too."""

    name = "bitsandbytes_4bit"
    size: int
    """Numbers of a block."""
    nested: int
    """Largest numbers of a block of them; 0 where they are not quantized."""
    offset: float
    """What they have more than is stored."""

    @classmethod
    def of(cls, weight: StoredTensor, beside: Mapping[str, StoredTensor]) -> Packing | None:
        states = [f"{weight.key}.{_STATE}{kind}" for kind in ("nf4", "fp4")]
        state = next((key for key in states if key in beside), None)
        if state is None:
            return None
        names = {name: f"{weight.key}.{name}" for name in ("absmax", "quant_map", *_NESTED)}
        parts = {name: beside[key] for name, key in names.items() if key in beside}
        try:
            said = beside[state].said()
            found = cls(weight, parts | {"state": beside[state]}, tuple([int(one) for one in said["shape"]]))
            found.size, found.nested = int(said["blocksize"]), int(said.get("nested_blocksize", 0))
            found.offset = float(said.get("nested_offset", 0))
            found.check()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            text = f"the tensors of {weight.key} do not fit to what its quant_state says; download it again"
            raise FileError(weight.file.path, text) from error
        return found

    def check(self) -> None:
        """Raise ValueError or KeyError where the tensors have not as many numbers as the shape, or other ones."""
        if min(self.shape) < 1 or self.size < 2 or self.size % 2 or self.nested < 0:
            raise ValueError
        count = math.prod(self.shape)
        blocks = -(-count // self.size)
        sizes = {"absmax": blocks, "quant_map": 16}
        if self.nested:
            sizes |= {"nested_absmax": -(-blocks // self.nested), "nested_quant_map": 256}
        found = {name: math.prod(self.parts[name].info.shape) for name in sizes}
        packed = math.prod(self.weight.info.shape) * self.weight.info.dtype.itemsize
        is_nested = self.parts["absmax"].info.dtype is torch.uint8
        if found != sizes or packed != -(-count // 2) or is_nested != bool(self.nested):
            raise ValueError

    def rows(self, start: int, stop: int) -> StoredRows:
        blocks = Blocks.around(self.shape, self.size, start, stop)
        first = self.weight.info.start
        end = min(first + blocks.stop * self.size // 2, self.weight.info.end)
        with self.weight.file.reading() as reader:
            codes = reader.flat(torch.uint8, first + blocks.first * self.size // 2, end)
        table = self.parts["quant_map"].whole().to(EXACT)
        largest, doubt = self._largest(blocks)
        stored = (codes, table, largest, doubt)
        return StoredRows(
            (self.name, self.size, blocks.skipped),
            stored,
            partial(self._numbers, blocks, *stored),
            partial(self._rounding, blocks, *stored),
        )

    def _largest(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        """Return the largest number of each block, computed as the library does, and how wrong it may be."""
        stored = self.parts["absmax"].flat(blocks.first, blocks.stop)
        if not self.nested:
            return stored.to(EXACT), torch.zeros(len(stored), dtype=EXACT)
        scales = self.parts["nested_absmax"].whole().float()
        scales = scales[torch.arange(blocks.first, blocks.stop) // self.nested]
        table, codes = self.parts["nested_quant_map"].whole().float(), stored.long()
        doubt = of_table(table.to(EXACT)).most[codes] * scales
        return (table[codes] * scales + self.offset).to(EXACT), doubt

    def _codes(self, codes: Tensor) -> Tensor:
        return torch.stack([codes >> 4, codes & 15], 1).flatten().long()

    def _numbers(self, blocks: Blocks, codes: Tensor, table: Tensor, largest: Tensor, _: Tensor) -> Tensor:
        numbers = table[self._codes(codes)]
        return blocks.cut(numbers * largest.repeat_interleave(self.size)[: len(numbers)])

    def _rounding(self, blocks: Blocks, codes: Tensor, table: Tensor, largest: Tensor, doubt: Tensor) -> Rounding:
        """Return what rounding makes, to the table and, of the largest number, to the nested one."""
        places, of_code = self._codes(codes), of_table(table)
        largest, doubt = (one.repeat_interleave(self.size)[: len(places)] for one in (largest.abs(), doubt))
        most, squares = of_code.most[places] * (largest + doubt) * SLACK, of_code.squares[places] * largest.square()
        return Rounding(*map(blocks.cut, Rounding(most, squares).after(table[places].abs() * doubt)))


class BitsAndBytes8(Packing):
    """One int8 for each number, and the largest number of each row."""

    name = "bitsandbytes_8bit"

    @classmethod
    def of(cls, weight: StoredTensor, beside: Mapping[str, StoredTensor]) -> Packing | None:
        path = weight.key.removesuffix("weight")
        maxima, dtype, shape = beside.get(f"{path}SCB"), weight.info.dtype, weight.info.shape
        if maxima is None or dtype is not torch.int8 or weight.key == path or len(shape) != 2:
            return None
        order = beside.get(f"{path}weight_format")
        by_rows = order is None or not order.whole().any()
        if math.prod(maxima.info.shape) != shape[0] or not by_rows:
            return None
        return cls(weight, {"maxima": maxima} | ({} if order is None else {"order": order}), shape)

    def rows(self, start: int, stop: int) -> StoredRows:
        stored, maxima = self.weight.rows(start, stop), self.parts["maxima"].whole().flatten()[start:stop]
        steps = maxima.to(EXACT).reshape(-1, 1) / _LEVELS
        numbers, spread = stored.to(EXACT) * steps, steps.expand(stored.shape) * SLACK
        wrong = numbers.abs() * _FLOAT16
        return StoredRows(self.name, (stored, steps), lambda: numbers, lambda: of_steps(spread).after(wrong))
