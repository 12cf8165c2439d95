"""RandLoRA: a sum of random pairs with trained diagonals, https://arxiv.org/abs/2502.00987.

dW = m alpha / r B (L * A * G) on layers with no more inputs than outputs, else its transpose. `randlora_A` (r, 1,
least) and `randlora_B` (most, bases, r) are random, are shared by all layers, and are as large as the largest one; a
layer uses the first of their entries. `randlora_lambda` L (r, bases) and `randlora_gamma` G (bases, least) are trained.
PEFT flattens A with the rank first and B with the base first. Source: huggingface/peft tuners/randlora/layer.py,
`get_scaled_bases`.
"""

from dataclasses import dataclass, replace

from torch import Tensor
from typing_extensions import Self

from ..errors import UnsupportedError
from ._product import Built
from ._rows import shape_of, taken, unfit
from ._trainer import configured
from .base import At, Origin, Params, Rows, Site, Tensors

_RANDOM = frozenset({"randlora_A", "randlora_B"})


@dataclass(frozen=True, slots=True, eq=False)
class RandLoRA(Built):
    a: Tensor  # (r, 1, least)
    b: Tensor  # (most, bases, r)
    outer: Tensor  # (r, bases), lambda
    inner: Tensor  # (bases, least), gamma
    scale: float
    wide: bool
    """Whether there are more inputs than outputs, so that B is on the input."""
    shape: tuple[int, ...]

    name = "randlora"
    params = Params(frozenset({"randlora_lambda", "randlora_gamma"}), _RANDOM)
    shared = _RANDOM
    kinds = frozenset({"linear", "attention"})
    prefers_dense = True  # all bases together have the full rank

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Self:
        outer, inner = params["randlora_lambda"], params["randlora_gamma"]
        a, b = (origin.shared.get(name, params.get(name)) for name in ("randlora_A", "randlora_B"))
        least, most = sorted((site.shape[0], site.inside))
        if outer.ndim != 2 or inner.shape != (outer.shape[1], least) or outer.shape[0] == 0:
            raise unfit(f"randlora_lambda (r, n) and randlora_gamma (n, {least})", outer, inner)
        if a is None or b is None:
            # PEFT would draw them again from a seed, in the sizes of the largest layer, which need not be in the model
            raise UnsupportedError(
                "of RandLoRA without randlora_A and randlora_B, which all its layers share, and whose sizes it does "
                "not tell: save it again with save_projection=True"
            )
        rank, bases = outer.shape
        if a.ndim != 3 or (a.shape[0], a.shape[1]) != (rank, 1) or a.shape[2] < least:
            raise unfit(f"randlora_A ({rank}, 1, {least} or more)", a)
        if b.ndim != 3 or b.shape[0] < most or b.shape[1] < bases or b.shape[2] != rank:
            raise unfit(f"randlora_B ({most} or more, {bases} or more, {rank})", b)
        scale = configured(origin, "randlora_alpha") / rank
        return cls(a[:, :, :least], b[:most, :bases], outer, inner, scale, site.inside > site.shape[0], site.shape)

    @property
    def rank(self) -> int:
        return self.outer.shape[0]

    def take(self, rows: Rows) -> Self:
        shape = shape_of(self.shape, rows)
        if self.wide:
            return replace(self, a=taken(self.a, rows, 2), inner=taken(self.inner, rows, 1), shape=shape)
        return replace(self, b=taken(self.b, rows), shape=shape)

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        a = at.put(self.outer).unsqueeze(2) * at.put(self.a) * at.put(self.inner)  # (r, bases, least)
        small, large = a.flatten(0, 1), at.put(self.b).flatten(1)
        up, down = (small.T, large.T) if self.wide else (large, small)
        up = up if at.rows is None else up[slice(*at.rows)]
        return up @ down, self.scale * at.multiplier
