"""Butterfly OFT as LyCORIS trains it, https://arxiv.org/abs/2311.06243: m block rotations of the outputs in a chain.

Q_i = B_i - B_i^T, shrunk to |Q| <= c over all factors, c = alpha * out, 0 being no bound; R_i = (I + Q_i)(I - Q_i)^-1;
W' = s * R_m ... R_1 W, not transposed as Diag-OFT's. Factor i acts on pairs of half blocks 2^i halves apart,
their channels alternating. The multiplier lerps each factor to I, m R_i + (1 - m) I, which is how LyCORIS trains and
previews, and differs from lerping the whole; s is 1 + m (s - 1), as in Diag-OFT.
Sources: LyCORIS modules/boft.py, functional/boft.py.
"""

from functools import partial

import torch
from torch import Tensor

from ._rotation import NormLimit, OutputRotation, Turn, cayley, check_butterfly, number, scale_for, skew
from .base import Adapter, Origin, Params, Shapes, Site, Tensors
from .diag_oft import bound_of


class BOFT(OutputRotation):
    """A chain of block rotations of the outputs."""

    name = "boft"
    params = Params(frozenset({"oft_blocks"}), frozenset({"alpha", "rescale"}))

    @classmethod
    def claims(cls, shapes: Shapes) -> bool:
        return cls.params.claim(shapes) and len(shapes["oft_blocks"]) == 4

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        factors, out = params["oft_blocks"], site.shape[0]
        check_butterfly(factors, out, "oft_blocks")
        bound = bound_of(factors, number(params, "alpha"), out, always=False)
        return cls((Turn(factors, partial(_solve, bound=bound)),), scale_for(out, params.get("rescale")))


def _solve(source: Tensor, bound: NormLimit | None) -> Tensor:
    """R - I with the channels of the two halves of a block one after the other, in the file they alternate."""
    turned = cayley(skew(source, bound))
    size = source.shape[-1]
    if size % 2:
        return turned  # a single factor: nothing is paired
    order = torch.arange(size, device=source.device).view(-1, 2).t().flatten()
    return turned[..., order, :][..., order]
