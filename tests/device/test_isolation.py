"""A test of a device that ends its process fails, and no other does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import torch

from tests.device.conftest import HOW, ROOT, accelerators


def test_a_crash_is_one_failed_test() -> None:
    program = str(Path(__file__).with_name("crash_sample.py"))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "-q", "-k", accelerators()[0], program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if HOW in done.stdout:
        assert "3 skipped" in done.stdout
        return
    assert "1 failed, 1 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert re.search(r"the process of the test ended with (SIGABRT|status \d+)", done.stdout)
    assert "a reason" in done.stdout


def test_no_other_test_sees_a_device_that_only_these_need() -> None:
    assert "torchvulkan" not in sys.modules
    assert not hasattr(torch, "vulkan")
