"""Connect Remora to the web UI of this process; may be called again when the UI reloads."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .generation.session import Session

__all__ = ["register", "unregister"]

logger = logging.getLogger(__name__)

_session: Session | None = None


def register() -> Session | None:
    """Connect Remora to the web UI of this process; return None if it is unsupported or connecting failed.

    Never raises: every error is logged with its traceback, and the web UI starts without Remora.
    """
    try:
        return _register()
    except Exception:  # the host's boundary: an extension must not keep a web UI from starting
        logger.exception("remora: could not be set up and stays off; the web UI goes on without it")
        try:
            unregister()  # what was set up until then
        except Exception:
            logger.exception("remora: could not be removed again")
        return None


def unregister() -> None:
    """Remove Remora from the model and undo its patches; `register` may be called again."""
    global _session
    from lib_lora import uninstall

    if _session is not None:
        _session.close()
        _session.catalog.close()
        _session.outputs.close()
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
