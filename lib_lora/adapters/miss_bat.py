"""MiSS with blocks that read the weight, `init_weights="bat"`: dW = m (W_ab B_a + B_a), https://arxiv.org/abs/2409.15371.

W_ab (r, r) is the block of the weight at outputs a and inputs b; `miss_block` B is (out / r, r, r). Earlier PEFT called
the same Bone, with `bone_block`. Source: huggingface/peft tuners/miss/layer.py, `get_delta_weight`.
"""

from dataclasses import dataclass, replace

from torch import Tensor
from typing_extensions import Self

from ._rows import unfit
from .base import At, Origin, Proportional, Rows, Shapes, Site, Tensors
from .miss import MiSS


@dataclass(frozen=True, slots=True, eq=False)
class MiSSBat(Proportional):
    """A matrix for each block of outputs, which multiplies the weight's blocks and is added to them."""

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
