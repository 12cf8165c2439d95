"""The supported web UIs, one file each; the only place that imports a host's own modules."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from .base import Access, Axis, Batch, Embeddings, Host, NotMadeError, Option, Outcome, Painter, Remora, Used

__all__ = [
    "Access",
    "Axis",
    "Batch",
    "Embeddings",
    "Host",
    "NotMadeError",
    "Option",
    "Outcome",
    "Painter",
    "Remora",
    "Used",
    "current_host",
    "known_hosts",
]


def known_hosts() -> Iterator[Host]:
    """Yield the hosts of all files here."""
    for info in pkgutil.iter_modules(__path__):
        if info.name != "base" and not info.name.startswith("_"):
            # by our own name, so it holds under whatever name we were imported
            module = importlib.import_module(f"{__name__}.{info.name}")
            yield from (value for value in vars(module).values() if isinstance(value, Host))


def current_host() -> Host | None:
    """Return the host of this process, or None if no file here recognises it.

    A fork may look like its origin; then the host that comes `before` the other wins.
    """
    current = [host for host in known_hosts() if host.is_current()]
    return next((host for host in current if not any(host.name in other.before for other in current)), None)
