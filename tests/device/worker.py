"""Run the tests of this folder one by one, as another process asks for them: `pytest -p tests.device.worker FOLDER`.

Each line of standard input is a test's id and the next one's, and each line of standard output has a test's reports, in
JSON. All else that is printed goes to standard error.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

_orders = os.fdopen(os.dup(0), encoding="utf-8")  # pytest is about to replace both
_answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
_reports: list[pytest.TestReport] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _reports.append(report)


def pytest_runtestloop(session: pytest.Session) -> bool:
    items = {item.nodeid: item for item in session.items}
    hook, config = session.config.hook, session.config
    for line in _orders:
        wanted, following = json.loads(line)
        _reports.clear()
        hook.pytest_runtest_protocol(item=items[wanted], nextitem=items.get(following))
        sent: list[Any] = [hook.pytest_report_to_serializable(config=config, report=report) for report in _reports]
        _answers.write(json.dumps(sent) + "\n")
        _answers.flush()
    return True
