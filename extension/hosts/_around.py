"""A function of the host's with one of ours around it, as long as it is needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


class Around:
    """Ours around a function or method of the host's, put on and taken off again whatever others do meanwhile.

    Args:
        owner: the module or class it is looked up in.
        name: of the function.
        ours: called with what it found there, then with the arguments.
    """

    def __init__(self, owner: Any, name: str, ours: Callable[..., Any]) -> None:
        self._owner = owner
        self._name = name
        self._ours = ours
        self._original: Callable[..., Any] | None = None
        self._placed: Callable[..., Any] | None = None

    def take(self) -> None:
        """Put ours around what is there; harmless when done already."""
        if self._placed is not None:
            return
        original = getattr(self._owner, self._name)

        @wraps(original)
        def placed(*args: Any, **kwargs: Any) -> Any:
            if self._placed is not placed:  # given back, but somebody else still calls it
                return original(*args, **kwargs)
            return self._ours(original, *args, **kwargs)

        self._original, self._placed = original, placed
        setattr(self._owner, self._name, placed)

    def give_back(self) -> None:
        """Put back what was there; what others wrapped around ours stays and passes on."""
        if self._placed is not None and getattr(self._owner, self._name) is self._placed:
            setattr(self._owner, self._name, self._original)
        self._original = self._placed = None
