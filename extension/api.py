"""HTTP routes: those about LoRA files that clients of A1111-like web UIs know, and Remora's own, `/remora/v1/*`.

Of fastapi, only what it has had since 0.94. Bodies and queries are checked here and not by models, so that every error
is one sentence under `detail`, whatever the host's fastapi and pydantic are.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from typing import TYPE_CHECKING, Any

from fastapi import Depends, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPBasic

from lib_lora import LoraError, base_model, inspect_file, load_network

from .always_on import AlwaysOn, StackRefusedError, read
from .catalog import CatalogError
from .state import names_of, state_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fastapi import FastAPI

    from .always_on import AlwaysOnEntry
    from .hosts import Access
    from .session import Session

_OWN = "/remora/v1"
_MAX_BODY = 1 << 20  # bytes
_UNAUTHORIZED, _NOT_FOUND, _TOO_LARGE, _UNPROCESSABLE, _BROKEN = 401, 404, 413, 422, 500


def add_routes(app: FastAPI, session: Session) -> None:
    """Add the routes the host has not got; a host's own `/sdapi/v1/loras` stays. Ours demand what the host's do."""
    taken = {getattr(route, "path", "") for route in app.routes}
    guarded = [Depends(guard(session.host.access(app)))]

    def add(path: str, endpoint: Callable[..., Any], method: str) -> None:
        # without a router between: recent versions keep those to themselves, and then nobody sees what is taken
        app.add_api_route(path, endpoint, methods=[method], dependencies=guarded)

    if "/sdapi/v1/loras" not in taken:
        add("/sdapi/v1/loras", lambda: list_loras(session), "GET")
        add("/sdapi/v1/refresh-loras", lambda: session.catalog.refresh(), "POST")
    if f"{_OWN}/state" not in taken:
        own = RemoraApi(session)
        add(f"{_OWN}/loras", own.loras, "GET")
        add(f"{_OWN}/refresh", own.refresh, "POST")
        add(f"{_OWN}/state", own.state, "GET")
        add(f"{_OWN}/stack", own.stack, "GET")
        add(f"{_OWN}/stack", own.set_stack, "PUT")
        add(f"{_OWN}/inspect", own.inspect, "GET")


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
            raise HTTPException(_UNAUTHORIZED, "log in on the web UI's page first")
        given = await basic(request)
        if given is None or not access.password(given.username, given.password):
            detail = "the user and password of the web UI's API are needed"
            raise HTTPException(_UNAUTHORIZED, detail, {"WWW-Authenticate": "Basic"})

    return admit


def list_loras(session: Session) -> list[dict[str, Any]]:
    """Return name, alias, path and metadata of every file."""
    catalog = session.catalog
    return [
        {
            "name": name,
            "alias": catalog.alias(file),
            "path": str(file.path),
            "metadata": dict(catalog.metadata(file)),
        }
        for file, name in names_of(session).items()
    ]


class RemoraApi:
    """`/remora/v1/*` over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def loras(self, request: Request) -> Response:
        """List the files, those that cannot be used with the reason."""
        names, catalog = names_of(self._session), self._session.catalog
        files = [
            {
                "name": names.get(file, file.relative),
                "alias": catalog.alias(file),
                "folder": file.relative.rpartition("/")[0],
                "readable": not (problem := catalog.problem(file)),
                "reason": problem,
                "base_model": base_model(catalog.metadata(file)),
                "size": file.size,
                "mtime": file.mtime_ns / 1e9,
            }
            for file in catalog.every
        ]
        return _answer(request, {"loras": files})

    def refresh(self, request: Request) -> Response:
        """Look at the folders again, and list the files."""
        self._session.catalog.refresh()
        return self.loras(request)

    def state(self, request: Request) -> Response:
        """Tell what became of the LoRA of the latest pictures."""
        return _answer(request, state_of(self._session))

    def stack(self, request: Request) -> Response:
        """Return the stack, and what is wrong with the file it is kept in."""
        stack = self._session.always_on.stack
        return _answer(request, {**stack.to_json(), "problem": self._session.always_on.problem})

    async def set_stack(self, request: Request) -> Response:
        """Have another stack from the next picture on; all of it or nothing."""
        try:
            asked = read(json.loads(await _body(request)))
            stack = await run_in_threadpool(self._known, asked)
        except (StackRefusedError, LoraError) as error:
            raise HTTPException(_UNPROCESSABLE, str(error)) from error
        except (ValueError, RecursionError) as error:
            raise HTTPException(_UNPROCESSABLE, f"the stack is not JSON: {error}") from error
        try:
            await run_in_threadpool(self._session.always_on.put, stack)
        except OSError as error:
            raise HTTPException(_BROKEN, f"the stack cannot be kept, so it is as before: {error}") from error
        return self.stack(request)

    def inspect(self, request: Request, name: str = "", model: str = "") -> Response:
        """Tell what a file holds, without regard to the model, or what of it would act on the one that is loaded."""
        try:
            file = self._session.catalog.find_anew(name)
        except CatalogError as error:
            raise HTTPException(_NOT_FOUND, str(error)) from error
        if model not in ("", "loaded"):
            raise HTTPException(_UNPROCESSABLE, f"model must be 'loaded' or not be there, not {model!r}")
        try:
            parts = self._session.host.components() if model else {}
            report = load_network(file.path, parts).report if parts else inspect_file(file.path)
        except LoraError as error:
            raise HTTPException(_UNPROCESSABLE, str(error)) from error
        return _answer(request, report.to_json())

    def _known(self, stack: AlwaysOn) -> AlwaysOn:
        """The stack with names as tags spell them; a name that was there before may be that of a file that has gone.

        Raises:
            LoraError: a name that finds no file, or one that cannot be used.
            StackRefusedError: a file that is there twice.
        """
        before = {entry.name for entry in self._session.always_on.stack.entries}
        entries = tuple(self._named(entry, entry.name in before) for entry in stack.entries)
        names = [entry.name for entry in entries]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise StackRefusedError(f"LoRA {twice!r} is in the stack twice")
        return AlwaysOn(stack.enabled, entries)

    def _named(self, entry: AlwaysOnEntry, known_before: bool) -> AlwaysOnEntry:
        try:
            file = self._session.catalog.find_anew(entry.name)
        except CatalogError:
            if known_before:
                return entry
            raise
        if problem := self._session.catalog.problem(file):
            if known_before:
                return entry
            raise StackRefusedError(f"LoRA {entry.name!r} cannot be used: {problem}")
        return type(entry)(self._session.catalog.name_of(file), entry.on, entry.unet, entry.text_encoder)


async def _body(request: Request) -> bytes:
    """The request's body, but no more of it than a stack can be."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY:
            raise HTTPException(_TOO_LARGE, f"a stack has no more than {_MAX_BODY >> 20} MB")
    return body


def _answer(request: Request, data: object) -> Response:
    """JSON with a tag of its content: a client that asks again and again gets it again only where it has changed."""
    content = json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="application/json", headers=headers)
