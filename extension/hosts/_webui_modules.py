"""Modules of a host, which may or may not have them."""

from __future__ import annotations

import importlib
from types import ModuleType


def module(name: str) -> ModuleType | None:
    """A module of the host, or None where it has none of that name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise
