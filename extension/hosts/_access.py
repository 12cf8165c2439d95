"""Who may use the HTTP routes of a web UI of A1111's family, taken from its own routes.

Its API asks for a name and password if the user wants that (`--api-auth`, in SD.Next `--auth`). Its gradio page may
have its own login, stored in a cookie. Both checks are functions of the host, called here.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from .base import Access

logger = logging.getLogger(__name__)

_API = "/sdapi/v1/options"  # every host with an API has it
_PAGE = "/config"  # gradio's, which has depended on its check of the login in every version
_REFUSED = (401, 403)
_PASSWORDS = ("api_auth", "api_auth_path")
_LOGINS = ("gradio_auth", "gradio_auth_path", "auth", "auth_file", "authfile")  # the last three of SD.Next are both


def access_of(app: Any, options: object = None) -> Access:
    """Return the credentials that a FastAPI application demands on its own API and page.

    Args:
        app: the application.
        options: the host's command line. If they set a password or a login and the application shows neither, access is
            denied to all.
    """
    checks = _checks(app, _API)
    password = _password(checks) if checks else None
    login = _login(app) if _has_login(app) else None
    if password is None and login is None and (names := _set(options)):
        logger.warning(
            "remora: %s is set, but Remora cannot find what checks it; the tab's requests are refused", names
        )
        login = _no_login
    return Access(password, login)


def _set(options: object) -> str:
    """Return the options that demand a password or a login, as users write them; empty if none does."""
    found = [name for name in _LOGINS if getattr(options, name, None)]
    # without an API its password protects nothing, and the page is open
    if getattr(options, "api", True) or getattr(options, "nowebui", False):
        found += [name for name in _PASSWORDS if getattr(options, name, None)]
    return ", ".join(f"--{name.replace('_', '-')}" for name in found)


def _password(checks: Sequence[Callable[[Any], object]]) -> Callable[[str, str], bool]:
    def known(name: str, password: str) -> bool:
        try:
            for check in checks:
                check(SimpleNamespace(username=name, password=password))
        except Exception as error:  # an HTTP error of the framework in use
            if getattr(error, "status_code", None) not in _REFUSED:
                raise
            return False
        return True

    return known


def _has_login(app: Any) -> bool:
    return any(getattr(app, name, None) is not None for name in ("auth", "auth_dependency"))


def _login(app: Any) -> Callable[[Any], Any]:
    """Return gradio's own check of the login; it knows the name of the cookie and the tokens."""
    parameters = [value for check in _checks(app, _PAGE) for value in inspect.signature(check).parameters.values()]
    for parameter in parameters:
        user: Callable[[Any], Any] | None = getattr(parameter.default, "dependency", None)
        if user is not None:
            return user
    logger.warning("remora: the page has a login that Remora cannot check, so the tab's requests are refused")
    return _no_login


def _no_login(request: object) -> None:
    """Return None: no one is logged in."""


def _checks(app: Any, path: str) -> list[Callable[..., Any]]:
    """Return the dependencies of a route of the host."""
    route = next((route for route in _routes(app.routes) if getattr(route, "path", None) == path), None)
    return [dependency.dependency for dependency in getattr(route, "dependencies", ())]


def _routes(routes: Sequence[Any]) -> Iterator[Any]:
    """Yield all routes. Recent versions of fastapi keep the routes of included routers apart."""
    for route in routes:
        candidates = getattr(route, "effective_candidates", None)
        if candidates is None:
            yield route
        else:
            yield from _routes(candidates())
