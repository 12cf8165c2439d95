"""What Remora adds to a web UI's start: its packages imported and registered, its routes mounted, in a new process.

New processes import what every web UI imports (torch, gradio, fastapi, numpy, Pillow, safetensors). Then they run
`scripts/remora.py`, register with the embedded web UI and mount the routes. The first process is not counted, because
it compiles the packages.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from _common import Record, duration, parse, parser, report, table

ROOT = Path(__file__).resolve().parents[1]
GOAL = 0.3
"""Seconds at most, of both together."""
WARM_UP = 1
"""Processes before those that count: they compile the packages and bring them into the system's file cache."""
CHILD = """
import json, logging, runpy, sys, time
from pathlib import Path
import fastapi, gradio, numpy, PIL.Image, safetensors.torch, torch  # which every web UI has imported by then

entry, folder = Path(sys.argv[1]), Path(sys.argv[2])
logging.getLogger("remora").setLevel(logging.ERROR)  # the web UI is there only after the import
known = set(sys.modules)
began = time.perf_counter()
runpy.run_path(str(entry))
imported = time.perf_counter()
from remora.hosts.standalone import STANDALONE

STANDALONE.open([folder], {}, folder)
assert sys.modules["remora"].register() is not None
registered = time.perf_counter()
app = fastapi.FastAPI()
made = time.perf_counter()
STANDALONE.app_started(app)
mounted = time.perf_counter()
seconds = {"import": imported - began, "register": registered - imported, "mount routes": mounted - made}
print(json.dumps({"seconds": seconds, "modules": sorted(set(sys.modules) - known)}))
"""
HEADERS = ("what", "median", "least", "goal")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = parse(parser(__doc__, rounds=15), arguments)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        started = [start(Path(folder)) for _ in range(WARM_UP + options.rounds)][WARM_UP:]
    steps = {what: [one["seconds"][what] for one in started] for what in started[0]["seconds"]}
    steps["together"] = [sum(one["seconds"].values()) for one in started]
    rows: list[Record] = [
        {
            "what": what,
            "median_s": median(seconds),
            "minimum_s": min(seconds),
            "goal_met": median(seconds) < GOAL if what == "together" else None,
            "seconds": seconds,
        }
        for what, seconds in steps.items()
    ]
    modules = started[0]["modules"]
    ours = sum(name.partition(".")[0] in ("lib_lora", "remora") for name in modules)
    said = f"{len(modules)} modules were imported, {ours} of them Remora's own"
    report("startup", options, f"{said}\n\n{table(HEADERS, [cells(row) for row in rows])}", rows)
    return 0


def start(folder: Path) -> Record:
    """Start one process, with its files in a folder, and say what it took."""
    command = [sys.executable, "-c", CHILD, str(ROOT / "scripts" / "remora.py"), str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=folder)
    found: Record = json.loads(done.stdout.splitlines()[-1])
    return found


def cells(row: Record) -> list[str]:
    """One line of the table."""
    goal = "-" if row["goal_met"] is None else f"< {duration(GOAL)} {'met' if row['goal_met'] else 'missed'}"
    return [row["what"], duration(row["median_s"]), duration(row["minimum_s"]), goal]


if __name__ == "__main__":
    sys.exit(main())
