"""LoKr: the Kronecker product of two matrices, https://arxiv.org/abs/2212.10650 (KronA), LyCORIS functional/lokr.py.

dW = scale * w1 (x) w2, w1 being (a, b) and w2 (c, d, *kernel), out = a c and in = b d. Either is one full matrix or a
product of two, w2 also with a tucker core. The scale is alpha / rank. Where both are full, no shape is the rank:

- PEFT trains at alpha / r of its configuration;
- LyCORIS, OneTrainer and ai-toolkit store the rank as alpha and train at 1, at the root of the rank with rs-LoRA;
- blissful-tuner, whose files have `lokr_factor`, divides alpha by the longer side of w2;
- others divide alpha by the rank in the header, which a table may give by layer.

A Kronecker product of matrices acts on a vector as the matrices do on the two axes of a (b, d) array, in any order:
`_Chain` takes the order that costs least, which is mostly w2's right factor, w1, w2's left factor. Files of 2023 may
split the flattened in * kernel where no channel ends, so that there is no such array; being
(l1 r1) (x) (l2 r2) = (l1 (x) l2) (r1 (x) r2), they act as a pair of matrices.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor
from typing_extensions import Self

from ..errors import UnsupportedError
from ..tensors import LARGEST, wide
from ._operation import Operation, at_multiplier
from ._product import Built, Product, balanced, product, shape_of_product
from ._rows import placed, shape_of, taken, within
from ._trainer import arguments, lycoris_scale
from .base import At, Factors, Form, Origin, OutputEffect, Pair, Params, Rows, Shapes, Site, Tensors

Side = Literal["left", "right"]
"""The axis of the (b, d) array a matrix acts on: w1's is the left one."""
Sizes = tuple[int, int]
"""Rows and columns of a matrix, a kernel's places among the columns."""

_W1 = frozenset({"lokr_w1_a", "lokr_w1_b"})
_W2 = frozenset({"lokr_w2_a", "lokr_w2_b"})
_ROUNDED = 0.01
"""An alpha in a narrow dtype differs from the number it was by less than this share."""
_PAIR_RATE = 2
"""A pair of large matrices runs at this many times the rate of a chain of small ones, measured on a CPU."""


