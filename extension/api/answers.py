"""Answers and bodies of the routes: every error is one sentence under `detail`."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fastapi import HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool

if TYPE_CHECKING:
    from ..hosts import Host

NO_CONTENT = 204
TOO_MANY = 429
BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, TOO_LARGE, UNSUPPORTED = 400, 401, 403, 404, 409, 413, 415
UNPROCESSABLE, BROKEN = 422, 500
CHANGED = 412

LONGEST_BODY = 32 << 20  # bytes, of any route
_LONGEST_SENTENCE = 2000  # characters: it may quote the request
_DEEPEST = 32  # lists and objects within each other
_MOST_VALUES = 200_000  # of a body; no route has a use for as many
_READ_AT_ONCE = 1 << 16  # bytes; a longer body is read by a thread, as the event loop serves everybody
_MOST_DIGITS = 20  # of a whole number: 64 bits have no more


def set_option(host: Host, key: str, value: object) -> None:
    """Change a setting of the web UI; raise HTTPException where it cannot be changed."""
    try:
        host.set_option(key, value)
    except OSError as error:
        raise HTTPException(BROKEN, f"the setting cannot be changed here: {error.strerror or error}") from error


def answer(request: Request, data: object, kept: object = None) -> Response:
    """Return JSON with an ETag; a client that polls gets the body only when it has changed.

    Args:
        request: the request.
        data: the answer.
        kept: the part that clients change, if the rest changes without them; `refuse_stale` compares its ETag alone.
    """
    content = _encoded(data)
    tag = _tag(content) if kept is None else f"{tag_of(kept)}.{_tag(content)}"
    headers = {"ETag": f'"{tag}"', "Cache-Control": "no-cache"}
    if headers["ETag"] in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="application/json", headers=headers)


def tag_of(data: object) -> str:
    """Return the ETag of an answer, or of the part that clients change, without its quotes."""
    return _tag(_encoded(data))


def refuse_stale(request: Request, now: Callable[[], object], what: str) -> None:
    """Refuse a change if the data have changed since the client read them, according to If-Match.

    Args:
        request: the request.
        now: returns the present answer, or the part that clients change if that part has its own ETag.
        what: is changed, for the error.
    """
    known = request.headers.get("if-match", "*").strip()
    # search the whole header: proxies add text around an ETag, and another ETag may follow
    if known != "*" and tag_of(now()) not in known:
        raise HTTPException(CHANGED, f"{what} was changed on another page or by another program; read it again")


def _encoded(data: object) -> bytes:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def _tag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def refused(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error response."""
    detail = " ".join(detail.split())
    content = json.dumps({"detail": detail if len(detail) <= _LONGEST_SENTENCE else f"{detail[:_LONGEST_SENTENCE]}..."})
    return Response(content, status, dict(headers or {}), "application/json")


def content_type(request: Request) -> str:
    """Return the type of a request's body, without parameters; empty if missing."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def picture_of(request: Request) -> bytes:
    """Return the request's body, which must have the type of a picture."""
    if not content_type(request).startswith("image/"):
        raise HTTPException(UNSUPPORTED, "a picture must be sent with its type, as image/png")
    return await _body_of(request, LONGEST_BODY, "a picture")


async def json_of(request: Request, at_most: int, what: str) -> Any:
    """Return the request's body as JSON whose numbers and texts are safe to use and to write.

    Args:
        request: the request.
        at_most: bytes.
        what: the body is, for the error.
    """
    body = await _body_of(request, at_most, what)
    if body and content_type(request) != "application/json":
        raise HTTPException(UNSUPPORTED, f"{what} must be sent as application/json")
    if len(body) <= _READ_AT_ONCE:
        return _parsed(body, what)
    return await run_in_threadpool(_parsed, body, what)


def _parsed(body: bytes, what: str) -> Any:
    try:
        if sum(map(body.count, (b",", b"[", b"{"))) > _MOST_VALUES:
            raise ValueError(f"it has more than {_MOST_VALUES:,} values")
        # decoded here: `json` accepts UTF-16 and lone surrogates
        data = json.loads(body.decode("utf-8"), parse_constant=_no_constant, parse_float=_float, parse_int=_int)
        _check(data)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise HTTPException(UNPROCESSABLE, f"{what} is not JSON that can be used: {reason}") from error
    return data


async def object_of(request: Request, at_most: int, what: str) -> dict[str, Any]:
    """Return the body as a JSON object."""
    data = await json_of(request, at_most, what)
    if not isinstance(data, dict):
        raise HTTPException(UNPROCESSABLE, f"{what} must be an object")
    return data


def whole(text: str, name: str) -> int:
    """Parse a whole number of the query."""
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise HTTPException(UNPROCESSABLE, f"{name} must be a whole number from 0, not {text!r:.60}")
    return int(text)


async def _body_of(request: Request, at_most: int, what: str) -> bytes:
    """Return the request's body, but read at most `at_most` bytes."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > at_most:
            most = f"{at_most >> 20} MB" if at_most >> 20 else f"{at_most >> 10} KB"
            raise HTTPException(TOO_LARGE, f"{what} has no more than {most}")
        parts.append(part)
    return b"".join(parts)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text:.20} is too large")
    return number


def _int(text: str) -> int:
    if len(text.lstrip("-")) > _MOST_DIGITS:
        raise ValueError(f"the number {text:.20}... has {len(text.lstrip('-'))} digits")
    return int(text)


def _check(data: object) -> None:
    """Check data that `json` accepts.

    Raises:
        ValueError: nesting is too deep, or a text has a lone surrogate, which cannot be written.
    """
    level = [data]
    for _ in range(_DEEPEST):
        level = [inner for one in level for inner in _within(one)]
        if not level:
            return
    raise ValueError(f"lists and objects are nested more than {_DEEPEST} deep")


def _within(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value
        yield from value.values()
    elif isinstance(value, list):
        yield from value
    elif isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"a text has half of a character, {value[error.start]!a}") from error
