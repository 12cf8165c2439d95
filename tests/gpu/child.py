"""Runs sections in this process, and writes down what came of each check."""

from __future__ import annotations

import gc
import importlib
import math
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from . import device as devices
from .check import Check, Checks, Setup, SkipError
from .journal import FAIL, PASS, ROOT, SKIP, Journal, scrubbed
from .sections import ALL, LOST, SECTIONS

_FRAMES = 6
sys.path.insert(0, str(ROOT / "benchmarks"))  # whose modules the sections import; it is no package

Section = Callable[[Setup], Checks]


def section(name: str) -> Section:
    """Import a section; its packages may take seconds."""
    found: Section = importlib.import_module(f".{name}", __package__).checks
    return found


def run(
    names: Sequence[str],
    journal: Journal,
    device: str | None,
    *,
    small: bool,
    load: Callable[[str], Section] = section,
    limits: Mapping[str, float] = SECTIONS,
) -> int:
    """Run those checks of some sections that the journal has no result of; return the exit status."""
    warnings.simplefilter("ignore")  # they would stand between the rows
    try:
        found = devices.find(device)
    except devices.NoDeviceError as error:
        journal.write(no_device=str(error))
        return 2
    if journal.value("machine") is None:
        journal.write(machine=devices.machine(found))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    done = {(row["section"], row["check"]) for row in journal.rows()}
    kinds = devices.dtypes(found)
    for name in names:
        runner = Runner(journal, found, name, math.inf if small else limits[name])
        if (name, ALL) not in done:
            with TemporaryDirectory(prefix="remora-gpu-", ignore_cleanup_errors=True) as folder, torch.no_grad():
                torch.manual_seed(0)
                setup = Setup(found, small, Path(folder), kinds)
                runner.attempt(ALL, partial(_run_section, runner, load(name), setup, done))
        journal.write(ended=name)
        devices.give_back(found)
    return 0


def _run_section(runner: Runner, section: Section, setup: Setup, done: set[tuple[str, str]]) -> None:
    for name, check in section(setup):
        if (runner.section, name) not in done:
            runner.run(name, check)
        del check  # what it holds is to go before the next model is made


class Runner:
    """Runs the checks of a section."""

    def __init__(self, journal: Journal, device: torch.device, section: str, limit: float) -> None:
        self.section = section
        self._journal = journal
        self._device = device
        self._limit = limit
        self._since: float | None = None

    def run(self, name: str, check: Check) -> None:
        """Run a check, unless the time of the section is over."""
        self._since = self._since or time.monotonic()  # imports, and models that all checks share, do not count
        if time.monotonic() > self._since + self._limit:
            self._journal.result(self.section, name, SKIP, f"the section took over {self._limit:.0f} s")
            return
        self._journal.write(section=self.section, begun=name)
        self.attempt(name, partial(self._finish, name, check))

    def attempt(self, name: str, function: Callable[[], None]) -> None:
        """Call a function, and write down what an error of it says; end the process if the device is lost."""
        try:
            function()
            return
        except SkipError as error:
            self._journal.result(self.section, name, SKIP, str(error))
            return
        except Exception as error:  # noqa: BLE001  # one check must not hide the results of the others
            first = (str(error).splitlines() or [""])[0]
            where = [scrubbed(line) for line in traceback.format_tb(error.__traceback__)[-_FRAMES:]]
            self._journal.result(self.section, name, FAIL, f"{type(error).__name__}: {first:.160}", traceback=where)
        self._after_error()  # here nothing holds the tensors of the frames any more

    def _finish(self, name: str, check: Check) -> None:
        began = time.monotonic()
        found = check()
        values = {"values": dict(found.values), "seconds": round(time.monotonic() - began, 2)}
        self._journal.result(self.section, name, PASS if found.ok else FAIL, found.figure, **values)

    def _after_error(self) -> None:
        gc.collect()
        if self._device.type == "cpu":
            return
        if not devices.works(self._device):
            os._exit(LOST)  # a new process goes on
        devices.give_back(self._device)
