"""The factored way: all low-rank bindings of a layer as one pair of matrices, two products however many entries.

y = base(x) + up (m * (down x)), with the downs stacked along the rank and m = multiplier * scale per rank component;
or, where that is cheaper, y = x (W + up m down)^T + b, see `effective.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn

from .binding import Binding
from .effective import effective_linear, is_torchs, pays
from .residency import stays
from .strength import Layout, Strengths
from .tensors import plain_mode

if TYPE_CHECKING:
    from .patch import BaseForward


@dataclass(frozen=True, slots=True)
class Placed:
    """The fused pair where the layer computes, in the dtype of the base output."""

    device: torch.device
    dtype: torch.dtype
    down: Tensor  # (R, in, *kernel), R = sum of ranks
    up: Tensor  # (out, R)
    strength: Tensor  # (R,), a view that `Strengths` writes
    bias: Tensor | None  # (n, out), of the bindings that have one
    bias_strength: Tensor | None  # (n,)


class Factored:
    """Low-rank bindings of one linear or convolution layer."""

    def __init__(self, bindings: Sequence[Binding], strengths: Strengths) -> None:
        self._bindings = tuple(bindings)
        self._strengths = strengths
        pairs = [(binding.cell, binding.adapter.pair(binding.rank)) for binding in bindings]
        self._layout: Layout = tuple((cell, pair.rank, pair.scale) for cell, pair in pairs if pair)
        self._bias_layout: Layout = tuple((cell, 1, pair.scale) for cell, pair in pairs if pair and pair.has_bias)
        self._linear = bindings[0].target.kind == "linear"
        self._placed: Placed | None = None
        self._stays = True
        strengths.register(self._layout)
        if self._bias_layout:
            strengths.register(self._bias_layout)

    @property
    def device(self) -> torch.device | None:
        """Where the pair lies now; None while only the home copy exists."""
        return None if self._placed is None else self._placed.device

    def run(self, layer: nn.Module, base_forward: BaseForward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Forward of the layer plus its deltas, with the pair on the base output's device and in its dtype."""
        x: Tensor = args[0] if args else next(iter(kwargs.values()))
        if self._linear and pays(layer, base_forward, x):
            placed = self._placed_at(layer, x.device, x.dtype)
            y = effective_linear(layer, x, placed.down, placed.up, placed.strength)
        else:
            y = base_forward(layer, *args, **kwargs)
            placed = self._placed_at(layer, y.device, y.dtype)
            if x.dtype != y.dtype or x.device != y.device:  # under autocast, or a host that casts inside its forward
                x = x.to(device=y.device, dtype=y.dtype)
            y = _add_linear(x, y, placed, base_forward) if self._linear else _add_conv(layer, x, y, placed)
        if placed.bias is not None and placed.bias_strength is not None:
            bias = placed.bias_strength @ placed.bias
            y = y + (bias if self._linear else bias.view(-1, *(1,) * (placed.down.ndim - 2)))
        if not self._stays:
            self._placed = None
        return y

    def follow(self, layer: nn.Module, device: torch.device) -> None:
        """Go where the layer went; on its way out, to the CPU or meta, only the home copy remains."""
        placed = self._placed
        if placed is None or placed.device == device:
            return
        self._placed = None
        if device.type not in ("cpu", "meta"):
            self._place(layer, device, placed.dtype)

    def prefetch(self, layer: nn.Module) -> None:
        """Place now if the layer is somewhere real and its dtype tells the one it computes in."""
        weight = getattr(layer, "weight", None)
        if isinstance(weight, Tensor) and weight.device.type != "meta" and weight.dtype in _COMPUTING:
            self._place(layer, weight.device, weight.dtype)

    def release(self) -> None:
        """Drop the placed pair."""
        self._placed = None

    def _placed_at(self, layer: nn.Module, device: torch.device, dtype: torch.dtype) -> Placed:
        placed = self._placed
        if placed is None or placed.device != device or placed.dtype != dtype:
            placed = self._place(layer, device, dtype)
        return placed

    def _place(self, layer: nn.Module, device: torch.device, dtype: torch.dtype) -> Placed:
        for binding in self._bindings:
            binding.file.verify()
        with plain_mode(device):
            factors = [binding.adapter.factors(binding.rank) for binding in self._bindings]
            biases = [f.bias.unsqueeze(0) for f in factors if f.bias is not None]
            placed = Placed(
                device=device,
                dtype=dtype,
                down=_stacked([f.down for f in factors], 0, device, dtype),
                up=_stacked([f.up for f in factors], 1, device, dtype),
                strength=self._strengths.view(self._layout, device, dtype),
                bias=_stacked(biases, 0, device, dtype) if biases else None,
                bias_strength=self._strengths.view(self._bias_layout, device, dtype) if biases else None,
            )
        self._stays = stays(layer)
        self._placed = placed
        return placed


_COMPUTING = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""Weights of these dtypes are computed with as they are; fp8 and packed ones are cast by their host first."""


def _add_linear(x: Tensor, y: Tensor, placed: Placed, base_forward: BaseForward) -> Tensor:
    h = F.linear(x, placed.down) * placed.strength
    if not y.is_contiguous():
        return y + F.linear(h, placed.up)
    flat, h = y.view(-1, y.shape[-1]), h.view(-1, h.shape[-1])
    if is_torchs(base_forward) and not y.requires_grad:
        flat.addmm_(h, placed.up.t())  # torch's own forward has just made y, so nobody else holds it
        return y
    return torch.addmm(flat, h, placed.up.t()).view(y.shape)


def _add_conv(layer: nn.Module, x: Tensor, y: Tensor, placed: Placed) -> Tensor:
    # the layer's own stride, padding and padding mode, read now: A1111's tiling switches the mode between calls
    h: Tensor = layer._conv_forward(x, placed.down, None)  # type: ignore[operator]
    spatial = placed.down.ndim - 2
    h = h * placed.strength.view(-1, *(1,) * spatial)
    if y.ndim == spatial + 2 and y.is_contiguous() and h.is_contiguous():
        up = placed.up.expand(y.shape[0], *placed.up.shape)
        return torch.baddbmm(y.flatten(2), up, h.flatten(2)).view(y.shape)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[spatial - 1]
    return y + convolve(h, placed.up.view(*placed.up.shape, *(1,) * spatial))


def _stacked(parts: Sequence[Tensor], dim: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Own memory in one piece, never a view of the mapped file: that file may be replaced while we compute."""
    shape = list(parts[0].shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    stacked = torch.empty(shape, device=device, dtype=dtype)
    start = 0
    for part in parts:
        stacked.narrow(dim, start, part.shape[dim]).copy_(part)
        start += part.shape[dim]
    return stacked
