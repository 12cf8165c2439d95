"""How adapters are stored on a device: in the dtype they compute in, or smaller, and widened for one call at a time.

Stored smaller are the matrices: floating-point tensors of two or more dimensions, such as both factors of a low-rank
pair, a dense difference, the blocks of a rotation. Left as they are: vectors (biases, magnitudes, scales), integers,
strengths, and what an adapter declares `exact` because the delta is not in proportion to it. `bfloat16` also leaves
what has 16 bits already: nothing would be won.

`float8` is e4m3, https://arxiv.org/abs/2209.05433: 3 bits of mantissa, so an entry is off by at most 1/16 of itself,
down to 2^-14 of the largest entry of its line. A line is what belongs to one index of the shorter one of the first two
dimensions, in a low-rank pair one rank component, so that entries of a stack never share a scale. Scales are powers of
two: a floating format gains nothing from finer ones, and widening is exact in every dtype. A low-rank pair is one
matrix, whose components are spread over both factors first, see `execution/low_rank_products.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import ClassVar, Generic, Literal, TypeVar, cast, get_args

import torch
from torch import Tensor

from ..errors import StorageError, check_choice
from ..tensors import TensorFields

Storage = Literal["file", "bfloat16", "float8"]
"""`file` stores the dtype that is computed in: the layer's, or where effective weights are built, the file's."""

_FLOAT8: torch.dtype | None = getattr(torch, "float8_e4m3fn", None)
_LARGEST = 448.0  # of e4m3


@dataclass(frozen=True, slots=True, eq=False)
class Packed(TensorFields):
    """A tensor in fewer bytes."""

    data: Tensor
    scale: Tensor | None  # powers of two in the wide dtype, to be broadcast
    dtype: torch.dtype  # the wide one

    exact: ClassVar[frozenset[str]] = frozenset({"data", "scale"})

    def get(self) -> Tensor | TensorFields:
        """Return the content, in new memory: a tensor in the dtype it had."""
        wide = self.data.to(self.dtype)
        return wide if self.scale is None else wide.mul_(self.scale)


T = TypeVar("T", bound=TensorFields)


def store(content: T, storage: Storage) -> T:
    """Pack placed tensors; where anything is packed, the content is only to be stored, moved and unpacked."""
    return content if storage == "file" else content.mapped(lambda tensor: pack(tensor, storage), exact=False)


def check_storage(storage: str) -> None:
    """Raise StorageError where there is no such storage, or this torch has no float8."""
    check_choice(storage, get_args(Storage), "storage", StorageError)
    if storage == "float8" and _FLOAT8 is None:
        raise StorageError(f"torch {torch.__version__} has no float8; use storage 'bfloat16', or a newer torch")


def pack(tensor: Tensor, storage: Storage) -> Tensor | Packed:
    """Return a tensor in fewer bytes, or itself where it is left as it is."""
    size = 2 if storage == "bfloat16" else 1
    if tensor.ndim < 2 or not tensor.is_floating_point() or tensor.element_size() <= size or not tensor.numel():
        return tensor
    if storage == "bfloat16":
        return Packed(tensor.to(torch.bfloat16), None, tensor.dtype)
    assert _FLOAT8 is not None
    line = 0 if tensor.shape[0] <= tensor.shape[1] else 1
    largest = tensor.abs().amax([dim for dim in range(tensor.ndim) if dim != line], keepdim=True)
    exponent = torch.frexp(largest.float() / _LARGEST).exponent
    # below its smallest normal number the wide dtype itself has no more bits than such a line is left with
    lowest = max(math.frexp(torch.finfo(tensor.dtype).tiny)[1] - 1, -126)
    # put together from its bits: devices differ in how exact their powers are
    scale = ((exponent.clamp(lowest, 127) + 127) << 23).view(torch.float32).to(tensor.dtype)
    return Packed((tensor / scale).clamp(-_LARGEST, _LARGEST).to(_FLOAT8), scale, tensor.dtype)


def _unpacked(value: object) -> object:
    if isinstance(value, Packed):
        return value.get()
    if isinstance(value, TensorFields):
        assert is_dataclass(value)
        return replace(value, **{field.name: _unpacked(getattr(value, field.name)) for field in fields(value)})
    return tuple(_unpacked(one) for one in value) if isinstance(value, tuple) else value


def is_packed(value: object) -> bool:
    """Tell whether any tensor of a value is packed."""
    if isinstance(value, TensorFields) and not isinstance(value, Packed):
        assert is_dataclass(value)
        value = tuple([getattr(value, field.name) for field in fields(value)])
    return any(map(is_packed, value)) if isinstance(value, tuple) else isinstance(value, Packed)


@dataclass(frozen=True, slots=True, eq=False)
class Placement(Generic[T]):
    """A layer's adapters on one device."""

    device: torch.device
    dtype: torch.dtype
    """Of the layer's output."""
    input_dtype: torch.dtype
    content: T
    """As `store` returned it."""
    packed: bool

    def get(self) -> T:
        """Return the content, ready to compute with; it must not be written to."""
        return cast(T, _unpacked(self.content)) if self.packed else self.content
