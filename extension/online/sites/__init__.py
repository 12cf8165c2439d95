"""The sites, one file each."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

from ..site import Site


@lru_cache(maxsize=1)
def known_sites() -> tuple[Site, ...]:
    """Return the sites of all files here, by name."""
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    return tuple(module.SITE for module in modules)
