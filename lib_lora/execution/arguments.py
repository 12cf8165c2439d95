"""The arguments and results of a layer's call: which argument is the input, and where the output is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from ..errors import ComponentError

BaseForward = Callable[..., Any]
"""The forward of a layer without adapters."""
Args = tuple[Any, ...]
Kwargs = dict[str, Any]

_INPUTS = ("input", "x", "hidden_states", "query")
"""What layers call their input."""


def place_of_input(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | str:
    """Return which argument of a call is the layer's input: a position, or a name.

    It is the first tensor, unless one of several has a name that inputs have, or is the first of the layer's width.

    Raises:
        TypeError: there is no tensor among them.
    """
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):
        return 0
    arguments = dict[int | str, Any](enumerate(args)) | kwargs
    tensors = [key for key, value in arguments.items() if isinstance(value, Tensor)]
    if not tensors:
        raise TypeError("a layer with adapters was called without a tensor; remove the LoRA from this model")
    known = [name for name in _INPUTS if name in tensors]
    first = known[0] if known and isinstance(tensors[0], str) else tensors[0]
    width = getattr(layer, "in_features", None)
    if not isinstance(width, int) or len(arguments) == 1 or first in _INPUTS:
        return first
    positions = [key for key in tensors if isinstance(key, int)]
    for key in (first, *positions, *known, *tensors):
        if arguments[key].ndim > 1 and arguments[key].shape[-1] == width:  # a vector may as well be a scale
            return key
    return first


def output_in(layer: nn.Module, returned: Any) -> Tensor:
    """Return the output of a layer: what its forward returned, or the first of several; ComponentError if no tensor."""
    y = returned[0] if isinstance(returned, tuple | list) and returned else returned
    if not isinstance(y, Tensor):
        text = f"a {type(layer).__name__} returned a {type(returned).__name__} that does not begin with a tensor"
        raise ComponentError(f"{text}, so that no LoRA can be added to it; remove the LoRA from this model")
    return y


def with_output(returned: Any, y: Tensor, others: Sequence[Any] | None = None) -> Any:
    """Return `y` in place of the tensor, or the first of a tuple (named or not) or list, that a forward returned.

    `others` are in place of what comes behind it; None leaves that.
    """
    if not isinstance(returned, tuple | list):
        return y
    kind: Any = type(returned)
    return getattr(kind, "_make", kind)((y, *(returned[1:] if others is None else others)))
