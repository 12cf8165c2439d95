"""Three layers of unlike shapes as a model, and LoRA for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from tests.fakes.files import pair, save

SHAPES = {"a": (48, 24), "b": (16, 40), "c": (24, 8, 3, 3)}


class ThreeLayers(nn.Module):
    """Two linear layers and a convolution, always with the same weights, frozen."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(0)
            self.a, self.b, self.c = nn.Linear(24, 48), nn.Linear(40, 16), nn.Conv2d(8, 24, 3)
        self.requires_grad_(False)


def lora_of_three(
    path: Path, rank: int, seed: int, sizes: Sequence[float] = (0.1, 0.3, 0.2), dtype: torch.dtype = torch.float32
) -> Path:
    """Write a LoRA of all three layers in kohya's spelling."""
    tensors = {}
    for i, ((name, shape), size) in enumerate(zip(SHAPES.items(), sizes, strict=True)):
        tensors |= pair(f"lora_unet_{name}", shape, rank, alpha=rank, seed=10 * seed + i, size=size, dtype=dtype)
    return save(path, tensors)
