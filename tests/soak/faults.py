"""What goes wrong around the web UI of a soak: files, disks, locks and processes."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from filelock import FileLock

from extension.store import LOCK_FILE

from .ledger import Ledger
from .served import ROOT, Served

LORAS = ROOT / "demo" / "loras"
STABLE = ("neon", "night", "outline", "stars", "stripes", "zorp")
"""The LoRA that stay."""
_DISK = 96 << 20  # bytes
_PAGE = 4096
_PERIOD = 0.7  # seconds between two changes of files
_IN_MOUNTS = "REMORA_SOAK_OWN_MOUNTS"


class SkippedFault(Exception):  # noqa: N818
    """A fault that cannot be injected here; the text says why."""


@dataclass(frozen=True)
class Churned:
    """One of the files that come and go, as it is now."""

    what: str
    good: bool
    """Pictures can be made with it."""
    version: int
    steady: bool = True
    """Nothing is changing it."""


class Churn:
    """Changes files of a LoRA folder all the time, on a thread of its own.

    Args:
        folder: the LoRA folder.
        ledger: counts what was done.
        random: what is done.
    """

    def __init__(self, folder: Path, ledger: Ledger, random: Random) -> None:
        self._folder = folder / "changing"
        self._folder.mkdir()
        self._ledger = ledger
        self._random = random
        self.names = [f"change{number}" for number in range(6)]
        self._states = {name: Churned("absent", False, 0) for name in self.names}
        self._go, self._end, self._busy = threading.Event(), threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def state(self, name: str) -> Churned:
        return self._states[name]

    def go(self) -> None:
        self._go.set()

    def pause(self) -> None:
        """Wait until no file is being changed."""
        self._go.clear()
        with self._busy:
            return

    def end(self) -> None:
        self._end.set()
        self._go.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(_PERIOD * self._random.random() * 2):
            self._go.wait()
            with self._busy:
                if self._go.is_set() and not self._end.is_set():
                    self._change(self._random.choice(self.names))

    def _change(self, name: str) -> None:
        path = self._folder / f"{name}.safetensors"
        before = self._states[name]
        self._states[name] = replace(before, steady=False)
        what, good = "damaged", False
        try:
            what, good, change = self._random.choice(self._changes)
            change(path)
        except OSError as error:  # of the faults of the disk
            if not self._ledger.explained("", (time.monotonic(), time.monotonic())):
                self._ledger.went_wrong("soak", f"{path} cannot be made {what}: {error}")
            # nobody knows what is there now
            what, good = f"half {what}", False
            self._states[name] = Churned(what, good, before.version + 1, steady=False)
            return
        with self._ledger.lock:
            self._ledger.injected[f"file {what}"] += 1
        self._states[name] = Churned(what, good, before.version + 1)

    @property
    def _changes(self) -> tuple[tuple[str, bool, Callable[[Path], None]], ...]:
        return (
            ("absent", False, remove),
            ("good", True, self._put_good),
            ("good", True, self._put_good),
            ("good, by a link", True, self._link),
            ("truncated", False, lambda path: self._put(path, self._some()[: self._random.randrange(1, 60_000)])),
            ("empty", False, lambda path: self._put(path, b"")),
            ("garbage", False, lambda path: self._put(path, self._random.randbytes(5000))),
            ("a header without end", False, lambda path: self._put(path, b"\xff" * 7 + b"\x7f{" + b" " * 5000)),
            ("a header of garbage", False, lambda path: self._put(path, (400).to_bytes(8, "little") + b"{" * 400)),
            ("a pipe", False, instead(os.mkfifo)),
            ("a link to /dev/zero", False, instead(lambda path: path.symlink_to("/dev/zero"))),
            ("a link to nothing", False, instead(lambda path: path.symlink_to("nowhere"))),
            ("a folder", False, instead(Path.mkdir)),
            ("good, after quick replacements", True, self._replace_often),
            ("good, after a copy over it", True, self._copy_over),
            ("truncated where it lies", False, self._truncate),
            ("good, with notes that are none", True, lambda path: self._put_beside(path, ".json")),
            ("good, with a picture that is none", True, lambda path: self._put_beside(path, ".png")),
        )

    def _some(self) -> bytes:
        return (LORAS / f"{self._random.choice(STABLE)}.safetensors").read_bytes()

    def _put(self, path: Path, content: bytes) -> None:
        new = path.with_suffix(".new")
        new.write_bytes(content)
        remove(path)
        new.replace(path)

    def _put_good(self, path: Path) -> None:
        self._put(path, self._some())

    def _link(self, path: Path) -> None:
        remove(path)
        path.symlink_to(LORAS / f"{self._random.choice(STABLE)}.safetensors")

    def _replace_often(self, path: Path) -> None:
        for _ in range(10):
            new = path.with_suffix(".new")
            new.write_bytes(self._some())
            if path.is_dir() or path.is_symlink():
                remove(path)
            new.replace(path)
            time.sleep(0.03)

    def _copy_over(self, path: Path) -> None:
        """Write into the file that is there, as `cp` does."""
        if not path.is_file() or path.is_symlink():
            remove(path)
        content = self._some()
        with path.open("wb", buffering=0) as stream:
            for start in range(0, len(content), 1 << 16):
                stream.write(content[start : start + (1 << 16)])
                time.sleep(0.02)

    def _truncate(self, path: Path) -> None:
        self._put_good(path)
        time.sleep(0.5)
        os.truncate(path, self._random.randrange(1, 60_000))

    def _put_beside(self, path: Path, suffix: str) -> None:
        self._put_good(path)
        beside = path.with_suffix(suffix)
        remove(beside)
        match self._random.randint(1, 4):
            case 1:
                os.mkfifo(beside)
            case 2:
                beside.symlink_to("/dev/zero")
            case 3:
                beside.write_bytes(self._random.randbytes(3000))
            case _:
                beside.write_text("[" * 5000)


def remove(path: Path) -> None:
    """Remove whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Return what makes something in place of whatever is there."""

    def change(path: Path) -> None:
        remove(path)
        make(path)

    return change


class Disk:
    """The folder that all of the servers' files are in: a small disk of its own, where one can be mounted.

    Args:
        folder: where it is mounted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.why_not = "" if _IN_MOUNTS in os.environ else "no disk can be mounted here"
        if not self.why_not:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "soak", folder], check=True)

    @contextmanager
    def full(self) -> Iterator[None]:
        """Leave no room in a `with` statement.

        Raises:
            SkippedFault: it is no disk of its own.
        """
        if self.why_not:
            raise SkippedFault(self.why_not)
        filler, over = self.folder / "filler", threading.Event()
        with filler.open("wb", buffering=0) as stream:
            thread = threading.Thread(target=self._fill, args=(stream.fileno(), over), daemon=True)
            thread.start()
            try:
                yield
            finally:
                over.set()
                thread.join()
                filler.unlink()

    @staticmethod
    def _fill(handle: int, over: threading.Event) -> None:
        """Take whatever room there is, again and again, as files go all the time."""
        while not over.is_set():
            for size in (1 << 20, _PAGE):
                while not over.is_set() and _wrote(handle, b"\0" * size):
                    pass
            over.wait(0.02)

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Let nothing be written in a `with` statement.

        Raises:
            SkippedFault: it cannot be done here.
        """
        if not self.why_not:
            self._remount("ro")
            try:
                yield
            finally:
                self._remount("rw")
            return
        if os.geteuid() == 0:
            raise SkippedFault(f"{self.why_not}, and root writes to any folder")
        folders = [self.folder, *(path for path in self.folder.rglob("*") if path.is_dir() and not path.is_symlink())]
        modes = [(folder, folder.stat().st_mode) for folder in folders]
        try:
            for folder in folders:
                folder.chmod(0o555)
            yield
        finally:
            for folder, mode in modes:
                if folder.exists():
                    folder.chmod(mode)

    def _remount(self, mode: str) -> None:
        for _ in range(
            500
        ):  # as long as somebody is writing it is refused; of the mount, as files that are mapped were removed
            done = subprocess.run(["mount", "-o", f"remount,bind,{mode}", self.folder], capture_output=True, text=True)
            if done.returncode == 0:
                return
            time.sleep(0.01)
        raise SkippedFault(f"the disk cannot be mounted {mode}: {done.stderr.strip()}")


def _wrote(handle: int, content: bytes) -> bool:
    try:
        return os.write(handle, content) == len(content)
    except OSError:
        return False


def with_own_mounts() -> None:
    """Begin again where mounts are this program's own and end with it, if that can be had."""
    if _IN_MOUNTS in os.environ or sys.platform != "linux":
        return
    ways = [["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]]
    for way in ways:
        probe = [*way, "sh", "-c", "d=$(mktemp -d) && mount -t tmpfs soak $d && umount $d && rmdir $d"]
        try:
            if subprocess.run(probe, capture_output=True).returncode == 0:
                command = [*way, sys.executable, "-m", "tests.soak", *sys.argv[1:]]
                os.execvpe(command[0], command, {**os.environ, _IN_MOUNTS: "1"})
        except FileNotFoundError:  # no such program
            return


class Faults:
    """Everything that is done to the servers on purpose.

    Args:
        servers: the first one lives as long as it can, the second one suffers.
        disk: that their files are on.
        data: their data folder.
        ledger: is told of all.
        random: how long each takes.
    """

    def __init__(self, servers: list[Served], disk: Disk, data: Path, ledger: Ledger, random: Random) -> None:
        self._servers, self._disk, self._data, self._ledger, self._random = servers, disk, data, ledger, random
        self.skipped: dict[str, str] = {}

    @property
    def all(self) -> tuple[Callable[[], None], ...]:
        return (
            self.kill,
            self.full_disk,
            self.locked_database,
            self.read_only,
            self.kill,
            self.no_growth,
            self.locked_folder,
            self.damaged_database,
            self.stopped_process,
            self.end,
        )

    def inject(self, fault: Callable[[], None]) -> None:
        """Inject one and see that it is over; what cannot be done here is noted."""
        try:
            fault()
        except SkippedFault as error:
            self.skipped[fault.__name__] = str(error)
        for server in self._servers:
            if server.up.is_set() and server.process is not None and server.process.poll() is not None:
                self._ledger.went_wrong("end", f"server {server.name} ended by itself with {server.process.returncode}")
                with self._ledger.fault("killed", server.name):
                    server.up.clear()
                    server.start()

    def _some_time(self, least: float, most: float) -> None:
        time.sleep(self._random.uniform(least, most))

    def kill(self) -> None:
        """Kill a server in the middle of what it does, and start it again."""
        server = self._servers[-1]
        with self._ledger.fault("killed", server.name):
            self._some_time(0, 0.5)
            server.kill()
            server.start()

    def end(self) -> None:
        """End a server as by Ctrl+C, and start it again."""
        server = self._servers[-1]
        with self._ledger.fault("ended and started again", server.name):
            server.end()
            server.start()

    def full_disk(self) -> None:
        with self._ledger.fault("disk full"), self._disk.full():
            self._some_time(3, 8)

    def read_only(self) -> None:
        with self._ledger.fault("disk read-only"), self._disk.read_only():
            self._some_time(3, 8)

    def no_growth(self) -> None:
        """Let a server's files not grow, as a quota does."""
        if not hasattr(resource, "prlimit"):
            raise SkippedFault("this system sets no limits of other processes")
        server = self._servers[-1]
        limits = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        with self._ledger.fault("quota reached", server.name):
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
            self._some_time(3, 8)
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, limits)

    def locked_database(self) -> None:
        """Hold the database as another program does."""
        with self._ledger.fault("database locked"):
            database = sqlite3.connect(self._data / "catalog.sqlite3", timeout=20, isolation_level=None)
            try:
                database.execute("BEGIN EXCLUSIVE")
                self._some_time(3, 12)
            finally:
                database.close()

    def damaged_database(self) -> None:
        with self._ledger.fault("database damaged"):
            (self._data / "catalog.sqlite3").write_bytes(self._random.randbytes(20_000))
            self._some_time(1, 2)

    def locked_folder(self) -> None:
        """Hold the data folder's lock as another program does that hangs."""
        with self._ledger.fault("folder locked"), FileLock(str(self._data / LOCK_FILE)):
            self._some_time(3, 12)

    def stopped_process(self) -> None:
        """Stop a server for some time, wherever it is."""
        server = self._servers[-1]
        with self._ledger.fault("process stopped"):
            os.kill(server.pid, signal.SIGSTOP)
            self._some_time(2, 11)
            os.kill(server.pid, signal.SIGCONT)


class Editor:
    """Another program that edits the presets, see `editor.py`.

    Args:
        data: the data folder.
        ledger: is told of all.
        random: what is edited.
    """

    def __init__(self, data: Path, ledger: Ledger, random: Random) -> None:
        command = [sys.executable, "-m", "tests.soak.editor", str(data)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        self._ledger, self._random = ledger, random
        self._go, self._end, self._busy = threading.Event(), threading.Event(), threading.Lock()
        self.edits = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go(self) -> None:
        self._go.set()

    def pause(self) -> None:
        self._go.clear()
        with self._busy:
            return

    def end(self) -> None:
        self._end.set()
        self._go.set()
        self._thread.join()
        assert self._process.stdin is not None, "it was started with a pipe"
        self._process.stdin.close()
        if self._process.wait(30) != 0:
            self._ledger.went_wrong("editor", f"it ended with {self._process.returncode}")

    def _run(self) -> None:
        while not self._end.wait(self._random.random() * 0.4):
            self._go.wait()
            with self._busy:
                if self._go.is_set() and not self._end.is_set():
                    self._edit()

    def _edit(self) -> None:
        assert self._process.stdin is not None, "it was started with a pipe"
        assert self._process.stdout is not None, "it was started with a pipe"
        self.edits += 1
        name = f"{self._random.choice(['edited', 'shared'])} {self._random.randint(1, 4)}"
        text = f"<lora:zorp:0.5> edit {self.edits}" if self._random.random() < 0.8 else None
        pending = self._ledger.writing("presets", {name: text})
        began = time.monotonic()
        self._process.stdin.write(f"{json.dumps([name, text])}\n")
        self._process.stdin.flush()
        said = json.loads(self._process.stdout.readline())
        if said == "kept":
            pending.kept()
            return
        pending.refused()
        absent = text is None and "there is no preset" in said
        if not absent and not self._ledger.explained("", (began, time.monotonic())):
            self._ledger.went_wrong("editor", f"it was {said}, and no fault explains it")
