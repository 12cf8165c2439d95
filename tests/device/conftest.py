"""Run every test of this folder on each accelerator of this machine, in a process beside the one that reports it.

A driver can end a process: torchvulkan does where an operation gets tensors of two devices. Then that test fails, and
the next one gets a new process. Other tests also never see a second device registered with torch.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from typing import IO, Any

import pytest
import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NONE = "none"
HOW = (
    "no accelerator. Debian's mesa-vulkan-drivers and libvulkan1, with torchvulkan of requirements/test.txt, need no"
    " hardware"
)
PATIENCE = 300.0  # seconds for a test
_IS_WORKER = "REMORA_DEVICE_WORKER"
_WORKER = pytest.StashKey["Worker"]()


def accelerators() -> list[str]:
    """Return the types of device that this machine may have; only a process that uses Vulkan imports it."""
    found = [
        name for name in ("cuda", "xpu", "mps") if getattr(torch, name, None) and getattr(torch, name).is_available()
    ]
    return [*found, *(["vulkan"] if importlib.util.find_spec("torchvulkan") else [])] or [NONE]


@pytest.hookimpl(tryfirst=True)  # or ids depend on when this file was loaded, and a worker knows other ones
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", accelerators(), indirect=True, scope="session")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    """Return an accelerator of this machine."""
    if request.param == NONE:
        pytest.skip(HOW)
    if request.param == "vulkan":
        vulkan = importlib.import_module("torchvulkan")  # registers the device
        if not vulkan.is_available():
            pytest.skip(HOW)
        torch.set_warn_always(True)  # it says what it computes on the CPU instead, which is an error here
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # bounds are those of fp32
    return torch.device(request.param, 0)


def needs_float8(device: torch.device) -> None:
    """Skip a test where the device has no float8."""
    try:
        torch.ones(2, device=device).to(torch.float8_e4m3fn)
    except (AttributeError, RuntimeError, TypeError) as error:  # of an old torch, and of MPS
        pytest.skip(f"no float8: {error}")


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


class Worker:
    """A process that runs tests of this folder.

    Args:
        file: the file of the first test.
    """

    def __init__(self, file: Path) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # it ends with the process
        plugins = ["-p", "tests.device.worker", "-p", "no:xdist", "-p", "no:cacheprovider"]
        found = HERE if file.name.startswith("test_") else file  # in a folder, pytest finds test_*.py only
        command = [sys.executable, "-m", "pytest", *plugins, "--all", str(found)]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            # one thread for Mesa's driver: with more, small shaders are no faster, and tests beside them wait
            env={**os.environ, _IS_WORKER: "1", "PYTEST_ADDOPTS": "", "LP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            encoding="utf-8",
        )

    def run(self, item: pytest.Item, following: pytest.Item | None) -> list[dict[str, Any]] | str:
        """Return the reports of a test, or how the process ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = Timer(PATIENCE, self._kill)
        timer.daemon = True
        timer.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps([item.nodeid, following and following.nodeid]) + "\n")
                self._process.stdin.flush()
            answer = self._process.stdout.readline()
        finally:
            timer.cancel()
        return [_as_before(one) for one in json.loads(answer)] if answer.endswith("\n") else self.end()

    def _kill(self) -> None:
        self._log.write(f"\nit took over {PATIENCE:.0f} s and was killed\n".encode())
        self._process.kill()

    def end(self) -> str:
        """Wait for the end of the process, and say how it ended."""
        try:
            self._process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.communicate()
        code = self._process.returncode
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        self._log.close()
        return "\n".join([f"the process of the test ended with {how}", *lines[-30:]])


def _as_before(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report with the tuple that tells where a test was skipped; JSON made a list of it."""
    told = report["longrepr"]
    return {**report, "longrepr": tuple(told) if isinstance(told, list) else told}


def _needs_worker(item: pytest.Item | None) -> bool:
    return (
        item is not None
        and HERE in item.path.parents
        and item.get_closest_marker("device") is not None
        and _IS_WORKER not in os.environ
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Have a worker run a test of this folder that needs a device, and report what it says."""
    if not _needs_worker(item):
        return None
    stash, hook = item.session.stash, item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    worker = stash.get(_WORKER, None)
    if worker is None:
        worker = stash[_WORKER] = Worker(item.path)
    following = nextitem if _needs_worker(nextitem) else None
    answer = worker.run(item, following)
    if isinstance(answer, str):
        del stash[_WORKER]
        reports = [pytest.TestReport(item.nodeid, item.location, {}, "failed", answer, "call")]
    else:
        reports = [hook.pytest_report_from_serializable(config=item.config, data=one) for one in answer]
    for report in reports:
        hook.pytest_runtest_logreport(report=report)
    if following is None:
        pytest_sessionfinish(item.session)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    item.session._setupstate.teardown_exact(nextitem)  # what a test in this process left for others of its folder
    return True


def pytest_sessionfinish(session: pytest.Session) -> None:
    worker = session.stash.get(_WORKER, None)
    if worker is not None:
        del session.stash[_WORKER]
        worker.end()  # what a driver does at its end says nothing of the tests
