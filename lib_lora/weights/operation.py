"""The product of a layer apart from its weight, so that an adapter can make the same one with its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn

from ..errors import ComponentError

BaseForward = Callable[..., Any]
"""The forward of a layer without adapters."""


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


_INPUTS = ("input", "x", "hidden_states", "query")
"""What layers call their input."""


def place_of_input(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | str:
    """Return which argument of a call is the layer's input: a position, or a name.

    It is the first tensor, unless one of several has a name that inputs have, or is the first of the layer's width.

    Raises:
        TypeError: there is no tensor among them.
    """
    found = named_arguments(args, kwargs)
    tensors = [place for place, value in found.items() if isinstance(value, Tensor)]
    if not tensors:
        raise TypeError("a layer with adapters was called without a tensor; take the LoRA off this model")
    known = [name for name in _INPUTS if name in tensors]
    first = known[0] if known and isinstance(tensors[0], str) else tensors[0]
    width = getattr(layer, "in_features", None)
    if not isinstance(width, int) or len(found) == 1 or first in _INPUTS:
        return first
    positions = [place for place in tensors if isinstance(place, int)]
    for place in (first, *positions, *known, *tensors):
        if found[place].ndim > 1 and found[place].shape[-1] == width:  # a vector may as well be a scale
            return place
    return first


def output_in(layer: nn.Module, returned: Any) -> Tensor:
    """Return the output of a layer: what its forward returned, or the first of several; ComponentError if no tensor."""
    y = returned[0] if isinstance(returned, tuple | list) and returned else returned
    if not isinstance(y, Tensor):
        text = f"a {type(layer).__name__} returned a {type(returned).__name__} that does not begin with a tensor"
        raise ComponentError(f"{text}, so that no LoRA can be added to it; take the LoRA off this model")
    return y


def with_output(returned: Any, y: Tensor, others: Sequence[Any] | None = None) -> Any:
    """Return `y` in the form of what a layer's forward returned.

    Args:
        returned: by the layer's own forward: a tensor, or a tuple (named or not) or list that begins with one.
        y: in the place of that tensor.
        others: in the place of what comes behind it; None leaves that.
    """
    if not isinstance(returned, tuple | list):
        return y
    kind: Any = type(returned)
    return getattr(kind, "_make", kind)((y, *(returned[1:] if others is None else others)))


def named_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int | str, Any]:
    """Return all arguments of a call by position or name."""
    found: dict[int | str, Any] = dict(enumerate(args))
    found.update(kwargs)
    return found


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
        self._base = base or layer.forward
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
        return self.without_bias(self.outputs(self._base(x)))

    def without_bias(self, y: Tensor) -> Tensor:
        """Subtract the layer's bias from a base output."""
        bias = self._bias(y)
        return y if bias is None else y - bias

    def with_bias(self, y: Tensor) -> Tensor:
        """Add the layer's bias to an output."""
        bias = self._bias(y)
        return y if bias is None else y + bias

    def _bias(self, y: Tensor) -> Tensor | None:
        bias = getattr(self._layer, "bias", None)
        if bias is None:
            return None
        own = bias.detach() if self._rows is None else bias.detach()[slice(*self._rows)]
        return self.per_channel(own.to(device=y.device, dtype=y.dtype))
