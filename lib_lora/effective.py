"""A linear layer and its fused pair as one product: with many tokens, adding the pair to the weight first is cheaper.

Adding costs R * in * out, once per call; the pair beside the layer costs R * tokens * (in + out). The sum lies in
scratch memory: the base weight is read, never written. Only in dtypes in which the sum loses nothing that matters: in
half precision a small delta would drown in the rounding of W + dW, which is what the pair beside the layer is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn

from . import scratch
from .tensors import compiling

if TYPE_CHECKING:
    from .patch import BaseForward

EXACT = frozenset({torch.float32, torch.float64})
"""Dtypes in which a small change of a weight is not rounded away."""
_MARGIN = 1.5  # the sum is written to memory and read again: measured break-even on a CPU, 320 to 2560 wide


def pays(layer: nn.Module, base_forward: BaseForward, x: Tensor) -> bool:
    """Whether to compute `layer` by `effective_linear`: the sum is cheaper, and nothing but a plain product is lost."""
    weight = layer._parameters.get("weight")
    if weight is None or weight.ndim != 2 or weight.dtype not in EXACT:
        return False
    if hasattr(weight, "__tensor_flatten__"):  # torchao's and quanto's: packed, whatever dtype they show
        return False
    out, inside = weight.shape
    if (
        x.numel() * (out + inside) <= _MARGIN * inside * inside * out
    ):  # both sides times `in`: x has tokens * in entries
        return False
    if x.dtype != weight.dtype or x.device != weight.device or not is_torchs(base_forward):
        return False
    trained = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return not trained and not compiling()


def is_torchs(base_forward: BaseForward) -> bool:
    """Whether a linear layer runs torch's own forward, the product and nothing else."""
    return getattr(base_forward, "__module__", "") == nn.Linear.__module__


def effective_linear(layer: nn.Module, x: Tensor, down: Tensor, up: Tensor, strength: Tensor) -> Tensor:
    """x (W + up diag(strength) down)^T + b.

    Args:
        layer: a linear layer with a plain weight (out, in).
        x: (…, in).
        down: (R, in).
        up: (out, R).
        strength: (R,).
    """
    weight = layer._parameters["weight"]
    assert weight is not None  # `pays` said so
    total = scratch.take("linear", weight, weight.dtype)
    with torch.no_grad():
        torch.addmm(weight, up * strength, down, out=total)
    return F.linear(x, total, layer._parameters.get("bias"))
