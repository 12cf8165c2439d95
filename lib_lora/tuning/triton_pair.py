"""The low-rank pair of a linear layer as one Triton kernel, added onto the layer's output in place.

y[m, n] += sum over r of up[n, r] * s[m, r] * (sum over k of down[r, k] * x[m, k])

Two products of matrices write the narrow one, (rows, R), to memory, read it for its strengths, write it again and read
it again, and are three launches. Here a block of rows keeps it in registers. Where rows are few, several programs share
a block, each for some of the outputs, and each makes the narrow product for itself: cheap against leaving most of the
device idle. Importing this imports Triton.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

if int(triton.__version__.split(".")[0]) < 3:
    raise ImportError(f"Triton 3.0 or newer is needed, this is {triton.__version__}")

LARGEST_RANK = 256
"""Of which a block of rows still fits into registers."""
_LEAST = 16  # of each side of a product in a kernel


class Blocks(NamedTuple):
    """The tile sizes of the kernel."""

    rows: int
    outputs: int
    inputs: int
    warps: int


BLOCKS = (Blocks(128, 64, 32, 8), Blocks(64, 64, 32, 4), Blocks(32, 64, 64, 4), Blocks(16, 64, 64, 4))


def blocks_for(rows: int, rank: int) -> list[Blocks]:
    """Yield the tile sizes to try.

    Args:
        rows: tokens of all images.
        rank: of the pair.
    """
    most = max(_LEAST, triton.next_power_of_2(rows))
    return [one for one in BLOCKS if one.rows <= most and one.rows * _padded(rank) <= 1 << 14]


def add_pair_(y: Tensor, x: Tensor, down: Tensor, up: Tensor, strength: Tensor, blocks: Blocks) -> None:
    """Add x down^T diag(strength) up^T onto `y`.

    Products are summed in fp32; the narrow one is rounded once to the dtype of `y`, and so is the result.

    Args:
        y: (rows, outputs), each row in one piece; written.
        x: (rows, inputs), likewise; of the same dtype, like all.
        down: (R, inputs), contiguous, R at most `LARGEST_RANK`.
        up: (outputs, R), contiguous.
        strength: (groups, R), contiguous; each for so many rows, one group after the other.
        blocks: how to cut it up.
    """
    (rows, outputs), inputs, rank = y.shape, x.shape[1], down.shape[0]
    across = triton.cdiv(rows, blocks.rows)
    tiles = triton.cdiv(outputs, blocks.outputs)
    splits = min(tiles, max(1, triton.cdiv(2 * _processors(y.device), across)))
    share = triton.cdiv(tiles, splits) * blocks.outputs
    _kernel[(across, triton.cdiv(outputs, share))](
        y,
        x,
        down,
        up,
        strength,
        rows,
        outputs,
        inputs,
        rank,
        y.stride(0),
        x.stride(0),
        rows // strength.shape[0],
        share,
        block_rows=blocks.rows,
        block_outputs=blocks.outputs,
        block_inputs=blocks.inputs,
        block_rank=_padded(rank),
        num_warps=blocks.warps,
    )


def _padded(rank: int) -> int:
    return max(_LEAST, int(triton.next_power_of_2(rank)))


def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


def _pair(
    y: tl.tensor,
    x: tl.tensor,
    down: tl.tensor,
    up: tl.tensor,
    strength: tl.tensor,
    rows: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.tensor,
    rank: tl.tensor,
    y_stride: tl.tensor,
    x_stride: tl.tensor,
    per_group: tl.tensor,
    share: tl.tensor,
    block_rows: tl.constexpr,
    block_outputs: tl.constexpr,
    block_inputs: tl.constexpr,
    block_rank: tl.constexpr,
) -> None:
    m = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    r = tl.arange(0, block_rank)
    there, ranked = (m < rows)[:, None], r < rank
    wide = m.to(tl.int64)  # an output may have more entries than 32 bits count
    h = tl.full((block_rows, block_rank), 0.0, tl.float32)
    for start in range(0, inputs, block_inputs):
        k = start + tl.arange(0, block_inputs)
        a = tl.load(x + wide[:, None] * x_stride + k[None, :], mask=there & (k < inputs)[None, :], other=0.0)
        b = tl.load(down + r[None, :] * inputs + k[:, None], mask=ranked[None, :] & (k < inputs)[:, None], other=0.0)
        h = tl.dot(a, b, h, input_precision="ieee")
    s = tl.load(strength + (m // per_group)[:, None] * rank + r[None, :], mask=there & ranked[None, :], other=0.0)
    narrow = (h * s.to(tl.float32)).to(y.dtype.element_ty)
    first = tl.program_id(1) * share
    for start in range(first, first + share, block_outputs):
        n = start + tl.arange(0, block_outputs)
        c = tl.load(up + n[None, :] * rank + r[:, None], mask=ranked[:, None] & (n < outputs)[None, :], other=0.0)
        where, inside = y + wide[:, None] * y_stride + n[None, :], there & (n < outputs)[None, :]
        before = tl.load(where, mask=inside, other=0.0).to(tl.float32)
        tl.store(where, tl.dot(narrow, c, before, input_precision="ieee").to(y.dtype.element_ty), mask=inside)


_kernel = triton.jit(_pair)
