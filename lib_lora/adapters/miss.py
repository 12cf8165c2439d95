"""MiSS: the inputs summed up over their blocks of r, then a matrix, dW = m D^T S, https://arxiv.org/abs/2409.15371.

S (r, in) has a 1 where the input is i modulo r. `miss_block` D is (r, out); with `init_weights="mini"` it is (r,
width), and the outputs repeat it. Earlier PEFT called the same Bone, with `bone_block`. PEFT has no multiplier: it is
that of the effect. Source: huggingface/peft tuners/miss/layer.py, and tuners/bone/layer.py of PEFT 0.17.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ._rows import unfit
from .base import Adapter, Factors, LowRank, Origin, Params, Shapes, Site, Tensors

_NAMES = frozenset({"miss_block", "bone_block"})


@dataclass(frozen=True, slots=True, eq=False)
class MiSS(LowRank):
    """Matrix shard sharing: one matrix for all blocks of the inputs."""

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
