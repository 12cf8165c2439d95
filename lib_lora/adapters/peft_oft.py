"""OFT as PEFT and OneTrainer train it, https://arxiv.org/abs/2506.19847: block rotations of the input.

`oft_R.weight` (k, b (b - 1) / 2) holds the upper triangles of skew Q; one row is for every block. x' = x R as a row,
W' = W R^T, with R by default no rotation but the series I + 2 Q + 2 Q^2 + 2 Q^3 + Q^4, otherwise the Cayley transform
(I - Q)(I + Q)^-1, the same series for -Q: PEFT's two branches are each other's transpose. `use_cayley_neumann`,
`num_cayley_neumann_terms`, `coft` and `eps` are in PEFT's configuration.

OneTrainer always takes the series of 5 terms. Its `scaled_oft` says that Q is to be divided by 2 sqrt(b - 1), and on
convolutions its forward makes W' = W R, not transposed. A convolution's blocks are of in * kernel entries. PEFT's own
forward there adds up the overlapping patches of its input, so that not even Q = 0 leaves the layer as it is; its
merged weight is the definition here. Neither trainer has a multiplier: it lerps R to I.

Butterfly OFT, https://arxiv.org/abs/2311.06243, is a chain of rotations of the input, then a scale: S = (A - A^T) / 2,
R = (I - S)(I + S)^-1; x' = x R_m ... R_1 as a row, y = s * W x' + b, W as (out, in * kernel) and s being `boft_s`.
Factor i acts on pairs of half blocks 2^i halves apart. PEFT has no multiplier: it scales the complete effect,
W' = W + m (... - W). (Without its CUDA extension PEFT trains one factor only.)

Sources: huggingface/peft tuners/oft/layer.py, tuners/boft/layer.py; Nerogar/OneTrainer modules/module/oft_utils.py,
LoRAModule.py.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ._operation import Operation
from ._rotation import (
    InputRotation,
    Turn,
    cayley,
    check_butterfly,
    excess_of,
    mix_butterfly,
    pointwise,
    rescaled,
)
from ._rows import placed, unfit
from .base import Adapter, At, Form, Origin, OutputEffect, Params, Site, Tensors


class PeftOFT(InputRotation):
    name = "peft_oft"
    params = Params(frozenset({"oft_R.weight"}), frozenset({"oft_R.scaled_oft"}))

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        triangles = params["oft_R.weight"]
        size = _block_size(triangles, site.inside)
        scaled = "oft_R.scaled_oft" in params and bool(params["oft_R.scaled_oft"].any())
        onetrainer = scaled or origin.spelling != "peft" or any(name.startswith("ot_") for name in origin.metadata)
        solve = partial(
            _solve,
            size=size,
            scale=1 / (2 * math.sqrt(size - 1)) if scaled else 1.0,
            terms=5 if onetrainer else _terms(origin.config),
            bound=None if onetrainer else _bound(origin.config),
            transposed=onetrainer and site.kind == "conv",
        )
        return cls(Turn(triangles, solve), site.shape)


@dataclass(frozen=True, slots=True, eq=False)
class PeftBOFT(Adapter, OutputEffect):
    """A chain of block rotations of the input, and a scale of each output: s * W (x + dx) - W x beside the layer.

    That takes a second base call, as the scale comes after the product.
    """

    turn: Turn  # (m, k, b, b)
    excess: Tensor  # (out,), s - 1
    shape: tuple[int, ...]

    name = "peft_boft"
    params = Params(frozenset({"boft_R", "boft_s"}))
    row_fields = ("excess", "shape")
    reads_base = by_rows = True

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        check_butterfly(params["boft_R"], site.inside, "boft_R")
        excess = excess_of(params["boft_s"], site.shape[0], "boft_s")
        assert excess is not None
        return cls(Turn(params["boft_R"], lambda source: cayley((source - source.mT) / 2)), excess, site.shape)

    def delta_weight(self, at: At) -> Tensor:
        rows = at.base.flatten(1)
        factors = at.put(self.turn.blocks(at.device, at.dtype)).mT
        turned = rescaled(rows, mix_butterfly(rows, factors, -1), at.cut(self.excess).unsqueeze(1))
        return turned.mul_(at.multiplier).reshape(at.base.shape)

    def form(self, rank: int | None = None) -> Form | None:
        return Form(on_output=True) if pointwise(self.shape) else None

    def output_effect(self, device: torch.device, dtype: torch.dtype) -> OutputEffect:
        # of the matrix that acts on x as a column: R^T - I
        return replace(self, turn=self.turn.effect(device, dtype), excess=placed(self.excess, device, dtype))

    def delta(self, x: Tensor, y: Tensor, multiplier: Tensor, op: Operation) -> Tensor:
        change = op.base(mix_butterfly(x, self.turn.source, op.channels, descending=True))
        return rescaled(y, change, op.per_channel(self.excess)) * multiplier


def _block_size(triangles: Tensor, width: int) -> int:
    entries = triangles.shape[1] if triangles.ndim == 2 else 0
    size = (1 + math.isqrt(1 + 8 * entries)) // 2
    fits = entries > 0 and size * (size - 1) // 2 == entries and width % size == 0
    if not fits or triangles.shape[0] not in (1, width // size):
        raise unfit(f"oft_R (k or 1, b (b - 1) / 2) with k * b = {width}", triangles)
    return size


def _terms(config: Mapping[str, object]) -> int | None:
    """Return the number of terms of the series; None for the exact transform."""
    if not config.get("use_cayley_neumann", True):
        return None
    terms = config.get("num_cayley_neumann_terms", 5)
    return terms if isinstance(terms, int) else 5


def _bound(config: Mapping[str, object]) -> float | None:
    """Return the largest norm of each block's Q times the square root of the number of blocks; None if it has none."""
    eps = config.get("eps", 6e-5)
    return float(eps) if config.get("coft", False) and isinstance(eps, int | float) else None


def _solve(
    triangles: Tensor, *, size: int, scale: float, terms: int | None, bound: float | None, transposed: bool
) -> Tensor:
    """Return the matrix that acts on x as a column, less I: R^T - I, or R - I if `transposed`."""
    rows, columns = torch.triu_indices(size, size, 1, device=triangles.device)
    q = triangles.new_zeros(triangles.shape[0], size, size)
    q[:, rows, columns] = triangles * scale
    q = q - q.transpose(1, 2)
    if bound is not None:
        norms = torch.linalg.vector_norm(q, dim=(1, 2), keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
        q = q * (bound / math.sqrt(q.shape[0]) / norms).clamp_max(1.0)
    turned = cayley(q) if terms is None else _series(-q, terms)
    return turned.transpose(1, 2).contiguous() if transposed else turned


def _series(q: Tensor, terms: int) -> Tensor:
    """Return 2 Q + 2 Q^2 + ... + Q^last, the Cayley series as PEFT cuts it: never after the square."""
    if terms < 2:
        return torch.zeros_like(q)
    total, power = 2 * q, q
    last = max(terms - 1, 3) if terms > 2 else 1
    for exponent in range(2, last + 1):
        power = power @ q
        total = total + (power if exponent == last else 2 * power)
    return total
