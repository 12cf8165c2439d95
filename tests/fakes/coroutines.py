"""Coroutines in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def completed(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread of its own; after tests in a browser, a loop of Playwright's runs in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
