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


def place_of_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | str:
    """Return which argument of a call is the layer's input: the position of the first tensor, else a name.

    Raises:
        TypeError: there is no tensor among them.
    """
    for i, value in enumerate(args):
        if isinstance(value, Tensor):
            return i
    for name in (*_INPUTS, *kwargs):
        if isinstance(kwargs.get(name), Tensor):
            return name
    raise TypeError("a layer with adapters was called without a tensor; remove the LoRA from this model")


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
