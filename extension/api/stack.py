"""`/remora/v1/state` and `/remora/v1/stack`: what became of the latest pictures, and what every picture gets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastapi import HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool

from lib_lora import LoraError

from ..generation.state import state_of
from ..kept.always_on import AlwaysOn, StackRefusedError, read
from ..library.catalog import CatalogError, Lookup
from ..text.prompt import parse_arguments
from .answers import BROKEN, UNPROCESSABLE, answer, json_of, refuse_stale, tag_of

if TYPE_CHECKING:
    from ..generation.session import Session
    from ..kept.always_on import AlwaysOnEntry

_MAX_BODY = 1 << 20  # bytes


class StackApi:
    """The stack over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def state(self, request: Request) -> Response:
        """Tell what became of the LoRA of the latest pictures."""
        self._session.catalog.somebody_looks()
        return answer(request, {**state_of(self._session), "stack": tag_of(self._told())})

    def stack(self, request: Request) -> Response:
        """Return the stack, and what is wrong with the file it is kept in."""
        return answer(request, self._told())

    async def set_stack(self, request: Request) -> Response:
        """Have another stack from the next picture on; all of it or nothing.

        With `If-Match`, only where the stack still is the one that had this ETag.
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
                BROKEN, f"the stack cannot be kept, so it is as before: {error.strerror or error}"
            ) from error

    def _told(self) -> dict[str, Any]:
        return {**self._session.always_on.stack.to_json(), "problem": self._session.always_on.problem}

    def _known(self, stack: AlwaysOn) -> AlwaysOn:
        """The stack with names as tags spell them; a name that was there before may be that of a file that has gone.

        Raises:
            LoraError: a name that finds no file, or one that cannot be used; fields of a tag that cannot be read.
            StackRefusedError: a file that is there twice.
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
