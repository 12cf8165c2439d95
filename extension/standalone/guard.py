"""The checks before every request to the embedded web UI: routes, pictures and the page.

They precede the page, too: gradio lets pages of other sites read its answers as soon as its own name is not localhost,
and answers CORS preflights in place of Remora's routes.
"""

from __future__ import annotations

import base64
import ipaddress
import secrets
from typing import TYPE_CHECKING

from fastapi import HTTPException, Request, Response

from ..addresses import host_name, is_loopback
from ..api import SAFE, address_of, refuse_guesses, refuse_other_sites, refused
from ..brake import Brake

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_FORBIDDEN, _UNAUTHORIZED, _LENGTH_REQUIRED, _TOO_LARGE = 403, 401, 411, 413
_API = ("/remora/", "/sdapi/")
"""Where each route bounds its body itself."""
_PAGE_BODY = 2 << 20  # bytes that the page sends at most; gradio would read any number into memory
_NOT_FRAMED = b"frame-ancestors 'self'"


class Guard:
    """An ASGI application around another one.

    Args:
        app: the other one.
        address: the address it is served on.
        logins: each as `user:password`; without any, none is demanded. The state of a request has its `user`.
        tokens: whether a password alone suffices, as a bearer token.
    """

    def __init__(self, app: ASGIApp, address: str, logins: Sequence[str] = (), *, tokens: bool = False) -> None:
        self._app = app
        self._local = is_loopback(address)
        self._logins: dict[tuple[str, bytes], str] = {}
        for login in logins:
            user, _, password = login.partition(":")
            self._logins["basic", base64.b64encode(login.encode())] = user
            if tokens:
                self._logins["bearer", password.encode()] = user
        self._brake = Brake()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it to the other application."""
        if scope["type"] == "websocket":  # nothing here uses them, and browsers open them to any site
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal = None
        if scope["type"] == "http":
            scope["state"] = {**scope.get("state", {}), "user": ""}
            refusal = self._refusal(Request(scope))
        await (self._app if refusal is None else refusal)(scope, receive, _unframed(send))

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if self._local and not _is_here(host):
            # or a page could have its own name mean this machine, and then be no page of another site
            return refused(_FORBIDDEN, f"this web UI serves this machine only: open it as localhost, not as {host:.80}")
        try:
            refuse_other_sites(request)
            if self._logins:
                refuse_guesses(request, self._brake)
        except HTTPException as error:
            return refused(error.status_code, error.detail, error.headers)
        given = request.headers.get("authorization", "")
        user = self._user(given)
        if self._logins and user is None:
            if given:
                self._brake.add(address_of(request))
            headers = {"WWW-Authenticate": 'Basic realm="Remora", charset="UTF-8"'}
            return refused(_UNAUTHORIZED, "the user and password of this web UI are needed", headers)
        request.state.user = user or ""
        return _without_bound(request)

    def _user(self, authorization: str) -> str | None:
        """Return whose login this is; looks at all of them, so that the time it takes tells nothing."""
        scheme, _, given = authorization.partition(" ")
        sent, found = given.strip().encode(), None
        for (kind, login), user in self._logins.items():
            if secrets.compare_digest(sent, login) and scheme.lower() == kind:
                found = user
        return found


def _without_bound(request: Request) -> Response | None:
    """Refuse a body that gradio would read however large it is."""
    if request.method in SAFE or request.url.path.startswith(_API):
        return None
    length = request.headers.get("content-length", "")
    if "transfer-encoding" in request.headers:
        return refused(_LENGTH_REQUIRED, "a body must be sent with its length, in Content-Length")
    if length.isascii() and length.isdigit() and int(length[:20]) > _PAGE_BODY:
        return refused(_TOO_LARGE, f"the page takes no more than {_PAGE_BODY >> 20} MB at once")
    return None


def _unframed(send: Send) -> Send:
    """Forbid pages of other sites to show this one in a frame, where a user may click on hidden parts.

    For browsers whose requests do not say that they are for a frame.
    """

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"content-security-policy", _NOT_FRAMED)]
            message = {**message, "headers": headers}
        await send(message)

    return sending


def _is_here(host: str) -> bool:
    """Tell whether no other site can have this Host header: it is an address, or localhost."""
    name = host_name(host)
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
