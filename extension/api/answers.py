"""How the routes answer and what they take: every error is one sentence under `detail`."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fastapi import HTTPException, Request, Response

UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, TOO_LARGE, UNSUPPORTED = 401, 403, 404, 409, 413, 415
UNPROCESSABLE, BROKEN = 422, 500


def answer(request: Request, data: object) -> Response:
    """JSON with a tag of its content: a client that asks again and again gets it again only where it has changed."""
    content = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="application/json", headers=headers)


async def body_of(request: Request, at_most: int, what: str) -> bytes:
    """The request's body, but no more of it than there can be.

    Args:
        request: the request.
        at_most: bytes.
        what: it is, for the error.
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > at_most:
            raise HTTPException(TOO_LARGE, f"{what} has no more than {at_most >> 20} MB")
    return body


async def json_of(request: Request, at_most: int, what: str) -> Any:
    """The same, read as JSON."""
    try:
        return json.loads(await body_of(request, at_most, what))
    except (ValueError, RecursionError) as error:
        raise HTTPException(UNPROCESSABLE, f"{what} is not JSON: {error}") from error


async def object_of(request: Request, at_most: int, what: str, *fields: str) -> dict[str, Any]:
    """The same, an object that has no other fields than these."""
    data = await json_of(request, at_most, what)
    if not isinstance(data, dict):
        raise HTTPException(UNPROCESSABLE, f"{what} must be an object with the fields {', '.join(fields)}")
    if others := [name for name in data if name not in fields]:
        raise HTTPException(UNPROCESSABLE, f"{what} has no field {others[0]:.60}; the fields are {', '.join(fields)}")
    return data


def whole(text: str, name: str) -> int:
    """A whole number of the query."""
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise HTTPException(UNPROCESSABLE, f"{name} must be a whole number from 0, not {text!r:.60}")
    return int(text)
