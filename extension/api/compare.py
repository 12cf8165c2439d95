"""`/remora/v1/compare`: one comparison at a time, made by the host."""

from __future__ import annotations

import secrets
import threading
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, cast

from fastapi import HTTPException, Request, Response

from lib_lora import LoraError

from ..generation.compare import ComparisonRun, Plan, plan
from ..hosts.txt2img import RequestError, Txt2Img
from ..library.pictures import one_picture
from ..text.prompt import parse
from . import records
from .answers import CONFLICT, NOT_FOUND, UNPROCESSABLE, answer, whole

if TYPE_CHECKING:
    from ..generation.session import Session

_OF_COMPARISON = ("mode", "names", "values", "grows")


class CompareApi:
    """The latest comparison of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._latest: ComparisonRun | None = None

    def start(self, request: Request, body: records.CompareWanted) -> Response:
        """Start a grid of pictures that differ only in their LoRA, or add rows to one; answer its progress."""
        painter = self._session.host.painter
        if painter is None:
            raise HTTPException(UNPROCESSABLE, f"{self._session.host.name} cannot make pictures for the tab")
        try:
            asked = _request(body)
            painter.check(asked)
            made = plan(body.get("mode", "strengths"), asked.prompt, body["names"], body.get("values", []))
            for prompt in made.prompts:
                if prompt is not None:
                    parse(prompt, self._session.names)  # before the first picture is made
            if "grows" in body:
                self._grow(body["grows"], made)
                return self.state(request)
        except (RequestError, LoraError) as error:  # an invalid request, or an invalid tag in its prompt
            raise HTTPException(UNPROCESSABLE, str(error)) from error
        with self._lock:
            if self._latest is not None and self._latest.running:
                raise HTTPException(CONFLICT, "a comparison is running; wait for it or cancel it")
            self._latest = ComparisonRun(painter, asked, made, {**body, "seed": asked.seed})
            self._latest.start()
        return self.state(request)

    def _grow(self, id: str, made: Plan) -> None:  # noqa: A002  # of the body
        with self._lock:
            if self._latest is None or self._latest.id != id:
                raise HTTPException(CONFLICT, "another comparison was started since; rows can be added to the latest")
            self._latest.grow(made)

    def state(self, request: Request) -> Response:
        """Return the progress of the latest comparison; `comparison` is null without one."""
        painter = self._session.host.painter
        latest = None if self._latest is None else cast(records.Comparison, self._latest.to_json())
        samplers = [] if painter is None else list(painter.samplers)
        told: records.Compare = {
            "comparison": latest,
            "samplers": samplers,
            "possible": painter is not None,
            "examples": list(self._session.host.examples),
        }
        return answer(request, told)

    def cancel(self, request: Request) -> Response:
        """Cancel the comparison at the next step; finished pictures stay."""
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


def _request(body: records.CompareWanted) -> Txt2Img:
    if not body["prompt"].strip():
        raise RequestError("the prompt is empty; write what the pictures should show")
    values: dict[str, Any] = {name: value for name, value in body.items() if name not in _OF_COMPARISON}
    assert set(values) <= {field.name for field in fields(Txt2Img)}
    request = Txt2Img(**values)
    # pictures can be compared only with one seed
    return replace(request, seed=secrets.randbelow(2**32)) if request.seed == -1 else request
