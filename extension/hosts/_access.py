"""Who may use the HTTP routes of a web UI of A1111's family, found out from the routes that it has itself.

Its API asks for a name and password where the user wants that (`--api-auth`, in SD.Next `--auth`); its page is
gradio's, which may have a login of its own, kept in a cookie. Both checks are the host's own functions, called here.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from .base import Access

logger = logging.getLogger(__name__)

_API = "/sdapi/v1/options"  # every host with an API has it
_PAGE = "/config"  # gradio's, which has depended on its check of the login in every version
_REFUSED = (401, 403)


def access_of(app: Any) -> Access:
    """Return what a FastAPI application demands on its own API and page."""
    checks = _checks(app, _API)
    return Access(_password(checks) if checks else None, _login(app) if _has_login(app) else None)


def _password(checks: Sequence[Callable[[Any], object]]) -> Callable[[str, str], bool]:
    def known(name: str, password: str) -> bool:
        try:
            for check in checks:
                check(SimpleNamespace(username=name, password=password))
        except Exception as error:  # an HTTP error of whichever framework it is made with
            if getattr(error, "status_code", None) not in _REFUSED:
                raise
            return False
        return True

    return known


def _has_login(app: Any) -> bool:
    return any(getattr(app, name, None) is not None for name in ("auth", "auth_dependency"))


def _login(app: Any) -> Callable[[Any], Any]:
    """What gradio's own check of the login asks; it knows the name of the cookie and the tokens."""
    parameters = [value for check in _checks(app, _PAGE) for value in inspect.signature(check).parameters.values()]
    for parameter in parameters:
        user: Callable[[Any], Any] | None = getattr(parameter.default, "dependency", None)
        if user is not None:
            return user
    logger.warning("remora: the page has a login that cannot be asked, so the tab's requests are refused")
    return lambda request: None


def _checks(app: Any, path: str) -> list[Callable[..., Any]]:
    """What a route of the host depends on."""
    route = next((route for route in app.routes if getattr(route, "path", None) == path), None)
    return [dependency.dependency for dependency in getattr(route, "dependencies", ())]
