"""The embedded web UI in a process of its own, as a soak starts, kills and measures it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import psutil

from .ledger import Ledger, Sample

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "demo" / "remora-shapes"
_SETTINGS = {"remora_ready_mb": 16, "remora_cache_mb": 64}
"""Stacks and files that are kept in memory for later, by default in gigabytes, would hide what grows without end."""
_START = 180.0  # seconds
_END = 60.0


class Served:
    """One web UI, which can be started again.

    Args:
        name: of one letter.
        loras: its LoRA folder.
        data: its data folder.
        pictures: where it saves pictures.
        runs: where its log is written.
        ledger: is told of tracebacks in its log.
    """

    def __init__(self, name: str, loras: Path, data: Path, pictures: Path, runs: Path, ledger: Ledger) -> None:
        self.name = name
        self.folders = loras, data, pictures
        self._log = runs / f"server-{name}.log"
        self._ledger = ledger
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.up = threading.Event()
        self.process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self.starts = 0
        self.painted = 0
        """Pictures since the start; the first ones bring in what stays."""

    @property
    def pid(self) -> int:
        assert self.process is not None, "it was not started"
        return self.process.pid

    def start(self) -> None:
        """Start it and wait until it answers."""
        loras, data, pictures = self.folders
        command = [sys.executable, "-m", "extension.standalone", f"--model={MODEL}", "--no-browser", "--device=cpu"]
        command += [f"--port={self.port}", f"--lora-dir={loras}", f"--data-dir={data}"]
        command += [f"--output-dir={pictures}"]
        # one thread: bits of pictures depend on their number, and several wait for each other on cores that others use
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        # a pipe: a full disk, or one that cannot be written to, must not be what ends the log
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()
        self.starts += 1
        self.painted = 0
        until = time.monotonic() + _START
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise RuntimeError(f"server {self.name} ended with {self.process.returncode}; see {self._log}")
            try:
                httpx.get(f"{self.url}/remora/v1/state", timeout=5)
            except httpx.TransportError:
                time.sleep(0.2)
            else:
                httpx.post(f"{self.url}/sdapi/v1/options", json=_SETTINGS, timeout=60).raise_for_status()
                self.up.set()
                return
        raise RuntimeError(f"server {self.name} did not answer within {_START:.0f} s; see {self._log}")

    def kill(self) -> None:
        """Kill it as the system does when memory runs out."""
        self.up.clear()
        assert self.process is not None, "it was not started"
        self.process.kill()
        self.process.wait()
        self._read_out()

    def end(self) -> None:
        """Have it end as by Ctrl+C; what is not clean about that is wrong."""
        self.up.clear()
        process = self.process
        if process is None:
            return
        if process.poll() is not None:
            self._ledger.went_wrong("end", f"server {self.name} had ended by itself, with {process.returncode}")
            return
        process.send_signal(signal.SIGINT)
        try:
            status = process.wait(_END)
        except subprocess.TimeoutExpired:
            self._ledger.went_wrong("end", f"server {self.name} did not end within {_END:.0f} s of SIGINT")
            self.kill()
            return
        self._read_out()
        if status != 0:
            self._ledger.went_wrong("end", f"server {self.name} ended with {status} at SIGINT")

    def sample(self) -> Sample:
        """Measure it."""
        process = psutil.Process(self.pid)
        with process.oneshot():
            return Sample(time.monotonic(), process.memory_info().rss, process.num_fds(), process.num_threads())

    def _read_out(self) -> None:
        if self._reader is not None:
            self._reader.join(10)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None, "it was started with a pipe"
        traceback: list[str] = []
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"== start {time.strftime('%H:%M:%S')}, process {process.pid}\n")
            for raw in process.stdout:
                line = raw.decode("utf-8", "replace")
                log.write(line if line.startswith("\r") else f"{time.strftime('%H:%M:%S')} {line}")
                log.flush()
                if line.startswith(("Traceback", "  + Exception Group Traceback")):
                    traceback = [line.rstrip()]
                elif traceback and line.startswith((" ", "\t")):
                    traceback.append(line.rstrip())
                elif traceback:
                    text = f"server {self.name} logged {line.strip()}"
                    self._ledger.went_wrong("log", text, traceback=[*traceback, line.rstrip()])
                    traceback = []
