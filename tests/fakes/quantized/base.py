"""What a format is, and what its file needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from tests.fakes.layers import Model as Model

OUT, INSIDE = 96, 64  # bitsandbytes' order for CPUs wants rows in 32s, GGUF's blocks are of 32

# a little more than half a quantization step, of the largest weight
INT8, INT4, E4M3, E5M2 = 0.6 / 127, 0.6 / 7, 2**-4, 2**-3
BF16 = 2**-7
"""Error of a product in bf16."""


@dataclass(frozen=True)
class Format:
    """How a layer of a format is made, and what may be expected of it."""

    make: Callable[[nn.Linear], nn.Module]
    reader: str
    """Name of the `WeightReader` that must read its weight."""
    step: float
    """Largest error of a decoded weight, of the largest weight; half of a quantization step."""
    forward: float = 1e-5
    """Largest error of the layer's own forward against the decoded weight; large where it computes in fewer bits."""
    dtype: torch.dtype = torch.float32
    """Of the layer's inputs."""
    needs: str = ""
    """Package without which the layer cannot be made."""
