"""Remora inside a web UI: picks the host and connects everything; may be called again on a UI reload."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .generation.session import Session

__all__ = ["register", "unregister"]

logger = logging.getLogger(__name__)

_session: Session | None = None


def register() -> Session | None:
    """Connect to the web UI of this process; None where there is none that Remora knows, or it failed.

    Nothing is raised: whatever goes wrong is logged with its traceback, and the host goes on without Remora.
    """
    try:
        return _register()
    except Exception:  # the host's boundary: an extension must not keep a web UI from starting
        logger.exception("remora: could not be set up and stays off; the web UI goes on without it")
        return None


def unregister() -> None:
    """Take everything off the model and undo the patches; `register` may follow."""
    global _session
    from lib_lora import uninstall

    if _session is not None:
        _session.close()
        _session.catalog.close()
        _session = None
    uninstall()


def _register() -> Session | None:
    global _session
    from .hosts import current_host

    host = current_host()
    if host is None:
        logger.warning("remora: this web UI is not supported yet, so Remora stays off; nothing was changed")
        return None
    from lib_lora import install

    from .generation.options import TABLE
    from .generation.session import Session
    from .guest import Guest

    install(host.layer_classes())
    if _session is None or _session.host is not host:
        _session = Session(host)
    host.add_options(TABLE)
    host.connect(Guest(host, _session, unregister))
    return _session
