"""Wrappers around a host's functions, installed while the host is connected."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

Around = Callable[..., Any]
"""Called with the wrapped function, and then with its arguments."""


class Wraps:
    """Installed wrappers of functions of modules and classes; each is installed once."""

    def __init__(self) -> None:
        self._ours: dict[tuple[int, str], tuple[ModuleType | type, str, Any, Any]] = {}

    def put(self, owner: ModuleType | type, name: str, around: Around) -> None:
        """Call `around` in place of a function, which it receives; idempotent."""
        key = (id(owner), name)
        if key in self._ours:
            return
        original = getattr(owner, name)

        @wraps(original)
        def ours(*args: Any, **kwargs: Any) -> Any:
            if key not in self._ours or self._ours[key][3] is not ours:  # removed, but others still call it
                return original(*args, **kwargs)
            return around(original, *args, **kwargs)

        self._ours[key] = (owner, name, vars(owner).get(name), ours)
        setattr(owner, name, ours)

    def give_back(self) -> None:
        """Restore the functions; others' wrappers around Remora's stay and pass calls on."""
        taken, self._ours = self._ours, {}
        for owner, name, own, ours in taken.values():
            if vars(owner).get(name) is not ours:
                continue
            if own is None:  # it was inherited
                delattr(owner, name)
            else:
                setattr(owner, name, own)
