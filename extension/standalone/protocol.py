"""The protocol of the embedded web UI's connections: a request that does not arrive in time ends its connection."""

from __future__ import annotations

import asyncio
import logging

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)

HEADER_SECONDS = 20.0
"""From the connection, or from the first byte of a later request, to the end of the headers."""
BODY_SECONDS = 300.0
"""From the end of the headers to the end of the body."""


class TimedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for headers and bodies.

    A program that sends a header a byte at a time would keep its connection, and with some thousands of them nobody
    else gets one.
    """

    _deadline: asyncio.TimerHandle | None = None
    _awaited: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the headers of the first request."""
        super().connection_made(transport)
        self._await(h11.IDLE)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request, and wait for the next part of it."""
        super().data_received(data)
        self._await(self.conn.their_state)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._await(None)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for nothing, but as long as uvicorn keeps a connection without a request."""
        super().on_response_complete()
        if self._awaited is not h11.IDLE:
            self._await(None)

    def _await(self, state: object) -> None:
        """Set the time limit of a state of the client; in the same state as before, the limit stays."""
        if state is self._awaited:
            return
        self._awaited = state
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if state is h11.IDLE or state is h11.SEND_BODY:
            seconds = HEADER_SECONDS if state is h11.IDLE else BODY_SECONDS
            self._deadline = self.loop.call_later(seconds, self._end)

    def _end(self) -> None:
        logger.info("remora: a request from %s did not arrive in time", self.client[0] if self.client else "a client")
        self.transport.abort()
