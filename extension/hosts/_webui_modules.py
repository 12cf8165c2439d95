"""Modules that a host may have."""

from __future__ import annotations

import importlib
from types import ModuleType


def module(name: str) -> ModuleType | None:
    """Return the host's module of that name, or None."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise
