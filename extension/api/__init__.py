"""HTTP routes: the ones about LoRA files that clients of A1111-like web UIs know, and Remora's own, `/remora/v1/*`.

Only features that fastapi has since 0.94 are used. `schema.py` checks bodies, not pydantic, so that every error is one
sentence under `detail`, for every version of fastapi and pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request, Response
from fastapi.openapi.utils import get_openapi

from ..generation.moving import Moving
from ..hosts import Access
from ..version import VERSION
from .answers import answer, object_of, refused
from .app import front_end
from .guard import SAFE, add_route, address_of, refuse_guesses, refuse_other_sites
from .routes import SECTIONS, Route, schemas

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import FastAPI

    from ..generation.session import Session

__all__ = [
    "SAFE",
    "add_route",
    "add_routes",
    "address_of",
    "list_loras",
    "object_of",
    "refuse_guesses",
    "refuse_other_sites",
    "refused",
]

_OWN = "/remora/v1"
_APP = "/remora/app/{name:path}"


def add_routes(app: FastAPI, session: Session) -> None:
    """Add the routes that the host does not have; they demand the host's own credentials."""
    taken = {getattr(route, "path", "") for route in app.routes}
    access = session.host.access(app)
    session.catalog.start()
    Moving(session).start()
    session.outputs.start()
    if "/sdapi/v1/loras" not in taken:
        shared = LorasApi(session)
        add_route(app, "/sdapi/v1/loras", shared.list, access, methods=["GET"])
        add_route(app, "/sdapi/v1/refresh-loras", shared.refresh, access, methods=["POST"])
    if f"{_OWN}/state" in taken:
        return
    for _, kind, routes in SECTIONS:
        api = kind(session)
        for route in routes:
            add_route(app, _OWN + route.path, route.bound(api), access, **_said(route))
    hidden: dict[str, Any] = {"methods": ["GET"], "include_in_schema": False}
    add_route(app, f"{_OWN}/openapi.json", _schema(app), access, **hidden)
    # public: a page loads its scripts without the password of the API, and they contain no secret
    add_route(app, _APP, front_end, Access(), **hidden)


class LorasApi:
    """The two routes about LoRA files that clients of A1111 know, over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def list(self, request: Request) -> Response:
        """List the LoRA files."""
        return answer(request, list_loras(self._session))  # texts of files may be no characters

    def refresh(self) -> None:
        """Scan the LoRA folders again."""
        self._session.catalog.refresh()


def list_loras(session: Session) -> list[dict[str, Any]]:
    """Return name, alias, path and metadata of every file."""
    catalog = session.catalog
    return [
        {
            "name": catalog.names.name_of(file),
            "alias": catalog.alias(file),
            "path": str(file.path).encode("utf-8", "replace").decode(),  # a folder's name may be no text
            "metadata": dict(catalog.metadata(file)),
        }
        for file in catalog.files
    ]


def _schema(app: FastAPI) -> Callable[[Request], Response]:
    """Return the route that answers with the OpenAPI description of Remora's own routes."""

    def schema(request: Request) -> Response:
        own = [route for route in app.routes if getattr(route, "path", "").startswith(f"{_OWN}/")]
        text = "LoRA in a Stable Diffusion web UI: files, stack, presets, comparisons, and the outcome of each LoRA."
        made = get_openapi(title="Remora", version=VERSION, description=text, routes=own)
        made.setdefault("components", {}).setdefault("schemas", {}).update(schemas())
        return answer(request, made)

    return schema


def _said(route: Route) -> dict[str, Any]:
    """Return the arguments that describe a route to fastapi."""
    return {
        "methods": [route.method],
        "summary": route.summary,
        "tags": ["Remora"],
        "operation_id": f"remora_{route.method.lower()}{route.path.replace('/', '_')}",
        "openapi_extra": route.described(),
        "response_class": Response,  # `described` tells its type
    }
