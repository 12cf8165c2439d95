"""LoHa: the Hadamard product of two low-rank matrices, FedPara, https://arxiv.org/abs/2108.06098.

dW = alpha / r * (w1_a w1_b) * (w2_a w2_b), entry by entry (LyCORIS functional/loha.py). Each half may have a tucker
core, `hada_t1` and `hada_t2`; its factors then have the rank first. LyCORIS 3.x merges at the square of the scale,
but trains at the scale itself, which is what counts; so does PEFT.

The product of matrices of rank r1 and r2 has rank r1 * r2 at most, and as a pair of that rank it is written down at
once: u_(ij) = a1_i * a2_j, v_(ij) = b1_i * b2_j. Where that pair is no larger than what it is made of, LoHa acts as it.
Above, dW is built, which costs r1 + r2 multiplications per entry however many tokens there are, and keeps nothing.
Where the base weight is in no form to be added to, it still is the pair, as long as that is cheaper than a second
product of the layer.
"""

from dataclasses import dataclass

from torch import Tensor

from ._product import Built, Product, balanced, product, shape_of_product
from ._trainer import lycoris_scale
from .base import Adapter, At, Factors, Form, Origin, Pair, Params, Shapes, Site, Tensors

_CORES = frozenset({"hada_t1", "hada_t2"})


@dataclass(frozen=True, slots=True, eq=False)
class LoHa(Built):
    first: Product  # (out, in * kernel)
    second: Product  # (out, in * kernel)
    scale: float
    shape: tuple[int, ...]

    name = "loha"
    scaled = True
    params = Params(
        frozenset({"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"}), _CORES | {"alpha"}, together=_CORES
    )
    row_fields = ("first", "second", "shape")

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        halves = []
        for i in ("1", "2"):
            half = product(params, f"hada_w{i}", site.shape[2:])
            if (half.rows, half.columns) != (site.shape[0], site.inside):
                want = f"({site.shape[0]}, {site.inside})"
                raise ValueError(f"want hada_w{i} to make {want}, got ({half.rows}, {half.columns})")
            halves.append(half)
        rank = params["hada_w1_b"].shape[0]
        return cls(halves[0], halves[1], lycoris_scale(origin, rank), site.shape)

    @classmethod
    def own_shape(cls, shapes: Shapes) -> tuple[int, ...] | None:
        return shape_of_product(shapes, "hada_w1")

    @property
    def rank(self) -> int:
        return self.first.rank

    @property
    def prefers_dense(self) -> bool:
        pair = self._pair
        return pair is None or pair.rank > self.first.rank + self.second.rank

    @property
    def _pair(self) -> Pair | None:
        rank, out = self.first.rank * self.second.rank, self.first.rows
        cheaper = rank * (out + self.first.columns) < out * self.first.columns
        return Pair(rank, self.scale) if cheaper else None

    def form(self, rank: int | None = None) -> Form:
        pair = self._pair
        return Form(pair, on_output=pair is None)

    def factors(self, rank: int | None = None) -> Factors:
        (a1, b1), (a2, b2) = self.first.pair(), self.second.pair()
        up = (a1.unsqueeze(2) * a2.unsqueeze(1)).flatten(1)
        down = (b1.unsqueeze(1) * b2.unsqueeze(0)).flatten(0, 1)
        return balanced(up, down, self.shape)

    def delta_and_factor(self, at: At) -> tuple[Tensor, Tensor | float]:
        rows = None if at.rows is None else slice(*at.rows)
        first, second = (half.dense(at.device, at.dtype, rows) for half in (self.first, self.second))
        return first.mul_(second).reshape(-1, *self.shape[1:]), self.scale * at.multiplier
