"""Runs sections in this process, and writes down what came of each check."""

from __future__ import annotations

import contextlib
import gc
import importlib
import math
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from . import device as devices
from .check import Check, Checks, Setup, SkipError
from .journal import FAIL, PASS, ROOT, SKIP, Journal, scrubbed
from .sections import LOST, SECTIONS

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
        with TemporaryDirectory(prefix="remora-gpu-", ignore_cleanup_errors=True) as folder, torch.no_grad():
            torch.manual_seed(0)
            setup, runner = (
                Setup(found, small, Path(folder), kinds),
                Runner(journal, found, name, math.inf if small else limits[name]),
            )
            with runner.watched("all checks"):
                for check, function in load(name)(setup):
                    if (name, check) not in done:
                        runner.run(check, function)
            journal.write(ended=name)
            devices.give_back(found)
    return 0


class Runner:
    """Runs the checks of a section."""

    def __init__(self, journal: Journal, device: torch.device, section: str, limit: float) -> None:
        self._journal = journal
        self._device = device
        self._section = section
        self._limit = limit
        self._since = time.monotonic()

    def run(self, name: str, check: Check) -> None:
        """Run a check, unless the time of the section is over; end the process if the device is lost."""
        if time.monotonic() > self._since + self._limit:
            self._journal.result(self._section, name, SKIP, f"the section took over {self._limit:.0f} s")
            return
        self._journal.write(section=self._section, begun=name)
        began = time.monotonic()
        with self.watched(name):
            found = check()
            seconds = round(time.monotonic() - began, 2)
            result = PASS if found.ok else FAIL
            more = {"values": dict(found.values), "seconds": seconds}
            self._journal.result(self._section, name, result, found.figure, **more)

    @contextlib.contextmanager
    def watched(self, name: str) -> Iterator[None]:
        """Write down what an error inside says."""
        try:
            yield
        except SkipError as error:
            self._journal.result(self._section, name, SKIP, str(error))
        except Exception as error:  # noqa: BLE001  # one check must not hide the results of the others
            first = (str(error).splitlines() or [""])[0]
            where = [scrubbed(line) for line in traceback.format_tb(error.__traceback__)[-_FRAMES:]]
            self._journal.result(self._section, name, FAIL, f"{type(error).__name__}: {first:.160}", traceback=where)
            del error
            self._after_error()

    def _after_error(self) -> None:
        gc.collect()
        if self._device.type == "cpu":
            return
        if not devices.works(self._device):
            os._exit(LOST)  # a new process goes on
        devices.give_back(self._device)
