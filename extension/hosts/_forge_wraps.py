"""Functions of a host that Remora has its say in, and that it gives back."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

_ORIGINAL = "remora_original"


class Wraps:
    """Replaced functions. Each calls what was there, and becomes a mere passage when it is given back."""

    def __init__(self) -> None:
        self._wrapped: list[tuple[Any, str, Callable[..., Any]]] = []

    def put(self, holder: Any, name: str, around: Callable[..., Any]) -> None:
        """Replace a function, once.

        Args:
            holder: module or class that defines it; where it does not, nothing happens.
            name: of the function.
            around: called with the function that was there, and its arguments.
        """
        original = vars(holder).get(name)
        if original is None or any(one[:2] == (holder, name) for one in self._wrapped):
            return

        @wraps(original)
        def ours(*args: Any, **kwargs: Any) -> Any:
            if not any(one[2] is ours for one in self._wrapped):  # given back, but somebody else still calls it
                return original(*args, **kwargs)
            return around(original, *args, **kwargs)

        setattr(ours, _ORIGINAL, original)
        self._wrapped.append((holder, name, ours))
        setattr(holder, name, ours)

    def give_back(self) -> None:
        """Put every function back; what others wrapped around ours stays, and passes through."""
        while self._wrapped:
            holder, name, ours = self._wrapped.pop()
            if vars(holder).get(name) is ours:
                setattr(holder, name, getattr(ours, _ORIGINAL))
