"""Norm layers: `w_norm` is added to the weight, `b_norm` to the bias; either may be missing.

w' = w + m w_norm, b' = b + m b_norm, LyCORIS modules/norms.py. LayerNorm, GroupNorm and every kind of RMSNorm.
"""

from .base import Params, Shapes
from .full import Full


class Norm(Full):
    """Change of a norm's weight and bias."""

    name = "norm"
    names = ("w_norm", "b_norm")
    params = Params(frozenset(), frozenset({*names, "alpha"}))
    kinds = frozenset({"norm"})

    @classmethod
    def own_shape(cls, shapes: Shapes) -> tuple[int, ...] | None:
        return shapes.get("w_norm", shapes.get("b_norm"))
