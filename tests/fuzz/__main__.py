"""Give made and changed inputs of every kind to what takes them: `python install.py fuzz`.

What must not happen: an error that is not documented, a route that answers 500, more than a second or 500 MB for one
input, an answer that is not JSON, a sentence that shows the inside of the program, and a text that is read back
otherwise than it was written. Each such input is kept in runs/fuzz/faults, with the command that tries it again.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .engines import HANG, Run, last_input, repeat
from .target import all_targets, is_there

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "runs" / "fuzz"
_DAY = 86_400.0  # seconds
_START = 120.0  # seconds that a process may take to start
_MEMORY = "/dev/shm"
_HEADS = ("target", "executions", "per second", "longest ms", "growth MB", "faults")


@dataclass(frozen=True)
class Row:
    """What became of one target."""

    target: str
    figures: Mapping[str, Any]
    faults: Sequence[Path]

    def cells(self) -> tuple[str, ...]:
        """Return what the table shows of it."""
        found = self.figures
        rate = found["executions"] / max(found["seconds"], 1e-9)
        numbers = f"{found['executions']:,}", f"{rate:,.0f}", f"{found['longest'] * 1000:,.0f}"
        return self.target, *numbers, f"{found['growth'] / (1 << 20):,.0f}", str(len(self.faults))


def main(argv: Sequence[str] | None = None) -> int:
    """Run to the end; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python install.py fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="for all targets together (default: 10)")
    parser.add_argument("--count", type=int, default=0, help="inputs for each target, however long they take")
    parser.add_argument("--target", nargs="+", default=[], metavar="NAME", help="only these")
    parser.add_argument("--repeat", type=Path, metavar="FILE", help="try one input that was kept")
    parser.add_argument("--folder", type=Path, default=RUNS, help="where faults and the growing corpus are kept")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=0.0, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child:
        Run(arguments.child, arguments.folder, arguments.seconds, arguments.count).all()
    targets = all_targets()
    if arguments.repeat is not None:
        return _repeat(arguments.repeat)
    if unknown := [name for name in arguments.target if name not in targets]:
        parser.error(f"there is no target {unknown[0]}; there are {', '.join(targets)}")
    chosen = arguments.target or list(targets)
    if "routes" in chosen and not is_there("schemathesis"):
        print("Schemathesis is not to be had for this Python, so requests are made of the table of routes alone.")
    if not is_there("atheris"):
        print(
            "Atheris is not to be had for this Python, so inputs are changed by chance instead of by what they reach."
        )
    seconds = _DAY if arguments.count else arguments.minutes * 60 / len(chosen)
    rows = []
    for name in chosen:
        rows.append(_one(name, arguments.folder, seconds, arguments.count))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    print(f"\n{table(rows)}")
    for row in rows:
        for path in row.faults:
            print(f"\n{_said(path)}\n  python install.py fuzz --repeat {os.path.relpath(path, ROOT)}")
    return 1 if any(row.faults for row in rows) else 0


def _one(name: str, folder: Path, seconds: float, count: int) -> Row:
    """Run one target in a process of its own, as what is tested may end it."""
    faults, figures = folder / "faults" / name, folder / "figures" / f"{name}.json"
    figures.unlink(missing_ok=True)
    begun = time.time()
    command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz", "--child", name, "--folder", str(folder)]
    command += ["--seconds", str(seconds), "--count", str(count)]
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None  # what is kept waits for the disk, again and again
    with tempfile.TemporaryDirectory(prefix="remora-fuzz-", dir=memory, ignore_cleanup_errors=True) as scratch:
        own = {"TMPDIR": scratch, "TEMP": scratch, "TMP": scratch, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **own}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            _, said = process.communicate(timeout=seconds + _START + 3 * HANG)
        except subprocess.TimeoutExpired:
            process.kill()
            _, said = process.communicate()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
            raise
    found = json.loads(figures.read_text()) if figures.is_file() else {}
    if process.returncode != 0:
        faults.mkdir(parents=True, exist_ok=True)
        died = faults / "ended-the-process"
        kept = figures.with_suffix(".input")
        died.write_bytes(last_input(kept) if kept.is_file() else b"")
        text = said.decode("utf-8", "replace")[-4000:]
        died.with_suffix(".txt").write_text(f"the process ended with {process.returncode}\n\n{text}", encoding="utf-8")
    new = [path for path in sorted(faults.glob("*.txt")) if path.stat().st_mtime >= begun - 1]
    empty = {"executions": 0, "seconds": 0.0, "longest": 0.0, "growth": 0}
    return Row(name, {**empty, **found}, [path.with_suffix("") for path in new])


def _repeat(path: Path) -> int:
    name = path.resolve().parent.name
    targets = all_targets()
    if name not in targets or not path.is_file():
        print(f"{path} is no input that was kept: it lies in a folder with the name of its target", file=sys.stderr)
        return 2
    wrong = repeat(targets[name], path)
    print("".join(wrong) or f"{path.name} is no fault (any more)")
    return 1 if wrong else 0


def _said(path: Path) -> str:
    return f"{path.parent.name}: {path.with_suffix('.txt').read_text(encoding='utf-8').splitlines()[0]}"


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table."""
    lines = [_HEADS, tuple("---" if at == 0 else "---:" for at in range(len(_HEADS))), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