@dataclass(frozen=True, slots=True)
class _Chain(OutputEffect):
    """The matrices on the two axes of the input's channels, one after the other."""

    matrices: tuple[Tensor, ...]  # (p, q); the first on the right axis (p, q, *kernel)
    sides: tuple[Side, ...]
    axis: int  # length of the left axis of the input
    weakest: int  # the smallest matrix, which the multiplier goes into
    rows: Rows | None  # of all outputs, those that are wanted
    reads_output = False

    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        def chain(weakest: Tensor) -> Tensor:
            matrices = [*self.matrices[: self.weakest], weakest, *self.matrices[self.weakest + 1 :]]
            y = self._conv(x, matrices, op) if op.spatial else self._linear(x, matrices)
            return y if self.rows is None else taken(y, self.rows, op.channels)

        return at_multiplier(chain, self.matrices[self.weakest], multiplier)

    def _linear(self, x: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        h = x.reshape(-1, self.axis, x.shape[-1] // self.axis)
        for side, matrix in zip(self.sides, matrices, strict=True):
            h = torch.matmul(matrix, h) if side == "left" else F.linear(h, matrix)
        return h.flatten(1).reshape(*x.shape[:-1], h.shape[1] * h.shape[2])

    def _conv(self, x: Tensor, matrices: Sequence[Tensor], op: Operation) -> Tensor:
        """Make the left axis part of the batch, so that a convolution sees the right one as channels."""
        batched = x.ndim > op.spatial + 1
        count, channels, *size = (x if batched else x.unsqueeze(0)).shape
        h = x.reshape(count, self.axis, channels // self.axis, *size)
        for side, matrix in zip(self.sides, matrices, strict=True):
            if side == "left":
                h = torch.matmul(matrix, h.flatten(2)).reshape(count, matrix.shape[0], *h.shape[2:])
            else:
                one = h.flatten(0, 1)
                one = op.apply(one, matrix) if matrix.ndim > 2 else op.pointwise(one, matrix)
                h = one.reshape(*h.shape[:2], *one.shape[1:])
        h = h.flatten(1, 2)
        return h if batched else h.squeeze(0)


@dataclass(frozen=True, slots=True, eq=False)
class LoKr(Built):
    first: Product  # w1, (a, b)
    second: Product  # w2, (c, d * kernel), or what of in * kernel the first leaves
    scale: float
    shape: tuple[int, ...]
    rows: Rows | None = None
    """Windows of the product's rows; all if not given."""

    name = "lokr"
    scaled = True
    params = Params(required=frozenset(), optional=frozenset({"lokr_w1", "lokr_w2", "lokr_t2", "alpha"}) | _W1 | _W2)
    shared = frozenset({"lokr_factor"})

    @classmethod
    def claims(cls, shapes: Shapes) -> bool:
        names = set(shapes)
        first, second = names & (_W1 | {"lokr_w1"}), names & (_W2 | {"lokr_w2"})
        one_way = first in (_W1, {"lokr_w1"}) and second in (_W2, {"lokr_w2"})
        return one_way and cls.params.claim(shapes) and ("lokr_t2" not in names or second == _W2)

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        first = product(params, "lokr_w1", ())
        second = product(params, "lokr_w2", site.shape[2:])
        out, inside = first.rows * second.rows, first.columns * second.columns
        if (out, inside) != (site.shape[0], site.inside):
            raise ValueError(f"want w1 (x) w2 to be ({site.shape[0]}, {site.inside}), got ({out}, {inside})")
        return cls(first, second, _scale(params, origin), site.shape)

    @classmethod
    def own_shape(cls, shapes: Shapes) -> tuple[int, ...] | None:
        first, second = (shape_of_product(shapes, name) for name in ("lokr_w1", "lokr_w2"))
        if len(first) != 2 or len(second) < 2:
            return None
        return (first[0] * second[0], first[1] * second[1], *second[2:])

    @property
    def rank(self) -> int | None:
        known = [half.rank for half in (self.second, self.first) if half.left is not None]
        return known[0] if known else None

    def take(self, rows: Rows) -> Self:
        rows = rows if self.rows is None else within(self.rows, rows)
        height = self.second.rows
        # of w1, the rows from which any of these are made
        low = min(start for start, _ in rows) // height
        high = max(-(-stop // height) for _, stop in rows)
        left = tuple((start - low * height, stop - low * height) for start, stop in rows)
        found = replace(self, first=self.first.take(((low, high),)), shape=shape_of(self.shape, rows), rows=None)
        if high - low == 1:
            return replace(found, second=self.second.take(left))
        return found if left == ((0, (high - low) * height),) else replace(found, rows=left)

    @property
    def prefers_dense(self) -> bool:
        return self._pair is None and not (self._aligned and self._plan[1] < self.shape[0] * self._inside)

    def form(self, rank: int | None = None) -> Form:
        pair = self._pair
        return Form(pair, on_output=pair is None)

    def factors(self, rank: int | None = None) -> Factors:
        (l1, r1), (l2, r2) = self.first.pair(), self.second.pair()
        up = _kron(l1, l2)
        return balanced(up if self.rows is None else taken(up, self.rows), _kron(r1, r2), self.shape)

    def as_factors(self, read: Callable[[], Tensor], rank: int | None = None) -> Factors | None:
        if self._pair_cost >= self.shape[0] * self._inside:
            return None
        factors = self.factors()
        return Factors(factors.down.double(), factors.up.double() * self.scale)

    def output_effect(self, device: torch.device, dtype: torch.dtype) -> OutputEffect:
        if not self._aligned:
            return super(LoKr, self).output_effect(device, dtype)
        sides, _ = self._plan
        left, right = iter(_matrices(self.first)), iter(_matrices(self.second))
        ordered = _even([next(left if side == "left" else right) for side in sides], self.scale)
        kernel, widest = self.shape[2:], sides.index("right")
        ordered[widest] = ordered[widest].reshape(-1, self.shape[1] // self.first.columns, *kernel)
        weakest = min(range(len(ordered)), key=lambda i: ordered[i].numel())
        return _Chain(
            tuple(placed(one, device, dtype) for one in ordered), sides, self.first.columns, weakest, self.rows
        )

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        rows = torch.arange(self.first.rows * self.second.rows, device=self.first.right.device)
        rows = rows if self.rows is None else taken(rows, self.rows)
        rows = rows if at.rows is None else rows[slice(*at.rows)]
        # row i of a Kronecker product is the product of row i // c of w1 and row i % c of w2
        first = self.first.dense(at.device, at.dtype, rows // self.second.rows)
        second = self.second.dense(at.device, at.dtype, rows % self.second.rows)
        delta = first.unsqueeze(2) * second.unsqueeze(1)
        return delta.reshape(-1, *self.shape[1:]), self.scale * at.multiplier

    @property
    def _inside(self) -> int:
        return math.prod(self.shape[1:])

    @property
    def _aligned(self) -> bool:
        """Return whether the two axes split the channels: only files of 2023 split in * kernel elsewhere."""
        return self.shape[1] % self.first.columns == 0

    @property
    def _plan(self) -> tuple[tuple[Side, ...], int]:
        """Return the side of each matrix in the order in which they act, and the cost per place."""
        axes = self.first.columns, self.shape[1] // self.first.columns
        return _cheapest(_sizes(self.first), _sizes(self.second), *axes)

    @property
    def _pair(self) -> Pair | None:
        """Return the pair if it is cheaper or the only form."""
        limit = self.shape[0] * self._inside
        if self._aligned:
            limit = min(limit, _PAIR_RATE * self._plan[1])
        return Pair(self.first.rank * self.second.rank, self.scale) if self._pair_cost < limit else None

    @property
    def _pair_cost(self) -> int:
        return self.first.rank * self.second.rank * (self.shape[0] + self._inside)


def _scale(params: Tensors, origin: Origin) -> float:
    """Return alpha / rank; of two factored halves the second's rank, as in every trainer."""
    right = params.get("lokr_w2_b", params.get("lokr_w1_b"))
    if right is not None:
        return lycoris_scale(origin, right.shape[0])
    alpha, rank = origin.alpha, origin.config.get("r")
    if alpha.fixed is not None:
        return alpha.fixed
    if "lokr_factor" in origin.shared:
        return alpha.scale(max(params["lokr_w2"].shape))
    if type(rank) is not int or not 0 < rank <= LARGEST or not alpha.value:
        if origin.reading.alpha is not None:
            raise UnsupportedError("of a LoKr whose rank nothing tells, so that an alpha is no scale: give its scale")
        return 1.0
    if origin.spelling == "peft" or origin.reading.alpha is not None:
        return alpha.scale(rank)
    if abs(alpha.value / rank - 1) < _ROUNDED:  # by the dtype of the file
        return lycoris_scale(replace(origin, alpha=replace(alpha, value=rank)), rank)
    stabilized = str(arguments(origin).get("rs_lora", False)).lower() != "false"
    as_given = _equals(origin.metadata.get("ss_network_alpha"), alpha.value)
    if origin.metadata.get("ss_network_module", "").startswith("lycoris") and not as_given and not stabilized:
        return 1.0  # the rank of this layer alone, by a preset
    return lycoris_scale(origin, rank)


def _equals(text: str | None, number: float) -> bool:
    try:
        return text is not None and abs(float(text) / number - 1) < _ROUNDED
    except ValueError:
        return False


def _splits(half: Product) -> bool:
    """Return whether two matrices cost less than the one they make."""
    return half.left is not None and half.rank * (half.rows + half.columns) < half.rows * half.columns


def _sizes(half: Product) -> tuple[Sizes, ...]:
    """Return the sizes of the matrices of one half, in the order in which they act."""
    if _splits(half):
        return (half.rank, half.columns), (half.rows, half.rank)
    return ((half.rows, half.columns),)


def _matrices(half: Product) -> tuple[Tensor, ...]:
    """Return the matrices of one half, in the order in which they act, in fp32 or better."""
    dtype = wide(half.right.dtype)
    if half.left is not None and _splits(half):
        return half.right.to(dtype), half.left.to(dtype)
    return (half.dense(half.right.device, dtype),)


def _cheapest(left: Sequence[Sizes], right: Sequence[Sizes], b: int, d: int) -> tuple[tuple[Side, ...], int]:
    """Return the cheapest order in which matrices act on the axes of a (b, d) array, and its multiplications.

    The matrices of one side keep their order.
    """
    count = len(left) + len(right)
    found: list[tuple[int, tuple[Side, ...]]] = []
    for places in itertools.combinations(range(count), len(left)):
        sides: tuple[Side, ...] = tuple("left" if i in places else "right" for i in range(count))
        rest = {"left": iter(left), "right": iter(right)}
        size = {"left": b, "right": d}
        cost = 0
        for side in sides:
            rows, columns = next(rest[side])
            cost += rows * columns * size["right" if side == "left" else "left"]
            size[side] = rows
        found.append((cost, sides))
    cost, sides = min(found)
    return sides, cost


def _even(matrices: Sequence[Tensor], scale: float) -> list[Tensor]:
    """Multiply the product by `scale`, so that all but the last matrix keep the size of what they act on.

    So no step of the chain leaves the range of fp16 unless the result does.
    """
    *early, last = matrices
    norms = [one.flatten(1).norm(dim=1).max() for one in early]
    norms = [torch.where(norm > 0, norm, torch.ones_like(norm)) for norm in norms]
    return [*(one / norm for one, norm in zip(early, norms, strict=True)), last * (math.prod(norms) * scale)]


def _kron(first: Tensor, second: Tensor) -> Tensor:
    """Return the Kronecker product; torch.kron views its arguments, and so refuses some transposed ones."""
    whole = first[:, None, :, None] * second[None, :, None, :]
    return whole.reshape(first.shape[0] * second.shape[0], -1)
