"""Sentences for the log: each once, and no number of them takes more memory."""

from __future__ import annotations

import tracemalloc

import pytest

from extension.generation.log import REMEMBERED, OnceLog


def test_a_sentence_that_comes_again_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    log = OnceLog()
    log.say("often")
    for number in range(2 * REMEMBERED):
        log.say(f"{number}")
        log.say("often")
    texts = [record.getMessage() for record in caplog.records]
    assert texts.count("remora: often") == 1
    assert len(texts) == 2 * REMEMBERED + 1
    log.say("0")  # forgotten long ago
    assert caplog.records[-1].getMessage() == "remora: 0"


def test_hostile_sentences_take_no_memory_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extension.generation.log.logger.log", lambda *_: None)  # pytest keeps every record
    log = OnceLog()
    tracemalloc.start()
    try:
        for number in range(3 * REMEMBERED):
            log.say(f"{number} \ud800{'x' * 2000}")
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert size < 500 * REMEMBERED
