"""`/remora/v1/compare`: one comparison at a time, made by the host."""

from __future__ import annotations

import secrets
import threading
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from fastapi import HTTPException, Request, Response

from lib_lora import LoraError

from ..generation.compare import Comparison, plan
from ..hosts.txt2img import RequestError, Txt2Img
from ..library.pictures import one_picture
from ..text.prompt import parse
from .answers import CONFLICT, NOT_FOUND, UNPROCESSABLE, answer, object_of, whole

if TYPE_CHECKING:
    from ..generation.session import Session

_MAX_BODY = 1 << 20  # bytes
_TEXTS = ("prompt", "negative_prompt", "sampler", "schedule")
_WHOLE = ("steps", "width", "height", "seed")
_OF_PICTURE = (*_TEXTS, *_WHOLE, "cfg_scale")
_FIELDS = ("mode", "names", "values", *_OF_PICTURE)


class CompareApi:
    """The latest comparison of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._latest: Comparison | None = None

    async def start(self, request: Request) -> Response:
        """Start a comparison; answers as `state` does."""
        data = await object_of(request, _MAX_BODY, "a comparison", *_FIELDS)
        painter = self._session.host.painter()
        if painter is None:
            raise HTTPException(UNPROCESSABLE, f"{self._session.host.name} cannot make pictures for the tab")
        try:
            asked = _request(data)
            painter.check(asked)
            made = plan(data.get("mode", "strengths"), asked.prompt, _names(data), _values(data))
            for prompt in made.prompts:
                parse(prompt, self._session.names)  # before the first picture is made
        except (RequestError, LoraError) as error:  # an invalid request, or an invalid tag in its prompt
            raise HTTPException(UNPROCESSABLE, str(error)) from error
        with self._lock:
            if self._latest is not None and self._latest.running:
                raise HTTPException(CONFLICT, "a comparison is running; wait for it or cancel it")
            self._latest = Comparison(painter, asked, made)
            self._latest.start()
        return self.state(request)

    def state(self, request: Request) -> Response:
        """Return the progress of the latest comparison; `comparison` is null without one."""
        painter = self._session.host.painter()
        latest = None if self._latest is None else self._latest.to_json()
        samplers = [] if painter is None else list(painter.samplers)
        return answer(request, {"comparison": latest, "samplers": samplers, "possible": painter is not None})

    def cancel(self, request: Request) -> Response:
        """Stop at the next step; finished pictures stay."""
        if self._latest is not None:
            self._latest.cancel()
        return self.state(request)

    def picture(self, cell: str = "") -> Response:
        """Return one picture as PNG, or without a cell the whole grid with its labels."""
        latest = self._latest
        if latest is None:
            content = None
        elif cell:
            content = latest.picture(whole(cell, "cell"))
        else:
            content = one_picture(latest.grid)  # may have a hundred cells
        if content is None:
            raise HTTPException(NOT_FOUND, "there is no such picture (yet)")
        return Response(content, media_type="image/png", headers={"Cache-Control": "no-store"})


def _request(data: dict[str, Any]) -> Txt2Img:
    values: dict[str, Any] = {name: data[name] for name in _OF_PICTURE if data.get(name) is not None}
    for name, value in values.items():
        wanted = "a text" if name in _TEXTS else "a whole number" if name in _WHOLE else "a number"
        number = isinstance(value, int | float) and not isinstance(value, bool)
        good = isinstance(value, str) if name in _TEXTS else number and (name not in _WHOLE or value == int(value))
        if not good:
            raise RequestError(f"{name} must be {wanted}, not {value!r:.60}")
        values[name] = int(value) if name in _WHOLE else value
    if not values.get("prompt", "").strip():
        raise RequestError("the prompt is empty; write what the pictures should show")
    assert set(values) <= {field.name for field in fields(Txt2Img)}
    request = Txt2Img(**values)
    # pictures can be compared only with one seed
    return replace(request, seed=secrets.randbelow(2**32)) if request.seed == -1 else request


def _names(data: dict[str, Any]) -> list[str]:
    names = data.get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RequestError("names must be a list of names of LoRA, as they are in the prompt")
    return names


def _values(data: dict[str, Any]) -> list[float] | list[str]:
    values = data.get("values", [])
    if isinstance(values, list) and values and all(isinstance(one, str) for one in values):
        return values
    numbers = isinstance(values, list) and all(
        isinstance(one, int | float) and not isinstance(one, bool) for one in values
    )
    if not numbers:
        raise RequestError("values must be a list of numbers, or of texts for blocks, regions and schedules")
    return [float(one) for one in values]
