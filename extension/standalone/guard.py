"""What the embedded web UI demands of every request, be it for a route of ours, a picture or the page.

It stands before the page, too: gradio lets pages of other sites read what it serves as soon as its own name is not
localhost, and answers in place of our routes when a browser asks whether a page of another site may use them.
"""

from __future__ import annotations

import base64
import ipaddress
import re
import secrets
from typing import TYPE_CHECKING

from fastapi import Request, Response

from ..api import of_other_site, refused

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_FORBIDDEN, _UNAUTHORIZED = 403, 401
_LINKS = frozenset({"GET", "HEAD"})
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([\w.-]+))(?::\d{1,5})?")


class Guard:
    """An ASGI application before another one.

    Args:
        app: the other one.
        address: that it is served on.
        login: `user:password`; empty where everybody who reaches the address may use it.
    """

    def __init__(self, app: ASGIApp, address: str, login: str = "") -> None:
        self._app = app
        self._local = is_loopback(address)
        self._login = base64.b64encode(login.encode()) if login else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer where a request is refused, else let the other one answer."""
        if scope["type"] == "websocket":  # nothing here uses them, and browsers open them to any site
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal = self._refusal(Request(scope)) if scope["type"] == "http" else None
        await (self._app if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if self._local and not _is_here(host):
            # or a page could have its own name mean this machine, and then be no page of another site
            return refused(_FORBIDDEN, f"this web UI is for this machine: open it as localhost, not as {host:.80}")
        linked = request.method in _LINKS and request.headers.get("sec-fetch-mode") == "navigate"
        if not linked and of_other_site(request):
            return refused(_FORBIDDEN, "a page of another site asked for this; use the web UI's own page")
        if self._login and not self._knows(request.headers.get("authorization", "")):
            headers = {"WWW-Authenticate": 'Basic realm="Remora", charset="UTF-8"'}
            return refused(_UNAUTHORIZED, "the user and password of this web UI are needed", headers)
        return None

    def _knows(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == "basic" and secrets.compare_digest(given.strip().encode(), self._login)


def is_loopback(address: str) -> bool:
    """Tell whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address.lower() == "localhost"


def _is_here(host: str) -> bool:
    """Tell whether a Host header is one that no other site can have: an address, or localhost."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = (match[1] or match[2]).lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
