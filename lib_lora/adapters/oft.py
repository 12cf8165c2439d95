"""OFT: block rotations of the outputs, https://arxiv.org/abs/2306.07280, as LyCORIS and kohya train them.

`oft_blocks` is B. Q = B - B^T, shrunk to |Q| <= c over all blocks, c = alpha * out; R = (I + Q)(I - Q)^-1. The
multiplier is m (R - I) + I. s is LyCORIS' `rescale`, which it leaves as it is at any m, which would make 0 differ from
no adapter: here it is 1 + m (s - 1).

- Diag-OFT, (k, n, n): W' = s * R^T W, block by block of the outputs. Alpha 0 is where the trainers differ. In LyCORIS,
  whose default it is, Q is free; kohya's clamp to 0 leaves nothing. The spelling tells which it is.
- kohya's OFT of a fused layer of Flux: one for each of q, k, v (and the MLP), as `oft_blocks.0`, `.1`, …. The slices
  have the widths that their blocks make up; each Q is bound by alpha times its own width. (kohya's merge joins the
  slices along the wrong axis.)
- `oft_diag` (k, n, n), as LyCORIS trained it for a few weeks of 2023, not bound to be a rotation. From 2023-11-11 on it
  is R itself; before that it is R - I. A `rescale` (k, n) or (k, n, 1), which came with the first of these days, scales
  the rows of R, before the multiplier. Which of the two a file holds, only its date tells; without one it is taken for
  R, as AUTOMATIC1111 does.
- Butterfly OFT, (m, k, b, b): m block rotations in a chain, https://arxiv.org/abs/2311.06243, W' = s * R_m ... R_1 W,
  not transposed. Factor i acts on pairs of half blocks 2^i halves apart, their channels alternating. The multiplier
  lerps each factor to I, which is how LyCORIS trains and previews, and differs from lerping the whole. |Q| is bound
  over all factors, alpha 0 being no bound.

Sources: LyCORIS modules/diag_oft.py, also of 2023-10 to 2023-11, modules/boft.py, functional/boft.py; kohya
networks/oft.py, networks/oft_flux.py, the forward.
"""

from datetime import datetime, timezone
from functools import partial

import torch
from torch import Tensor

from ._rotation import NormLimit, OutputRotation, Turn, cayley, check_blocks, check_butterfly, excess_of, skew
from ._rows import number, unfit
from ._trainer import trained_within
from .base import Adapter, Origin, Params, Shapes, Site, Tensors

_LESS_IDENTITY = (datetime(2023, 1, 1, tzinfo=timezone.utc), datetime(2023, 11, 11, tzinfo=timezone.utc))


class DiagOFT(OutputRotation):
    name = "diag_oft"
    params = Params(frozenset({"oft_blocks"}), frozenset({"alpha", "rescale"}), dims=3)

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        blocks, out = params["oft_blocks"], site.shape[0]
        check_blocks(blocks, out, "oft_blocks")
        turn = _skew_turn(blocks, number(params, "alpha"), always=origin.spelling == "kohya_oft")
        return cls((turn,), excess_of(params.get("rescale"), out, "rescale"))


class SplitOFT(OutputRotation):
    name = "split_oft"
    params = Params(frozenset({"oft_blocks.0"}), frozenset({"alpha"}))

    @classmethod
    def claims(cls, shapes: Shapes) -> bool:
        names = shapes.keys() - cls.params.optional
        return len(names) > 0 and names == set(_names(len(names))) and all(len(shapes[name]) == 3 for name in names)

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        names = _names(sum(name.startswith("oft_blocks.") for name in params))
        slices, alpha = [params[name] for name in names], number(params, "alpha")
        widths = [blocks.shape[0] * blocks.shape[1] for blocks in slices]
        if sum(widths) != site.shape[0]:
            raise ValueError(f"want oft_blocks.N of {site.shape[0]} outputs together, got {widths}")
        for name, blocks, width in zip(names, slices, widths, strict=True):
            check_blocks(blocks, width, name)
        return cls(tuple([_skew_turn(blocks, alpha, always=True) for blocks in slices]), None)


class OFTDiag(OutputRotation):
    name = "oft_diag"
    params = Params(frozenset({"oft_diag"}), frozenset({"rescale"}))

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        blocks, rescale = params["oft_diag"], params.get("rescale")
        check_blocks(blocks, site.shape[0], "oft_diag")
        if rescale is None:
            early = trained_within(origin, _LESS_IDENTITY)
            return cls((Turn(blocks, _transposed if early else _less_identity),), None)
        if tuple(rescale.shape[:2]) != tuple(blocks.shape[:2]) or rescale.numel() != site.shape[0]:
            raise unfit(f"rescale ({blocks.shape[0]}, {blocks.shape[1]}, 1)", rescale)
        rows = rescale.reshape(*blocks.shape[:2], 1)
        return cls((Turn(torch.cat([blocks, rows.to(blocks.dtype)], 2), _scaled_less_identity),), None)


class BOFT(OutputRotation):
    name = "boft"
    params = Params(frozenset({"oft_blocks"}), frozenset({"alpha", "rescale"}), dims=4)

    @classmethod
    def from_params(cls, params: Tensors, site: Site, origin: Origin) -> Adapter:
        factors, out = params["oft_blocks"], site.shape[0]
        check_butterfly(factors, out, "oft_blocks")
        bound = _bound(factors, number(params, "alpha"), always=False)
        return cls((Turn(factors, partial(_factors, bound=bound)),), excess_of(params.get("rescale"), out, "rescale"))


def _names(count: int) -> list[str]:
    return [f"oft_blocks.{i}" for i in range(count)]


def _bound(blocks: Tensor, alpha: float | None, *, always: bool) -> NormLimit | None:
    """Return the bound on the norm of Q; None if it has none. Alpha 0 is `always` a limit like any other in kohya's."""
    if alpha is None or (alpha <= 0 and not always):
        return None
    return NormLimit(max(alpha, 0.0) * blocks.shape[-3] * blocks.shape[-2], blocks)


def _skew_turn(blocks: Tensor, alpha: float | None, *, always: bool) -> Turn:
    """Return R^T - I of parameters B (k, n, n)."""
    bound = _bound(blocks, alpha, always=always)
    return Turn(blocks, lambda source: cayley(-skew(source, bound)))  # R^T is the R of -Q


def _factors(source: Tensor, bound: NormLimit | None) -> Tensor:
    """R - I with the channels of the two halves of a block one after the other, in the file they alternate."""
    turned = cayley(skew(source, bound))
    size = source.shape[-1]
    if size % 2:
        return turned  # a single factor: nothing is paired
    order = torch.arange(size, device=source.device).view(-1, 2).t().flatten()
    return turned[..., order, :][..., order]


def _transposed(source: Tensor) -> Tensor:
    return source.transpose(-1, -2).contiguous()


def _less_identity(source: Tensor) -> Tensor:
    return (source - torch.eye(source.shape[-1], device=source.device).to(source.dtype)).transpose(-1, -2)


def _scaled_less_identity(source: Tensor) -> Tensor:
    return _less_identity(source[..., :-1] * source[..., -1:])
