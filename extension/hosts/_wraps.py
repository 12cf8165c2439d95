"""A host's functions with something of ours around them, for as long as the host is ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

Around = Callable[..., Any]
"""Called with the function it is around, and then with that one's arguments."""


class Wraps:
    """What was put around functions of modules and classes; nothing is put around one twice."""

    def __init__(self) -> None:
        self._ours: dict[tuple[int, str], tuple[ModuleType | type, str, Any, Any]] = {}

    def put(self, owner: ModuleType | type, name: str, around: Around) -> None:
        """Let `around` be called in place of a function, which it is given; harmless when done already."""
        key = (id(owner), name)
        if key in self._ours:
            return
        original = getattr(owner, name)

        @wraps(original)
        def ours(*args: Any, **kwargs: Any) -> Any:
            if key not in self._ours or self._ours[key][3] is not ours:  # given back, but others still call it
                return original(*args, **kwargs)
            return around(original, *args, **kwargs)

        self._ours[key] = (owner, name, vars(owner).get(name), ours)
        setattr(owner, name, ours)

    def give_back(self) -> None:
        """Put the functions back; what others put around ours stays, and is passed on through."""
        taken, self._ours = self._ours, {}
        for owner, name, own, ours in taken.values():
            if vars(owner).get(name) is not ours:
                continue
            if own is None:  # it was inherited
                delattr(owner, name)
            else:
                setattr(owner, name, own)
