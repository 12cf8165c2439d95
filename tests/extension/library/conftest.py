"""What the tests of the library share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look through the folders at once after a start; a web UI first answers its page from the index."""
    monkeypatch.setattr("extension.library.scan._LATER", 0.0)
