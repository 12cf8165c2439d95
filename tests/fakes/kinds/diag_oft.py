"""LyCORIS' Diag-OFT and kohya's OFT, block by block and with an explicit inverse."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .base import Sample, Shape, Tensors, randn

OFT = "oft_unet_layer."


def rotation(blocks: Tensor, limit: float | None) -> list[Tensor]:
    """R of each block."""
    skew = [block - block.T for block in blocks]
    norm = sum(one.square().sum() for one in skew) ** 0.5
    if limit is not None and norm > limit:
        skew = [one * limit / norm for one in skew]
    eye = torch.eye(blocks.shape[1], dtype=blocks.dtype)
    return [(eye + one) @ torch.linalg.inv(eye - one) for one in skew]


def rotated(weight: Tensor, turns: Sequence[Tensor], multiplier: float) -> Tensor:
    """R_m^T W, the outputs block by block."""
    done, start = [], 0
    for turn in turns:
        size = turn.shape[0]
        lerped = multiplier * turn + (1 - multiplier) * torch.eye(size, dtype=turn.dtype)
        done.append(lerped.T @ weight[start : start + size].flatten(1))
        start += size
    return torch.cat(done).reshape(weight.shape)


def scaled(weight: Tensor, rescale: Tensor | None, multiplier: float) -> Tensor:
    """Each output times its scale."""
    if rescale is None:
        return weight
    return weight * (1 + multiplier * (rescale.reshape(-1, *(1,) * (weight.ndim - 1)) - 1))


def _make(blocks: int, alpha: float | None = None, *, rescale: bool = False):
    def make(shape: Shape, generator: torch.Generator) -> Tensors:
        size = shape[0] // blocks
        made = {"oft_blocks": randn(generator, blocks, size, size, size=0.15)}
        if alpha is not None:
            made["alpha"] = torch.tensor(alpha)
        if rescale:
            made["rescale"] = 1 + randn(generator, shape[0], *(1,) * (len(shape) - 1))
        return made

    return make


def effective(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    """W' of LyCORIS' parameters, and of kohya's wherever alpha is not 0."""
    alpha = own.get("alpha")
    limit = None if alpha is None or alpha == 0 else float(alpha) * weight.shape[0]
    turned = rotated(weight, rotation(own["oft_blocks"], limit), multiplier)
    return scaled(turned, own.get("rescale"), multiplier)


def _make_split(shape: Shape, generator: torch.Generator) -> Tensors:
    half, rest = shape[0] // 2, shape[0] - shape[0] // 2
    return {
        "oft_blocks.0": randn(generator, 2, half // 2, half // 2, size=0.15),
        "oft_blocks.1": randn(generator, 4, rest // 4, rest // 4, size=0.15),
        "alpha": torch.tensor(0.1),
    }


def _effective_split(own: Tensors, weight: Tensor, multiplier: float) -> Tensor:
    half = weight.shape[0] // 2
    turns = rotation(own["oft_blocks.0"], 0.1 * half) + rotation(own["oft_blocks.1"], 0.1 * (weight.shape[0] - half))
    return rotated(weight, turns, multiplier)


SAMPLES = (
    Sample("diag-oft", "diag_oft", _make(4, 0.0), effective, additive=False),
    Sample("diag-oft of one block", "diag_oft", _make(1), effective, additive=False),
    Sample("diag-oft bounded", "diag_oft", _make(8, 0.05), effective, additive=False),
    Sample("diag-oft rescaled", "diag_oft", _make(6, 0.0, rescale=True), effective, additive=False),
    Sample(
        "oft of kohya", "diag_oft", _make(4, 0.05), effective, frozenset({"linear", "conv"}), prefix=OFT, additive=False
    ),
    Sample(
        "oft of kohya for a fused layer",
        "split_oft",
        _make_split,
        _effective_split,
        frozenset({"linear", "conv"}),
        prefix=OFT,
        additive=False,
    ),
)
