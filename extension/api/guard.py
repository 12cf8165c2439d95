"""Who may use the routes: whom the host lets in."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from fastapi import HTTPException, Request
from fastapi.security import HTTPBasic

from .answers import UNAUTHORIZED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..hosts import Access


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
