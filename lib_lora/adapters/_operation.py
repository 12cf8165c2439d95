"""The product of a layer apart from its weight, so that an adapter can make the same one with its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn


def at_multiplier(product: Callable[[Tensor], Tensor], operand: Tensor, multiplier: Tensor | float) -> Tensor:
    """Return `product(operand)` at a multiplier, for a product that is linear in an operand smaller than its result.

    A number, or a tensor of one, is cheapest in the operand; multipliers of rows broadcast to the product.
    """
    if isinstance(multiplier, Tensor):
        if multiplier.numel() > 1:
            return product(operand) * multiplier
        if multiplier.ndim > operand.ndim:  # of a map of one place: the operand would become another one
            multiplier = multiplier.reshape(())
    return product(operand * multiplier)


class Operation:
    """A linear layer's or a convolution's product, with its stride, padding, dilation and padding mode.

    Read from the layer at each use: A1111's tiling switches the padding mode between calls.
    """

    __slots__ = ("_base", "_layer", "_rows", "spatial")

    def __init__(
        self,
        layer: nn.Module,
        spatial: int,
        base: Callable[[Tensor], Any] | None = None,
        rows: tuple[int, int] | None = None,
    ) -> None:
        self._layer = layer
        self._base = layer.forward if base is None else base  # torch 2.11 cannot trace whether a function is true
        self._rows = rows
        self.spatial = spatial
        """Number of dimensions behind the channels: 0 for linear layers."""

    @property
    def channels(self) -> int:
        """Return the dimension of the channels, counted from the end, so that batched or not does not matter."""
        return -1 - self.spatial

    def window(self, rows: tuple[int, int]) -> Operation:
        """Return the operation for some of the outputs."""
        return Operation(self._layer, self.spatial, self._base, rows)

    def outputs(self, y: Tensor) -> Tensor:
        """Return the outputs of this window, from an output of the whole layer."""
        if self._rows is None:
            return y
        return y.narrow(self.channels, self._rows[0], self._rows[1] - self._rows[0])

    def apply(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the layer's product with another weight (out, in, *kernel), without a bias."""
        if not self.spatial:
            return F.linear(x, weight)
        result: Tensor = self._layer._conv_forward(x, weight, None)  # type: ignore[operator]
        return result

    def pointwise(self, x: Tensor, weight: Tensor) -> Tensor:
        """Mix the channels of `x` by `weight` (out, in) at each place, without stride or kernel."""
        if not self.spatial:
            return F.linear(x, weight)
        convolve = (F.conv1d, F.conv2d, F.conv3d)[self.spatial - 1]
        return convolve(x, weight.reshape(*weight.shape, *(1,) * self.spatial))

    def per_channel(self, vector: Tensor) -> Tensor:
        """Reshape a vector over the channels, (c,), to broadcast to an input or an output."""
        return vector.reshape(-1, *(1,) * self.spatial)

    def base(self, x: Tensor) -> Tensor:
        """Call the layer's own forward with another input and subtract the bias."""
        return self.without_bias(self.whole(x))

    def whole(self, x: Tensor) -> Tensor:
        """Call the layer's own forward with another input."""
        return self.outputs(self._base(x))

    def without_bias(self, y: Tensor) -> Tensor:
        """Subtract the layer's bias from a base output."""
        bias = self.bias(y)
        return y if bias is None else y - bias

    def with_bias(self, y: Tensor) -> Tensor:
        """Add the layer's bias to an output."""
        bias = self.bias(y)
        return y if bias is None else y + bias

    def bias(self, y: Tensor) -> Tensor | None:
        """Return the layer's bias, which broadcasts to an output, where `y` is and in its dtype; None without one."""
        bias = getattr(self._layer, "bias", None)
        if bias is None:
            return None
        own = bias if torch.is_grad_enabled() else bias.detach()
        own = own if self._rows is None else own[slice(*self._rows)]
        return self.per_channel(own.to(device=y.device, dtype=y.dtype))
