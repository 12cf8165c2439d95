"""Who may use the routes: users that the host lets in, and no page of another site in their browser."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fastapi import HTTPException, Request
from fastapi.security import HTTPBasic

from .answers import FORBIDDEN, UNAUTHORIZED, UNSUPPORTED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..hosts import Access


_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_UNASKED = frozenset({"text/plain", "application/x-www-form-urlencoded", "multipart/form-data"})
"""Content types that browsers send to other sites without asking those first."""


def refuse_other_sites(request: Request) -> None:
    """Refuse a change that a page of another site asks for.

    Raises:
        HTTPException: 403 where the browser names another site, 415 for a body that any site could have sent.
    """
    if request.method in _SAFE:
        return
    headers = request.headers
    site = headers.get("sec-fetch-site")  # browsers send it over HTTPS and to loopback; behind a proxy it stays right
    origin = headers.get("origin")
    here = {headers.get("host"), headers.get("x-forwarded-host")}
    foreign = site not in ("same-origin", "none") if site else origin and urlsplit(origin).netloc not in here
    if foreign:
        raise HTTPException(FORBIDDEN, "a page of another site asked for this; use the web UI's own page")
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _UNASKED:
        raise HTTPException(UNSUPPORTED, f"the body must be sent as application/json, or a picture's type, not {kind}")


def guard(access: Access) -> Callable[[Request], Awaitable[None]]:
    """Return a dependency that lets in whom the host lets in."""
    basic = HTTPBasic(auto_error=False)

    async def admit(request: Request) -> None:
        if access.password is None and access.login is None:
            return
        if access.login is not None:
            user = access.login(request)
            if (await user if inspect.isawaitable(user) else user) is not None:
                return
        if access.password is None:
            raise HTTPException(UNAUTHORIZED, "log in on the web UI's page first")
        given = await basic(request)
        if given is None or not access.password(given.username, given.password):
            detail = "the user and password of the web UI's API are needed"
            raise HTTPException(UNAUTHORIZED, detail, {"WWW-Authenticate": "Basic"})

    return admit
