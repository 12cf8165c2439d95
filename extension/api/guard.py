"""What every route of ours demands of a request, and how it answers one that fails.

A page of another site can have a browser send requests here, with the user's cookies and password, and many hosts let
it read the answers. So a request must come from the web UI's own page or from a program, unless it is a link that is
followed. A body must have a type that no page can send to another site without asking first, and users are those whom
the host lets in. Whatever a route raises becomes one sentence under `detail`.

The Host header is not looked at here: in a real host nothing tells a page that bound its own name to this machine's
address from a proxy on this machine that hands on the name users know. The embedded web UI looks at it.
"""

from __future__ import annotations

import inspect
import ipaddress
import logging
import re
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import HTTPBasic
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect

from .answers import (
    BAD_REQUEST,
    BROKEN,
    FORBIDDEN,
    LONGEST_BODY,
    TOO_LARGE,
    UNAUTHORIZED,
    UNPROCESSABLE,
    UNSUPPORTED,
    content_type,
    refused,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from fastapi import FastAPI

    from ..hosts import Access

logger = logging.getLogger(__name__)

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LINKS = frozenset({"GET", "HEAD"})
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([\w.-]+))(?::\d{1,5})?")


def add_route(app: FastAPI, path: str, endpoint: Callable[..., Any], access: Access, **more: Any) -> None:
    """Add a route of ours to a host's application."""
    # as the application's own `add_api_route`, which takes no class; without a router between: recent versions keep
    # the routes of one to themselves, and then nobody sees what is taken
    app.router.add_api_route(path, endpoint, route_class_override=guarded(access), **more)


def guarded(access: Access) -> type[APIRoute]:
    """Return the class of the routes that demand this access."""
    admit = guard(access)

    class GuardedRoute(APIRoute):
        """A route that looks at a request before anything of it is read, and answers every error with a sentence."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            return _answering(admit, super().get_route_handler())

    return GuardedRoute


def guard(access: Access) -> Callable[[Request], Awaitable[None]]:
    """Return what raises an HTTPException where a request is not let in."""
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
        given = await basic(request)
        if given is None or not access.password(given.username, given.password):
            detail = "the user and password of the web UI's API are needed"
            raise HTTPException(UNAUTHORIZED, detail, {"WWW-Authenticate": "Basic"})

    return admit


def of_other_site(request: Request) -> bool:
    """Tell whether the browser says that a page of another site asks."""
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
    """Tell whether the browser says that this opens a page of its own, and neither a part of another nor a frame."""
    headers = request.headers
    whole = headers.get("sec-fetch-dest", "document").lower() == "document"
    return whole and request.method in _LINKS and headers.get("sec-fetch-mode", "").lower() == "navigate"


def is_loopback(address: str) -> bool:
    """Tell whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address.lower() == "localhost"


def host_name(host: str) -> str:
    """Return what a Host header has without its port, in lower case; empty where it is none."""
    match = _HOST.fullmatch(host)
    return "" if match is None else (match[1] or match[2]).lower()


def refuse_other_sites(request: Request) -> None:
    """Refuse what a page of another site asks for.

    Raises:
        HTTPException: 403.
    """
    if of_other_site(request) and not is_link(request):
        raise HTTPException(FORBIDDEN, "a page of another site asked for this; use the web UI's own page")


def _here(request: Request) -> set[str]:
    """Return the names that this web UI has for the page that asks."""
    host = request.headers.get("host", "").lower()
    here = {host}
    if is_loopback(host_name(host)):
        # then it may be a proxy on this machine that asks; by any other name a page can write this header itself, where
        # the host lets other sites ask with any header
        here.add(request.headers.get("x-forwarded-host", "").lower())
    return here - {""}


def refuse_other_bodies(request: Request) -> None:
    """Refuse a body that any page could have sent here, or that is larger than all that routes take.

    Raises:
        HTTPException: 400 for a length that is none, 413 for too large a body, 415 for one of another type.
    """
    if request.method in SAFE:
        return
    written = request.headers.get("content-length", "0")
    if not (written.isascii() and written.isdigit()):
        raise HTTPException(BAD_REQUEST, "the length of the body must be a whole number")
    length = int(written[:20])  # what is longer is too long
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
    """Return a handler that answers with a sentence what the other one raises."""

    async def answered(request: Request) -> Response:
        try:
            await admit(request)
            return await handle(request)
        except AnyHTTPException as error:
            return refused(error.status_code, str(error.detail), error.headers)
        except RequestValidationError as error:
            return refused(UNPROCESSABLE, _said(error))
        except ClientDisconnect:  # nobody reads the answer
            return refused(BAD_REQUEST, "the request ended before its body did")
        except Exception:  # a fault of ours, whatever it is: hosts would answer with a page, or with a traceback
            number = secrets.randbelow(900_000) + 100_000
            logger.exception("remora: %s %r failed (number %d)", request.method, request.url.path, number)
            return refused(BROKEN, f"the web UI failed at this, which is a fault of its own {_logged(number)}")

    return answered


def _logged(number: int) -> str:
    return f"(number {number}; the log has it)"


def _said(error: RequestValidationError) -> str:
    """Return the first of what is wrong with a query, as a sentence."""
    first = error.errors()[0]
    where = " ".join(str(part) for part in first.get("loc", ())[1:])
    return f"{where:.60} of the query is wrong: {first.get('msg', 'it cannot be read')}"
