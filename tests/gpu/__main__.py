"""Try Remora on a graphics card, and measure it: `python install.py gpu`.

Each section of checks runs in a process of its own. If that crashes, the check that ran fails, and another process runs
the rest. The sections have ten minutes together; checks that do not fit are listed as not tried. It is meant for cards
of 8 GB or more: CUDA, ROCm, XPU or MPS. All variants are measured in turns, in half precision.

A step: with 1 and 4 LoRA of rank 16 and with one of rank 64, beside PEFT. The models are SDXL's UNet for a picture of
1024 x 1024 with CFG, SD 1.5's UNet for 512 x 512 with CFG, and FLUX.1 for 1024 x 1024. If the memory is too small, it
is one of SDXL's stacks of transformer blocks, and six of FLUX.1's 57 blocks. The report says which. The goals are 1.15
of the time without LoRA for SDXL, 1.25 for SD 1.5 and 1.08 for FLUX.1, and less than PEFT. The same step is measured
with a LoHa, and where the program has replaced the forward of torch's linear layers.

A change: the first use of a file, back to another file, and another strength, beside PEFT, its hotswap, and weights
that are baked with a backup. The first two include a step.

Offloading: a step under each scheme of diffusers, accelerate and the web UIs, beside the same scheme without LoRA, with
the peak of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from . import report
from .journal import FAIL, ROOT, Journal, Row
from .sections import ALL, LOST, SECTIONS

_PROCESSES = 20
"""For one batch of sections."""
_PATIENCE = 120
"""Seconds that the last check of a section may take after the section's time is over."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run all checks; return the exit status: 1 where one failed, 2 where there is no such device."""
    options = _options(argv)
    if options.report is not None:
        print(report.markdown(json.loads(options.report.read_text(encoding="utf-8"))))
        return 0
    names = [name for name in SECTIONS if options.only is None or name in options.only]
    if options.journal is not None:
        from .child import run  # which imports torch

        return run(names, Journal(options.journal), options.device, small=options.small)
    found, problem = _tried(options, names)
    if problem is not None:
        print(f"Remora: {problem}", file=sys.stderr)
        return 2
    options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\n{report.markdown(found)}\n\nWritten: {options.json.resolve()}")
    if found["interrupted"]:
        return 130
    return 1 if any(row["result"] == FAIL for row in found["rows"]) else 0


def _tried(options: argparse.Namespace, names: Sequence[str]) -> tuple[Row, str | None]:
    """Return what becomes the report, and why there is none."""
    with tempfile.TemporaryDirectory(prefix="remora-gpu-") as folder:
        journal = Journal(Path(folder) / "journal")
        command = [sys.executable, "-m", "tests.gpu", *(["--small"] if options.small else [])]
        command += [] if options.device is None else ["--device", options.device]
        began, interrupted = time.monotonic(), False
        try:
            supervise([names] if options.small else [[name] for name in names], journal, command)
        except KeyboardInterrupt:
            interrupted = True  # what was found so far is written all the same
        found = {"machine": journal.value("machine"), "small": options.small, "interrupted": interrupted}
        found |= {"seconds": round(time.monotonic() - began), "rows": journal.rows()}
        return found, journal.value("no_device")


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python install.py gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--device", help="cuda, cuda:1, xpu, mps, vulkan or cpu (default: the accelerator)")
    parser.add_argument("--small", action="store_true", help="small models: shows that all works, measures nothing")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--json", type=Path, default=Path("gpu-report.json"), metavar="FILE")
    parser.add_argument("--report", type=Path, metavar="FILE", help="print the tables of such a file, and do no more")
    parser.add_argument("--journal", type=Path, help=argparse.SUPPRESS)  # of a process that runs checks
    return parser.parse_args(argv)


def supervise(batches: Sequence[Sequence[str]], journal: Journal, command: Sequence[str]) -> None:
    """Run sections, each batch in a process, and in another one what a crash left.

    Args:
        batches: names of sections.
        journal: gets all results.
        command: starts a process; it is given the journal and the sections.
    """
    for batch in batches:
        left = list(batch)
        for _ in range(_PROCESSES):
            if not left or journal.value("no_device") is not None:
                break
            limit = sum(SECTIONS.get(name, 60) for name in left) + _PATIENCE
            status, words = _call([*command, "--journal", str(journal.path), "--only", *left], limit)
            end = f"over {limit:.0f} s" if status is None else _told(status, words)
            at = next((name for name in left if name not in journal.ended()), left[0])
            if running := journal.running():
                journal.result(*running, FAIL, end)
            elif status not in (0, 2, LOST):
                journal.result(at, ALL, FAIL, end)
            if status is None or (running is None and status != LOST):
                journal.write(ended=at)
            left = [name for name in left if name not in journal.ended()]
        for name in left:
            journal.result(name, ALL, FAIL, f"{_PROCESSES} processes were not enough")


def _told(status: int, words: str) -> str:
    """Return how a process ended."""
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"status {status}"
    return f"the process ended by {name}: {words:.160}"


def _call(command: list[str], limit: float) -> tuple[int | None, str]:
    """Return the exit status, None where the time was over, and the last line of the error output."""
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        try:
            status = subprocess.run(command, cwd=ROOT, env=environment, stderr=errors, timeout=limit).returncode
        except subprocess.TimeoutExpired:
            status = None
        errors.seek(0)
        lines = [line.strip() for line in errors if line.strip()]
    fatal = [line for line in lines if line.startswith("Fatal Python error")]
    return status, (fatal or lines or [""])[-1]


if __name__ == "__main__":
    sys.exit(main())
