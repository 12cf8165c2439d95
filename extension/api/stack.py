"""`/remora/v1/state` and `/remora/v1/stack`: the LoRA of the latest pictures, and the always-on stack."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from fastapi import HTTPException, Request, Response

from lib_lora import LoraError

from ..generation.options import GRAMMAR
from ..generation.state import state_of
from ..kept.always_on import AlwaysOn, StackRefusedError, read
from ..library.catalog import CatalogError, Lookup
from ..text.prompt import parse_arguments
from . import records
from .answers import BROKEN, UNPROCESSABLE, answer, refuse_stale, set_option, tag_of

if TYPE_CHECKING:
    from ..generation.session import Session
    from ..kept.always_on import AlwaysOnEntry


class StackApi:
    """The stack over one session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def state(self, request: Request) -> Response:
        """Return the outcome of each tag in the latest picture, and the progress of the scan."""
        self._session.catalog.scan_often()
        state = cast(records.State, {**state_of(self._session), "stack": tag_of(self._told())})
        return answer(request, state)

    def set_grammar(self, request: Request, body: records.GrammarWanted) -> Response:
        """Switch "Tags obey the brackets around them" on or off, as in the web UI's settings."""
        set_option(self._session.host, GRAMMAR, body["on"])
        return self.state(request)

    def stack(self, request: Request) -> Response:
        """Return the list "Always on", and any problem of its file."""
        return answer(request, self._told())

    def set_stack(self, request: Request, body: records.StackWanted) -> Response:
        """Replace the list "Always on" from the next picture on; all of it or nothing.

        With `If-Match`, only if the present stack has this ETag.
        """
        try:
            stack = self._known(read(body))
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

    def _told(self) -> records.Stack:
        kept = self._session.always_on
        return cast(records.Stack, {**kept.stack.to_json(), "problem": kept.problem})

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
        return replace(entry, name=self._session.catalog.names.name_of(file))
