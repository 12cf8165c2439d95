"""The checks before every route of Remora, and its answers to failures.

A page of another site can make a browser send requests here, with the user's cookies and password, and many hosts let
it read the answers. So a request must come from the web UI's own page or from a program, unless the user follows a
link. A body must have a type that no page can send to another site without asking first, and the user needs the host's
credentials. Every exception of a route becomes one sentence under `detail`.

The Host header is not checked here: a real host cannot tell a page that bound its own name to this machine's address
from a local proxy that passes on the public name. The embedded web UI checks it.
"""

from __future__ import annotations

import inspect
import logging
import math
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import HTTPBasic
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect

from ..addresses import host_name, is_loopback
from .answers import (
    BAD_REQUEST,
    BROKEN,
    FORBIDDEN,
    LONGEST_BODY,
    TOO_LARGE,
    TOO_MANY,
    UNAUTHORIZED,
    UNPROCESSABLE,
    UNSUPPORTED,
    content_type,
    refused,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from fastapi import FastAPI

    from ..brake import Brake
    from ..hosts import Access

logger = logging.getLogger(__name__)

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LINKS = frozenset({"GET", "HEAD"})


def add_route(app: FastAPI, path: str, endpoint: Callable[..., Any], access: Access, **more: Any) -> None:
    """Add a route of Remora to a host's application."""
    # as the application's own `add_api_route`, which takes no class; not through a router: recent versions hide its
    # routes, so that others do not see which paths are taken
    app.router.add_api_route(path, endpoint, route_class_override=guarded(access), **more)


def guarded(access: Access) -> type[APIRoute]:
    """Return the class of routes that demand this access."""
    admit = guard(access)

    class GuardedRoute(APIRoute):
        """A route that checks a request before reading it, and answers every error with a sentence."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            return _answering(admit, super().get_route_handler())

    return GuardedRoute


def guard(access: Access) -> Callable[[Request], Awaitable[None]]:
    """Return a function that raises HTTPException if a request is refused."""
    basic = HTTPBasic(auto_error=False)

    async def admit(request: Request) -> None:
        refuse_other_sites(request)
        refuse_other_bodies(request)
        if access.password is None and access.login is None:
            return
        if access.login is not None:
            user = access.login(request)
            if (await user if inspect.isawaitable(user) else user) is not None:
                return
        if access.password is None:
            raise HTTPException(UNAUTHORIZED, "log in on the web UI's page first")
        refuse_guesses(request, access.brake)
        given = await basic(request)
        if given is None or not access.password(given.username, given.password):
            if given is not None:
                access.brake.add(address_of(request))
            detail = "the user and password of the web UI's API are needed"
            raise HTTPException(UNAUTHORIZED, detail, {"WWW-Authenticate": "Basic"})

    return admit


def refuse_guesses(request: Request, brake: Brake) -> None:
    """Refuse a password from an address that sent many wrong ones, without a look at it.

    Raises:
        HTTPException: 429.
    """
    if "authorization" in request.headers and (left := brake.seconds_left(address_of(request))) > 0:
        seconds = math.ceil(left)
        detail = f"too many wrong passwords came from your address; try again in {seconds} seconds"
        raise HTTPException(TOO_MANY, detail, {"Retry-After": str(seconds)})


def address_of(request: Request) -> str:
    """Return the address that sends a request; empty if the server does not tell."""
    return "" if request.client is None else request.client.host


def of_other_site(request: Request) -> bool:
    """Tell whether, according to the browser, a page of another site sends the request."""
    headers = request.headers
    site = headers.get("sec-fetch-site")  # browsers send it over HTTPS and to loopback; behind a proxy it stays right
    if site is not None:
        return site.lower() not in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc.lower() not in _here(request)
    except ValueError:  # no address at all
        return True


def is_link(request: Request) -> bool:
    """Tell whether, according to the browser, the request opens a page, not a part of one or a frame."""
    headers = request.headers
    whole = headers.get("sec-fetch-dest", "document").lower() == "document"
    return whole and request.method in _LINKS and headers.get("sec-fetch-mode", "").lower() == "navigate"


def refuse_other_sites(request: Request) -> None:
    """Refuse requests of pages of other sites.

    Raises:
        HTTPException: 403.
    """
    if of_other_site(request) and not is_link(request):
        raise HTTPException(FORBIDDEN, "a page of another site asked for this; use the web UI's own page")


def _here(request: Request) -> set[str]:
    """Return the names of this web UI for the page that sends the request."""
    host = request.headers.get("host", "").lower()
    here = {host}
    if is_loopback(host_name(host)):
        # the client may be a proxy on this machine; under any other name a page can write this header itself, if the
        # host lets other sites send any header
        here.add(request.headers.get("x-forwarded-host", "").lower())
    return here - {""}


def refuse_other_bodies(request: Request) -> None:
    """Refuse a body that any page could have sent here, or that is larger than any route accepts.

    Raises:
        HTTPException: 400 for an invalid length, 413 for too large a body, 415 for another type.
    """
    if request.method in SAFE:
        return
    written = request.headers.get("content-length", "0")
    if not (written.isascii() and written.isdigit()):
        raise HTTPException(BAD_REQUEST, "the length of the body must be a whole number")
    length = int(written[:20])  # a longer number is too large
    if length > LONGEST_BODY:
        raise HTTPException(TOO_LARGE, f"no body has more than {LONGEST_BODY >> 20} MB")
    kind = content_type(request)
    sent = kind or length or "transfer-encoding" in request.headers
    if sent and kind != "application/json" and not kind.startswith("image/"):
        what = kind[:60] or "without a type"
        raise HTTPException(UNSUPPORTED, f"a body must be sent as application/json or as a picture, not {what}")


def _answering(
    admit: Callable[[Request], Awaitable[None]], handle: Callable[[Request], Coroutine[Any, Any, Response]]
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """Return a handler that answers exceptions of `handle` with a sentence."""

    async def answered(request: Request) -> Response:
        try:
            await admit(request)
            return await handle(request)
        except AnyHTTPException as error:
            return refused(error.status_code, str(error.detail), error.headers)
        except RequestValidationError as error:
            return refused(UNPROCESSABLE, _said(error))
        except ClientDisconnect:  # no client reads the answer
            return refused(BAD_REQUEST, "the request ended before its body did")
        except Exception:  # any fault of Remora: hosts would answer with a page, or with a traceback
            number = secrets.randbelow(900_000) + 100_000
            logger.exception("remora: %s %r failed (number %d)", request.method, request.url.path, number)
            return refused(BROKEN, f"the web UI could not do this because of an internal error {_logged(number)}")

    return answered


def _logged(number: int) -> str:
    return f"(number {number}; the log has it)"


def _said(error: RequestValidationError) -> str:
    """Return the first error of a query, as a sentence."""
    first = error.errors()[0]
    where = " ".join(str(part) for part in first.get("loc", ())[1:])
    if "missing" in str(first.get("type")):  # "value_error.missing" of older versions
        return f"{where:.60} is missing from the query"
    return f"{where:.60} of the query is wrong: {first.get('msg', 'it cannot be read')}"
