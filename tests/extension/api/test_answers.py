"""The bodies of requests: which of them the event loop reads."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import HTTPException

from extension.api import answers
from tests.fakes.coroutines import completed


class Sent:
    """A request with a body, in parts."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.headers = {"content-type": "application/json"}

    async def stream(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self.body), 1 << 14):
            yield self.body[start : start + (1 << 14)]


async def read(body: bytes) -> tuple[int, Any]:
    """Return the thread of the event loop, and what it reads."""
    sent: Any = Sent(body)
    return threading.get_ident(), await answers.json_of(sent, 1 << 20, "a text")


@pytest.mark.parametrize(("characters", "is_loops"), [(10, True), (1 << 17, False)])
def test_a_long_body_is_parsed_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, characters: int, is_loops: bool
) -> None:
    parsing, threads = answers._parsed, list[int]()

    def noted(body: bytes, what: str) -> Any:
        threads.append(threading.get_ident())
        return parsing(body, what)

    monkeypatch.setattr(answers, "_parsed", noted)
    body = json.dumps({"text": "x" * characters}).encode()
    loop, found = completed(read(body))
    assert len(found["text"]) == characters
    assert [one == loop for one in threads] == [is_loops]


def test_a_body_is_read_no_further_than_it_may_be() -> None:
    with pytest.raises(HTTPException) as refused:
        completed(read(b"x" * (2 << 20)))
    assert refused.value.detail == "a text has no more than 1 MB"
