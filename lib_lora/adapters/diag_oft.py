"""OFT with a block-diagonal rotation of the outputs, https://arxiv.org/abs/2306.07280: LyCORIS' Diag-OFT and kohya's.

Q = B - B^T, shrunk to |Q| <= c over all blocks, c = alpha * out; R = (I + Q)(I - Q)^-1; W' = s * R^T W, block by block
of the outputs, s being LyCORIS' `rescale`. Sources: LyCORIS modules/diag_oft.py, kohya networks/oft.py; the multiplier
is m (R - I) + I in both. LyCORIS leaves s as it is at any m, which would make 0 differ from no adapter: here it is
1 + m (s - 1).

Alpha 0 is where the two differ. In LyCORIS, whose default it is, Q is free; kohya's clamp to 0 leaves nothing. The
spelling tells which it is.
"""

from torch import Tensor

from ._rotation import NormLimit, OutputRotation, Turn, cayley, check_blocks, number, scale_for, skew
from .base import Adapter, Origin, Params, Shapes, Site, Tensors


class DiagOFT(OutputRotation):
    """Block rotation of the outputs."""

    name = "diag_oft"
    params = Params(frozenset({"oft_blocks"}), frozenset({"alpha", "rescale"}))

    @classmethod
    def claims(cls, shapes: Shapes) -> bool:
        return cls.params.claim(shapes) and len(shapes["oft_blocks"]) == 3

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        blocks, out = params["oft_blocks"], site.shape[0]
        check_blocks(blocks, out, "oft_blocks")
        bound = bound_of(blocks, number(params, "alpha"), out, always=origin.spelling == "kohya_oft")
        return cls((skew_turn(blocks, bound),), scale_for(out, params.get("rescale")))


def skew_turn(blocks: Tensor, bound: NormLimit | None) -> Turn:
    """R^T - I of parameters B (k, n, n)."""
    return Turn(blocks, lambda source: cayley(-skew(source, bound)))  # R^T is the R of -Q


def bound_of(blocks: Tensor, alpha: float | None, width: int, *, always: bool) -> NormLimit | None:
    """Return the bound on the norm of Q of blocks that rotate `width` channels; None if it has none.

    Alpha 0 is `always` a limit like any other in kohya's trainer, and none in LyCORIS.
    """
    if alpha is None or (alpha <= 0 and not always):
        return None
    return NormLimit(max(alpha, 0.0) * width, blocks)
