"""Modules that a host may have."""

from __future__ import annotations

import functools
import importlib
import logging
from types import ModuleType
from typing import Any

logger = logging.getLogger(__name__)


def module(name: str) -> ModuleType | None:
    """Return the host's module of that name, or None where there is none; one that fails to be imported is logged."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            _tell(name, repr(error))
    except Exception as error:  # noqa: BLE001  # a part of the host may need a package or a device that is not there
        _tell(name, repr(error))
    return None


def shared() -> Any:
    """Return the host's module with its settings and its command line."""
    return importlib.import_module("modules.shared")


@functools.cache
def _tell(name: str, error: str) -> None:
    logger.warning("remora: the web UI's module %s cannot be imported, so nothing of it is used: %s", name, error)
