"""HTTP routes about LoRA files, with the field names existing clients of A1111-like web UIs know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter

if TYPE_CHECKING:
    from fastapi import FastAPI

    from .session import Session


def add_routes(app: FastAPI, session: Session) -> None:
    """Add the routes the host has not got; a host's own `/sdapi/v1/loras` stays."""
    taken = {getattr(route, "path", "") for route in app.routes}
    router = APIRouter()
    if "/sdapi/v1/loras" not in taken:
        router.add_api_route("/sdapi/v1/loras", lambda: list_loras(session), methods=["GET"])
        router.add_api_route("/sdapi/v1/refresh-loras", lambda: session.catalog.refresh(), methods=["POST"])
    if "/remora/v1/report" not in taken:
        router.add_api_route("/remora/v1/report", lambda: last_report(session), methods=["GET"])
    app.include_router(router)


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
        for name, file in zip(catalog.names(), catalog.files, strict=True)
    ]


def last_report(session: Session) -> dict[str, Any]:
    """Return what the latest generation ran with.

    Per LoRA the layers hit and the keys unused; the LoRAs skipped; the layers merged, and why how many others were not
    where that was asked for; the embeddings that cannot be used.
    """
    last = session.last
    return {
        "active": [{"name": active.name, **active.report.to_json()} for active in last.active],
        "skipped": list(last.skipped),
        "merged": last.report.merged,
        "live": dict(last.report.live),
        "notes": list(last.notes),
    }
