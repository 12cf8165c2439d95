"""What the embedded web UI demands of every request, be it for a route of ours, a picture or the page.

It stands before the page, too: gradio lets pages of other sites read what it serves as soon as its own name is not
localhost, and answers in place of our routes when a browser asks whether a page of another site may use them.
"""

from __future__ import annotations

import base64
import ipaddress
import secrets
from typing import TYPE_CHECKING

from fastapi import HTTPException, Request, Response

from ..api import host_name, is_loopback, refuse_other_sites, refused

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_FORBIDDEN, _UNAUTHORIZED = 403, 401
_NOT_FRAMED = b"frame-ancestors 'self'"


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
        await (self._app if refusal is None else refusal)(scope, receive, _unframed(send))

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if self._local and not _is_here(host):
            # or a page could have its own name mean this machine, and then be no page of another site
            return refused(_FORBIDDEN, f"this web UI is for this machine: open it as localhost, not as {host:.80}")
        try:
            refuse_other_sites(request)
        except HTTPException as error:
            return refused(error.status_code, error.detail)
        if self._login and not self._knows(request.headers.get("authorization", "")):
            headers = {"WWW-Authenticate": 'Basic realm="Remora", charset="UTF-8"'}
            return refused(_UNAUTHORIZED, "the user and password of this web UI are needed", headers)
        return None

    def _knows(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == "basic" and secrets.compare_digest(given.strip().encode(), self._login)


def _unframed(send: Send) -> Send:
    """Forbid pages of other sites to show ours in a frame, where a user may click on what is not to be seen.

    Browsers that tell nothing of a frame when they ask for what is in it obey this.
    """

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"content-security-policy", _NOT_FRAMED)]
            message = {**message, "headers": headers}
        await send(message)

    return sending


def _is_here(host: str) -> bool:
    """Tell whether a Host header is one that no other site can have: an address, or localhost."""
    name = host_name(host)
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
