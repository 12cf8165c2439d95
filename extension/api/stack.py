"""`/remora/v1/state` and `/remora/v1/stack`: the LoRA of the latest pictures, and the always-on stack."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastapi import HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool

from lib_lora import LoraError

from ..generation.options import GRAMMAR
from ..generation.state import state_of
from ..kept.always_on import AlwaysOn, StackRefusedError, read
from ..library.catalog import CatalogError, Lookup
from ..text.prompt import parse_arguments
from .answers import BROKEN, UNPROCESSABLE, answer, json_of, object_of, refuse_stale, tag_of

if TYPE_CHECKING:
    from ..generation.session import Session
    from ..kept.always_on import AlwaysOnEntry

_MAX_BODY = 1 << 20  # bytes


class StackApi:
    """The stack over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def state(self, request: Request) -> Response:
        """Return the outcome of the LoRA of the latest pictures."""
        self._session.catalog.scan_often()
        return answer(request, {**state_of(self._session), "stack": tag_of(self._told())})

    async def set_grammar(self, request: Request) -> Response:
        """Switch on or off that brackets around tags mean something, as in the web UI's settings."""
        wanted = (await object_of(request, _MAX_BODY, "the setting", "on")).get("on")
        if not isinstance(wanted, bool):
            raise HTTPException(UNPROCESSABLE, "on must be true or false")
        return await run_in_threadpool(self._set_grammar, request, wanted)

    def _set_grammar(self, request: Request, on: bool) -> Response:
        try:
            self._session.host.set_option(GRAMMAR, on)
        except OSError as error:
            detail = f"the setting cannot be changed here: {error.strerror or error}"
            raise HTTPException(BROKEN, detail) from error
        return self.state(request)

    def stack(self, request: Request) -> Response:
        """Return the always-on stack, and any problem of its file."""
        return answer(request, self._told())

    async def set_stack(self, request: Request) -> Response:
        """Replace the always-on stack from the next picture on; all of it or nothing.

        With `If-Match`, only if the present stack has this ETag.
        """
        data = await json_of(request, _MAX_BODY, "the stack")
        return await run_in_threadpool(self._set, request, data)

    def _set(self, request: Request, data: object) -> Response:
        try:
            stack = self._known(read(data))
        except (StackRefusedError, LoraError) as error:
            raise HTTPException(UNPROCESSABLE, str(error)) from error
        try:
            with self._session.always_on.lock():
                refuse_stale(request, self._told, "the stack")
                self._session.always_on.put(stack)
                return self.stack(request)
        except StackRefusedError as error:
            raise HTTPException(UNPROCESSABLE, str(error)) from error
        except OSError as error:
            raise HTTPException(
                BROKEN, f"the stack cannot be saved and is unchanged: {error.strerror or error}"
            ) from error

    def _told(self) -> dict[str, Any]:
        return {**self._session.always_on.stack.to_json(), "problem": self._session.always_on.problem}

    def _known(self, stack: AlwaysOn) -> AlwaysOn:
        """Return the stack with names as tags spell them; a name in the previous stack may have no file any more.

        Raises:
            LoraError: a name has no file or an unusable one, or the fields of a tag are invalid.
            StackRefusedError: a file occurs twice.
        """
        before = {entry.name for entry in self._session.always_on.stack.entries}
        known = self._session.names
        for entry in stack.entries:
            parse_arguments(entry.written, names=known)
        files = Lookup(self._session.catalog)
        entries = tuple(self._named(files, entry, entry.name in before) for entry in stack.entries)
        names = [entry.name for entry in entries]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise StackRefusedError(f"LoRA {twice!r} is in the stack twice")
        return AlwaysOn(stack.enabled, entries)

    def _named(self, files: Lookup, entry: AlwaysOnEntry, known_before: bool) -> AlwaysOnEntry:
        try:
            file = files.find(entry.name)
        except CatalogError:
            if known_before:
                return entry
            raise
        if problem := self._session.catalog.problem(file):
            if known_before:
                return entry
            raise StackRefusedError(f"LoRA {entry.name!r} cannot be used: {problem}")
        return replace(entry, name=self._session.catalog.name_of(file))
