"""MiSS: the inputs summed up over their blocks of r, then a matrix, dW = m D^T S, https://arxiv.org/abs/2409.15371.

S (r, in) has a 1 where the input is i modulo r. `miss_block` D is (r, out); with `init_weights="mini"` it is (r,
width), and the outputs repeat it. Earlier PEFT called the same Bone, with `bone_block`. PEFT has no multiplier: it is
that of the effect. With `init_weights="bat"` the blocks read the weight: dW = m (W_ab B_a + B_a), W_ab (r, r) being
the block of the weight at outputs a and inputs b; the block B is (out / r, r, r). Source: huggingface/peft
tuners/miss/layer.py, and tuners/bone/layer.py of PEFT 0.17.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import Self

from ._rows import unfit
from .base import Adapter, At, Factors, LowRank, Origin, Params, Proportional, Rows, Shapes, Site, Tensors

_NAMES = frozenset({"miss_block", "bone_block"})


@dataclass(frozen=True, slots=True, eq=False)
class MiSS(LowRank):
    up: Tensor  # (out, r)
    inputs: int

    name = "miss"
    params = Params(frozenset(), _NAMES)
    row_fields = ("up",)
    kinds = frozenset({"linear", "attention"})

    @classmethod
    def claims(cls, shapes: Shapes) -> bool:
        return len(shapes) == 1 and all(name in _NAMES and len(shape) == 2 for name, shape in shapes.items())

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        ((name, block),) = params.items()
        out = site.shape[0]
        rank, width = block.shape
        if not 0 < rank <= site.inside or width == 0 or out % width:
            raise unfit(f"{name} (r, {out}) or a part of its columns", block)
        return cls(block.repeat(1, out // width).T, site.inside)

    def factors(self, rank: int | None = None) -> Factors:
        own = torch.eye(self.rank).to(self.up.dtype)  # torch 2.1 makes none in bf16
        sums = own.repeat(1, -(-self.inputs // self.rank))[:, : self.inputs]
        return Factors(sums[:rank], self.up[:, :rank])


@dataclass(frozen=True, slots=True, eq=False)
class MiSSBat(Proportional):
    block: Tensor  # (out / r, r, r)

    name = "miss_bat"
    params = MiSS.params
    kinds = frozenset({"linear", "attention"})
    reads_base = True

    @classmethod
    def claims(cls, shapes: Shapes) -> bool:
        return len(shapes) == 1 and all(
            name in cls.params.optional and len(shape) == 3 for name, shape in shapes.items()
        )

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        ((name, block),) = params.items()
        out, size = site.shape[0], block.shape[-1]
        if size == 0 or out % size or site.inside % size or block.shape != (out // size, size, size):
            raise unfit(f"{name} ({out} / r, r, r) with r a divisor of {site.inside}", block)
        return cls(block)

    @property
    def rank(self) -> int:
        return self.block.shape[-1]

    def take(self, rows: Rows) -> Self | None:
        size = self.rank
        if any(end % size for window in rows for end in window):
            return None
        chosen = [i for start, stop in rows for i in range(start // size, stop // size)]
        return replace(self, block=self.block[chosen])

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        size, block = self.rank, at.put(self.block).unsqueeze(1)
        weight = at.base
        tiles = weight.reshape(weight.shape[0] // size, size, weight.shape[1] // size, size).transpose(1, 2)
        delta = tiles @ block + block
        return delta.transpose(1, 2).reshape(weight.shape), at.multiplier
