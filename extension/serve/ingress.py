"""The routes of the served application: A1111's, over models in other processes; it needs no Ray."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.middleware.gzip import GZipMiddleware

from ..api import add_route, object_of
from ..api.answers import LONGEST_BODY, answer
from ..hosts import Access
from ..standalone.guard import Guard
from ..standalone.sdapi import PictureRequests, picture_info
from .model import LISTS

if TYPE_CHECKING:
    from .model import Message

RETRIED = "X-Remora-Retried"
"""The header of an answer whose first replica was lost."""
TIMEOUT = "X-Remora-Timeout"
"""The header of a request that says how many seconds it may take."""
_UNPROCESSABLE, _NOT_HERE = 422, 403
_MOST_SECONDS = 600.0
_COMPRESSED = 1000  # bytes
_FIXED = "settings are chosen when the service starts; send override_settings with a request"


class Models(Protocol):
    """The models behind the routes."""

    def generate(
        self, payload: dict[str, Any], *, from_images: bool, user: str, seconds: float
    ) -> AsyncGenerator[Message, None]:
        """As `model.Model.generate`."""

    async def listing(self, name: str) -> Any:
        """As `model.Model.listing`."""

    async def refresh(self) -> None:
        """Scan the LoRA folders of all models again."""


@dataclass(frozen=True)
class IngressSettings:
    """Who may ask, and for how long."""

    address: str = "127.0.0.1"
    """The address that the routes are served on."""
    logins: tuple[str, ...] = ()
    """Each as `user:key`; without any, none is demanded."""
    seconds: float = _MOST_SECONDS
    """That a request may take, unless it asks for less."""


@dataclass(eq=False)
class _Running:
    """A request that is being answered."""

    task: str
    """As the client calls it, in A1111's `force_task_id`."""
    fraction: float = 0.0
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)


class Ingress:
    """The routes, over models."""

    def __init__(self, models: Models, settings: IngressSettings) -> None:
        self._models, self._settings = models, settings
        self._pictures = PictureRequests()
        self._running: dict[str, list[_Running]] = defaultdict(list)
        """By user; the oldest first."""

    def app(self) -> FastAPI:
        """Return the application."""
        app = FastAPI(title="Remora", docs_url=None, redoc_url=None)  # these pages load scripts of other sites
        app.add_middleware(GZipMiddleware, minimum_size=_COMPRESSED, compresslevel=1)
        app.add_middleware(Guard, address=self._settings.address, logins=self._settings.logins, tokens=True)
        routes: list[tuple[str, str, Callable[..., Any]]] = [
            ("POST", "txt2img", self.txt2img),
            ("POST", "img2img", self.img2img),
            ("POST", "png-info", self.png_info),
            ("GET", "progress", self.progress),
            ("POST", "interrupt", self.interrupt),
            ("POST", "options", self.set_options),
            ("POST", "refresh-loras", self.refresh),
            *(("GET", name, _Listing(self._models, name).answer) for name in (*LISTS, "loras", "options")),
        ]
        for method, name, endpoint in routes:
            add_route(app, f"/sdapi/v1/{name}", endpoint, Access(), methods=[method])
        return app

    async def txt2img(self, request: Request, response: Response) -> dict[str, Any]:
        """Make pictures from a text; answers when they are done."""
        return await self._make(request, response, from_images=False)

    async def img2img(self, request: Request, response: Response) -> dict[str, Any]:
        """Make pictures from pictures; answers when they are done."""
        return await self._make(request, response, from_images=True)

    async def png_info(self, request: Request) -> dict[str, Any]:
        """Return the parameters text of a picture, also by name."""
        payload = await object_of(request, LONGEST_BODY, "a request about a picture")
        return await self._pictures.answer(partial(picture_info, payload))

    async def _make(self, request: Request, response: Response, *, from_images: bool) -> dict[str, Any]:
        payload = await object_of(request, LONGEST_BODY, "a request for pictures")
        seconds = _seconds(request.headers.get(TIMEOUT), self._settings.seconds)
        user: str = request.state.user
        running = _Running(str(payload.get("force_task_id") or ""))
        mine = self._running[user]
        mine.append(running)
        try:
            made = self._followed(payload, running, response, from_images=from_images, user=user, seconds=seconds)
            return await _first_of(asyncio.ensure_future(made), running, request, payload)
        finally:
            mine.remove(running)
            if not mine:
                self._running.pop(user, None)

    async def _followed(
        self, payload: dict[str, Any], running: _Running, response: Response, **how: Any
    ) -> dict[str, Any]:
        """Follow a request to its answer."""
        async with aclosing(self._models.generate(payload, **how)) as messages:
            async for kind, content in messages:
                if kind == "progress":
                    running.fraction = content
                elif kind == "retried":
                    running.fraction = 0.0
                    response.headers[RETRIED] = "1"
                elif kind == "refused":
                    status, detail, headers = content
                    raise HTTPException(status, detail, {**headers, **_own(response)})
                else:
                    made: dict[str, Any] = content
                    return made
        raise HTTPException(500, "the model gave no answer")

    def progress(self, request: Request, id_task: str = Query(default="")) -> dict[str, Any]:
        """Return the progress of the user's request of this task, or of the oldest one; never a picture."""
        running = self._find(request, id_task)
        fraction = 0.0 if running is None else running.fraction
        count = len(self._running.get(request.state.user, ()))
        state = {"job": "" if running is None else "txt2img", "job_count": count, "interrupted": False}
        return {"progress": fraction, "eta_relative": 0.0, "state": state, "current_image": None, "textinfo": None}

    def interrupt(self, request: Request, id_task: str = Query(default="")) -> dict[str, Any]:
        """End the user's request of this task, or the oldest one: it answers without pictures."""
        if (running := self._find(request, id_task)) is not None:
            running.interrupted.set()
        return {}

    def _find(self, request: Request, task: str) -> _Running | None:
        mine = self._running.get(request.state.user, [])
        return next((one for one in mine if task in ("", one.task)), None)

    async def refresh(self) -> None:
        """Scan the LoRA folders again, in all replicas."""
        await self._models.refresh()

    def set_options(self) -> None:
        """Refuse to change settings, as they would change the pictures of others."""
        raise HTTPException(_NOT_HERE, _FIXED)


@dataclass(frozen=True)
class _Listing:
    """A route that answers with a list of a model."""

    models: Models
    name: str

    async def answer(self, request: Request) -> Response:
        return answer(request, await self.models.listing(self.name))


async def _first_of(
    made: asyncio.Future[dict[str, Any]], running: _Running, request: Request, payload: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the answer, or one without pictures once the request is interrupted; a client that leaves cancels it."""
    others: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(running.interrupted.wait()),
        asyncio.ensure_future(_left(request)),
    ]
    try:
        await asyncio.wait([made, *others], return_when=asyncio.FIRST_COMPLETED)
        if made.done():
            return made.result()
        told = {"infotexts": [], "remora": {"cancelled": True}}
        return {"images": [], "parameters": dict(payload), "info": json.dumps(told)}
    finally:
        for task in (made, *others):
            task.cancel()
        await asyncio.gather(made, *others, return_exceptions=True)


async def _left(request: Request) -> None:
    """Wait until the client leaves."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _seconds(asked: str | None, most: float) -> float:
    if asked is None:
        return most
    try:
        seconds = float(asked)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise HTTPException(_UNPROCESSABLE, f"{TIMEOUT} must be a number of seconds above 0, not {asked!r:.40}")
    return min(seconds, most)


def _own(response: Response) -> dict[str, str]:
    return {RETRIED: "1"} if RETRIED in response.headers else {}
