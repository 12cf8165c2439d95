"""Use the embedded web UI hard while things go wrong around it: `python -m tests.soak`.

Two web UIs in processes of their own have the same data and LoRA folder. Four clients make pictures, search, and keep
presets, notes, regions and stacks; another program edits the presets, too. Files come, go, change and break; disks
are full or read-only, locks are held, processes are stopped and killed.

Every answer must be right, or a sentence that a fault explains; a picture of the same parameters must have the same
bits; what was acknowledged must be kept; memory, open files and threads must not grow.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from PIL import Image

from .clients import Client, Crowd
from .faults import LORAS, STABLE, Churn, Disk, Editor, Faults, with_own_mounts
from .ledger import Ledger, Sample
from .served import ROOT, Served

CLIENTS = 4
BOUNDS = {"memory": 64, "files": 40, "threads": 4}
"""How much a server may have more at the end than after its warm-up: megabytes, open files, threads.

An engine keeps 32 files of LoRA open; after the warm-up it has used the few that stay, and hardly any that change.
"""
_CHECK_EVERY = 60.0  # seconds
_WARM_UP = 0.25  # of the whole time, but no longer than
_WARM_UP_AT_MOST = 240.0  # seconds
_WARM_PICTURES = 20  # of a server that was started anew
_IDLE = 15.0  # seconds until threads that nobody needs have ended
_SETTLED = 30.0  # seconds in which the list of files must be true again


def main(argv: Sequence[str] | None = None) -> int:
    """Run to the end; returns the exit status: 1 where anything was wrong."""
    parser = argparse.ArgumentParser(prog="python install.py soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (default: 5)")
    parser.add_argument("--seed", type=int, default=26)
    parser.add_argument("--one", action="store_true", help="one web UI and no faults but those of files: a short look")
    arguments = parser.parse_args(argv)
    if not arguments.one:
        with_own_mounts()
    runs = ROOT / "runs" / "soak" / time.strftime("%Y%m%d-%H%M%S")
    runs.mkdir(parents=True)
    with TemporaryDirectory(prefix="remora-soak-") as folder:
        soak = Soak(Path(folder), runs, arguments.seed, one=arguments.one)
        with ExitStack() as leaving:
            leaving.callback(soak.close)
            soak.run(arguments.minutes * 60)
    text = soak.table()
    (runs / "table.md").write_text(text, encoding="utf-8")
    print(text)
    print(f"\nLogs: {runs}")
    return 1 if soak.ledger.wrong else 0


class Soak:
    """One run.

    Args:
        folder: where the servers' files are.
        runs: where logs are kept.
        seed: of all that is drawn.
        one: start one server, and do nothing to it.
    """

    def __init__(self, folder: Path, runs: Path, seed: int, *, one: bool) -> None:
        self.ledger = Ledger(runs)
        self._one = one
        self._seconds = 0.0
        self._saved = self._strange = self._left = 0
        self._samples: dict[str, list[Sample]] = {}
        self._runs = runs
        self._disk = Disk(folder)
        self._loras, self._data, self._pictures = (folder / name for name in ("loras", "data", "pictures"))
        shutil.copytree(LORAS, self._loras)
        self._data.mkdir()
        names = "a" if one else "ab"
        self._servers = [Served(name, self._loras, self._data, self._pictures, runs, self.ledger) for name in names]
        self._churn = Churn(self._loras, self.ledger, Random(f"{seed}/files"))
        self._editor = None if one else Editor(self._data, self.ledger, Random(f"{seed}/editor"))
        self._faults = Faults(self._servers, self._disk, self._data, self.ledger, Random(f"{seed}/faults"))
        self._random = Random(f"{seed}/order")
        clients = [
            Client(f"c{number}", self._servers, self._churn, self.ledger, f"{seed}/{number}")
            for number in range(CLIENTS)
        ]
        self._crowd = Crowd(clients, self.ledger)

    def run(self, seconds: float) -> None:
        """Use the servers for so long, with looks at all that is kept in between."""
        started = time.monotonic()
        for server in self._servers:
            server.start()
        say(f"{len(self._servers)} web UI run, as processes {', '.join(str(server.pid) for server in self._servers)}")
        self._crowd.clients[0].settle()
        if not self._one:
            self._warm_up()
        began = time.monotonic()
        warm = began + min(seconds * _WARM_UP, _WARM_UP_AT_MOST)
        faults = self._endless()
        while (now := time.monotonic()) < began + seconds:
            self._go()
            until = min(now + _CHECK_EVERY, began + seconds, *([warm] if now < warm else []))
            while (left := until - time.monotonic()) > 0:
                if self._one or left < 20:
                    time.sleep(left)
                else:
                    time.sleep(self._random.uniform(1, 4))
                    self._faults.inject(next(faults))
            self._check(measured=time.monotonic() >= warm)
            say(self._line(time.monotonic() - began))
        if not self._one:
            self._kill_all()
        self._crowd.end()
        for server in self._servers:
            server.end()
        self._seconds = time.monotonic() - started
        self._look_at_what_is_left()

    def close(self) -> None:
        """Leave nothing running."""
        for server in self._servers:
            if server.process is not None and server.process.poll() is None:
                server.kill()
        self._churn.end()
        if self._editor is not None:
            self._editor.end()
        if not self._disk.why_not:
            os.system(f"umount {self._disk.folder}")

    def _warm_up(self) -> None:
        """Make each picture that will come again once on each server."""
        client = self._crowd.clients[0]
        for client.server in self._servers:
            for request in client.pool.requests:
                client.paint(request)

    def _endless(self) -> Iterator[Callable[[], None]]:
        while True:
            kinds = list(self._faults.all)
            self._random.shuffle(kinds)
            yield from kinds

    def _go(self) -> None:
        self._churn.go()
        if self._editor is not None:
            self._editor.go()
        self._crowd.go()

    def _pause(self) -> None:
        self._crowd.pause()
        self._churn.pause()
        if self._editor is not None:
            self._editor.pause()

    def _check(self, *, measured: bool) -> None:
        """Make all pause, look at all that is kept on each server, and measure them."""
        self._pause()
        for client, server in ((client, server) for client in self._crowd.clients[:1] for server in self._servers):
            client.server = server
            client.look_at_everything()
            self._look_at_files(client)
            client.compare_lists()
        self._look_at_pictures()
        if measured and not self._one:
            time.sleep(_IDLE)
            for server in [one for one in self._servers if one.painted >= _WARM_PICTURES]:
                sample = server.sample()
                self._samples.setdefault(f"{server.name}{server.starts}", []).append(sample)

    def _look_at_files(self, client: Client) -> None:
        """Wait until the list of files is what is there."""
        wanted = {name: self._churn.state(name) for name in self._churn.names}
        until = time.monotonic() + _SETTLED
        while True:
            answer = client.ask("files", "POST", "/remora/v1/refresh")
            if answer is None:
                return
            told = {one["name"].rpartition("/")[2]: one for one in answer.json["loras"]}
            wrong = [
                f"{name} is {state.what}, and listed as {told.get(name, 'not there')!r:.300}"
                for name, state in wanted.items()
                if state.steady and (name in told and told[name]["readable"]) != state.good
            ]
            wrong += [f"{name} is not listed" for name in STABLE if name not in told or not told[name]["readable"]]
            if not wrong and not answer.json["scan"]["running"]:
                return
            if time.monotonic() > until:
                for text in wrong or ["the files are still being read"]:
                    self.ledger.went_wrong("files", f"on server {client.server.name}, after {_SETTLED:.0f} s: {text}")
                return
            time.sleep(0.5)

    def _look_at_pictures(self) -> None:
        """See that all pictures that were saved are there, and those that were made; then make room."""
        found = sorted(self._pictures.glob("*.png")) if self._pictures.is_dir() else []
        for path in found:
            try:
                with Image.open(path) as picture:
                    infotext, pixels = picture.info["parameters"], picture.tobytes()
            except (OSError, ValueError, KeyError, SyntaxError) as error:
                self.ledger.went_wrong("saved", f"{path.name} is damaged: {error!r}")
                continue
            known = self.ledger.is_known(infotext, pixels)
            self._strange += known is None  # of an answer that was lost with its server, or of a file that changed
            if known is False and "<lora:change" not in infotext:
                self.ledger.went_wrong("saved", f"{path.name} is not the picture that was sent: {infotext}")
            path.unlink()
        self._saved += len(found)
        if self._saved < self.ledger.saved:
            self.ledger.went_wrong("saved", f"{self.ledger.saved} pictures were said to be saved, {self._saved} were")
            self._saved = self.ledger.saved

    def _kill_all(self) -> None:
        """Kill each server while it is used, start it again, and look at all that is kept."""
        self._go()
        for server in self._servers:
            time.sleep(2)
            with self.ledger.fault("killed", server.name):
                server.kill()
                server.start()
        self._check(measured=False)

    def _look_at_what_is_left(self) -> None:
        """Look for temporary files: a process that was killed may leave one in each folder that it was writing to."""
        left = [path for folder in (self._loras, self._data) for path in folder.rglob(".remora-*.tmp")]
        kills = self.ledger.injected["killed"]
        self._left = len(left)
        if len(left) > 2 * kills:
            self.ledger.went_wrong("files", f"{len(left)} temporary files are left of {kills} kills: {left[:5]}")

    def _growth(self) -> dict[str, list[tuple[str, float, float]]]:
        """Return what each server that was measured twice had after the warm-up, and at the end."""
        found: dict[str, list[tuple[str, float, float]]] = {name: [] for name in BOUNDS}
        for name, samples in self._samples.items():
            if len(samples) > 1:
                first, last = samples[0], samples[-1]
                found["memory"].append((name, first.rss / 2**20, last.rss / 2**20))
                found["files"].append((name, first.files, last.files))
                found["threads"].append((name, first.threads, last.threads))
        return found

    def judge_growth(self) -> list[str]:
        """Return what grew too much, and count it as wrong."""
        wrong = [
            f"server {name}: {what} grew from {first:.0f} to {last:.0f}, more than by {BOUNDS[what]}"
            for what, values in self._growth().items()
            for name, first, last in values
            if last - first > BOUNDS[what]
        ]
        for text in wrong:
            self.ledger.went_wrong("growth", text)
        return wrong

    def _line(self, seconds: float) -> str:
        ledger = self.ledger
        memory = ", ".join(f"{server.name} {server.sample().rss >> 20} MB" for server in self._servers)
        return (
            f"{seconds / 60:.1f} min: {sum(ledger.requests.values()):,} requests, {ledger.pictures} pictures, "
            f"{len(ledger.wrong)} wrong; {memory}"
        )

    def table(self) -> str:
        """Return what happened, as a table."""
        ledger = self.ledger
        grown = self._growth()
        self.judge_growth()
        rows = [
            ("minutes", f"{self._seconds / 60:.1f}"),
            ("requests", f"{sum(ledger.requests.values()):,}"),
            *((f"- {kind}", f"{number:,}") for kind, number in sorted(ledger.requests.items())),
            ("answers by status", ", ".join(f"{status}: {n:,}" for status, n in sorted(ledger.statuses.items()))),
            ("pictures", f"{ledger.pictures:,}, {ledger.pictures_again:,} of them for parameters that had come before"),
            ("saved", f"{self._saved:,}, {self._strange} of them of lost answers or changing files"),
            ("interrupted", f"{ledger.cancelled:,}"),
            ("conflicts told by 412", f"{ledger.conflicts:,}"),
            ("changes whose answer was lost", f"{ledger.lost:,}"),
            ("edits by another program", f"{self._editor.edits if self._editor is not None else 0:,}"),
            *(
                (f"{what} of servers, warm → at the end", told(values) + f" (bound: +{BOUNDS[what]})")
                for what, values in grown.items()
            ),
            ("faults", f"{sum(ledger.injected.values()):,}"),
            *((f"- {name}", f"{number:,}") for name, number in sorted(ledger.injected.items())),
            *((f"- {name.replace('_', ' ')}", f"skipped: {why}") for name, why in self._faults.skipped.items()),
            ("errors that a fault explains", f"{sum(ledger.refusals.values()):,}"),
            *((f"- {text}", f"{number:,}") for text, number in ledger.refusals.most_common(12)),
            ("temporary files left of kills", f"{self._left}"),
            ("wrong", f"{len(ledger.wrong):,}"),
            *((f"- {text:.160}", "") for text in ledger.wrong[:20]),
        ]
        lines = [f"| {name} | {value} |" for name, value in (("what", "value"), ("---", "---"), *rows)]
        return "\n".join(lines)


def told(values: list[tuple[str, float, float]]) -> str:
    return "; ".join(f"{name}: {first:.0f} → {last:.0f}" for name, first, last in values) or "not measured twice"


def say(text: str) -> None:
    print(f"soak: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
