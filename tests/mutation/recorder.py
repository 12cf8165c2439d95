"""A plug-in of pytest that writes down which test runs which lines: `-p tests.mutation.recorder`.

Needs REMORA_COVERAGE, the file to write to. Lines that run at an import belong to no test.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import coverage
import pytest

RECORDED = ["lib_lora", "extension"]

_coverage = coverage.Coverage(
    data_file=os.environ["REMORA_COVERAGE"], data_suffix=True, source=RECORDED, config_file=False, messages=False
)
_coverage.start()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _coverage.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        _coverage.switch_context("")


def pytest_unconfigure() -> None:
    _coverage.stop()
    _coverage.save()
