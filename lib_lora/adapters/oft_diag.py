"""OFT as LyCORIS trained it for a few weeks of 2023: `oft_diag` (k, n, n), not bound to be a rotation.

From 2023-11-11 on it is R itself, with the multiplier m R + (1 - m) I; before that it is R - I. W' = R^T W, block by
block of the outputs. A `rescale` (k, n) or (k, n, 1), which came with the first of these days, scales the rows of R,
before the multiplier. Which of the two a file holds, only its date tells; without one it is taken for R, as
AUTOMATIC1111 does. Source: LyCORIS modules/diag_oft.py, of 2023-10 to 2023-11.
"""

from datetime import datetime, timezone

import torch
from torch import Tensor

from ._rotation import OutputRotation, Turn, check_blocks
from ._rows import unfit
from ._trainer import trained_within
from .base import Adapter, Origin, Params, Site, Tensors

_LESS_IDENTITY = (datetime(2023, 1, 1, tzinfo=timezone.utc), datetime(2023, 11, 11, tzinfo=timezone.utc))


class OFTDiag(OutputRotation):
    """A block-diagonal matrix on the outputs."""

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


def _transposed(source: Tensor) -> Tensor:
    return source.transpose(-1, -2).contiguous()


def _less_identity(source: Tensor) -> Tensor:
    return (source - torch.eye(source.shape[-1], device=source.device).to(source.dtype)).transpose(-1, -2)


def _scaled_less_identity(source: Tensor) -> Tensor:
    return _less_identity(source[..., :-1] * source[..., -1:])
