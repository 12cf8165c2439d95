"""A process that tries inputs of one target: those that Hypothesis makes, and changed ones that Atheris chooses."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import NoReturn

from hypothesis import HealthCheck, Phase, given, seed, settings

from .changes import changed_bytes
from .faults import Trial, where_from
from .target import Target, all_targets, is_there

HANG = 20.0  # seconds of one input, after which the process ends
_LIMIT = 4 << 30  # bytes of addresses beyond those in use at the start; what takes more fails, and the machine lives
_LONGEST = 1 << 16  # bytes of an input
_BATCH = 200  # inputs of Hypothesis in one go
_SHARE = 0.25  # of the inputs, or of the time, that are Hypothesis's
_SHRINK = 4.0  # seconds that a fault is made smaller for


@contextmanager
def instrumented() -> Iterator[None]:
    """Have what is imported tell which parts of it an input reaches, where Atheris is there."""
    if is_there("atheris"):
        import atheris

        with atheris.instrument_imports(include=["extension", "lib_lora"]):
            yield
    else:
        yield


class Run:
    """Tries inputs until time or number are up, and writes down what they came to.

    Args:
        name: of the target.
        folder: where faults, the growing corpus and the figures are kept.
        seconds: that it takes at most, without its start.
        count: inputs at most; 0 for no end.
    """

    def __init__(self, name: str, folder: Path, seconds: float, count: int) -> None:
        with instrumented():
            self.target: Target = all_targets()[name]
            self._warm_up()
        self.trial = Trial(self.target)
        self._faults = folder / "faults" / name
        self._corpus = folder / "corpus" / name
        self._figures = folder / "figures" / f"{name}.json"
        for one in (self._faults, self._corpus, self._figures.parent):
            one.mkdir(parents=True, exist_ok=True)
        self._kinds: dict[str, bytes] = {}
        self._seconds, self._count = seconds, count or sys.maxsize
        self._begun = time.perf_counter()
        self._current = _shared(self._figures.with_suffix(".input"))
        self._random = Random(time.time_ns())
        self._saving = threading.Lock()
        _limit_memory()

    def _warm_up(self) -> None:
        """Import what the target imports late."""
        for path in self.target.seeds[:3]:
            try:
                self.target.run(path.read_bytes())
            except Exception:  # noqa: BLE001  # it is tried, and told of, with the others
                continue

    def all(self) -> NoReturn:
        """Try inputs to the end, and end the process."""
        threading.Thread(target=self._watch, daemon=True).start()
        for data in self._kept():
            self.one(data)
        self._by_hypothesis()
        if is_there("atheris"):
            self._by_atheris()
        self._by_chance()

    def one(self, data: bytes) -> None:
        """Try one input; ends the process when it is time."""
        if self._is_over(1.0):
            self._end()
        self._current[: 4 + len(data[:_LONGEST])] = len(data[:_LONGEST]).to_bytes(4, "little") + data[:_LONGEST]
        try:
            self.trial(data)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is noted
            self._note(data, error)

    def _is_over(self, share: float) -> bool:
        figures = self.trial.figures
        figures.seconds = time.perf_counter() - self._begun
        return figures.executions >= self._count * share or figures.seconds > self._seconds * share

    def _kept(self) -> Iterator[bytes]:
        for path in (*self.target.seeds, *sorted(self._corpus.iterdir()), *sorted(self._faults.glob("[!.]*"))):
            if path.suffix != ".txt":
                yield path.read_bytes()

    def _by_hypothesis(self) -> None:
        number = 0
        while not self._is_over(_SHARE):
            number += 1

            @seed(self._random.getrandbits(64))
            @settings(
                max_examples=_BATCH,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(self.target.inputs)
            def some(data: bytes) -> None:
                if not self._is_over(_SHARE):
                    self.one(data)
                    if self._random.random() < 0.02:
                        self._keep(data)

            some()

    def _keep(self, data: bytes) -> None:
        """Put an input to those that are changed."""
        (self._corpus / hashlib.sha256(data).hexdigest()[:40]).write_bytes(data)

    def _by_atheris(self) -> None:
        import atheris

        def change(data: bytes, most: int, number: int) -> bytes:
            return self._changed(bytes(data), Random(number))[:most]

        folders = [str(self._corpus), *{str(path.parent) for path in self.target.seeds}]
        flags = [
            f"-max_len={_LONGEST}",
            f"-artifact_prefix={self._figures.parent}/",
            "-timeout=1000000",
            "-rss_limit_mb=0",
            "-verbosity=0",
        ]
        atheris.Setup([sys.argv[0], *flags, *folders], self.one, custom_mutator=change)
        atheris.Fuzz()

    def _by_chance(self) -> NoReturn:
        """Change inputs by chance, where nothing tells which of them reach something new."""
        pool = list(self._kept()) or [b""]
        while True:
            data = self._random.choice(pool)
            for _ in range(self._random.choice((1, 1, 2, 5))):
                data = self._changed(data, self._random)
            self.one(data)
            if self._random.random() < 0.05:
                pool[self._random.randrange(len(pool))] = data

    def _changed(self, data: bytes, random: Random) -> bytes:
        try:
            return self.target.change(data, random)
        except Exception as error:  # noqa: BLE001  # a fault of this folder, which must not end the run
            self._write(data, error, f"no change: {where_from(error)}")
            self._kinds["no change"] = data
            return changed_bytes(data, random)

    def _note(self, data: bytes, error: Exception) -> None:
        """Keep a fault of a kind that is new, made as small as is quick."""
        kind = where_from(error)
        if kind in self._kinds:
            return
        self._kinds[kind] = data
        until = time.perf_counter() + _SHRINK
        self._write(_smaller(data, lambda one: self._is(one, kind), until), error, kind)
        self._begun += time.perf_counter() - until + _SHRINK  # not a part of the run

    def _is(self, data: bytes, kind: str) -> bool:
        executions = self.trial.figures.executions
        try:
            self.trial(data)
        except Exception as error:  # noqa: BLE001  # as above
            return where_from(error) == kind
        finally:
            self.trial.figures.executions = executions
        return False

    def _write(self, data: bytes, error: BaseException | None, kind: str, text: str = "") -> None:
        path = self._faults / hashlib.sha256(kind.encode()).hexdigest()[:12]
        path.write_bytes(data)
        text = text or "".join(traceback.format_exception(error))
        path.with_suffix(".txt").write_text(f"{kind}\n\n{text}", encoding="utf-8", errors="replace")

    def _watch(self) -> None:
        """Write the figures down now and then, and end the process where one input takes for ever."""
        main = threading.main_thread().ident
        while True:
            time.sleep(0.5)
            self._save()
            since = self.trial.since
            if since and time.perf_counter() - since > HANG:
                frames = sys._current_frames()
                stack = "".join(traceback.format_stack(frames[main])) if main in frames else ""
                self._kinds["hang"] = self.trial.current
                self.trial.figures.longest = HANG
                self._write(self.trial.current, None, f"it takes more than {HANG:g} s", stack)
                self._end()

    def _save(self) -> None:
        told = {**asdict(self.trial.figures), "faults": sorted(self._kinds), "atheris": is_there("atheris")}
        new = self._figures.with_suffix(".new")
        with self._saving:  # two threads do
            new.write_text(json.dumps(told))
            new.replace(self._figures)

    def _end(self) -> NoReturn:
        self._save()
        os._exit(0)  # libFuzzer would not let go, and threads of what is tested may hang


def _smaller(data: bytes, holds: object, until: float) -> bytes:
    """Take parts out of an input as long as it stays the same fault."""
    assert callable(holds)
    length = len(data) // 2
    while length:
        at = 0
        while at < len(data):
            less = data[:at] + data[at + length :]
            if time.perf_counter() > until:
                return data
            if holds(less):
                data = less
            else:
                at += length
        length //= 2
    return data


def _shared(path: Path) -> mmap.mmap:
    """Return memory that is in a file: it outlives the process, however that ends."""
    path.write_bytes(bytes(4 + _LONGEST))
    with path.open("r+b") as stream:
        return mmap.mmap(stream.fileno(), 0)


def last_input(path: Path) -> bytes:
    """Return the input that a process tried when it ended."""
    content = path.read_bytes()
    return content[4 : 4 + int.from_bytes(content[:4], "little")]


def _limit_memory() -> None:
    if sys.platform.startswith("linux"):
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _LIMIT, resource.RLIM_INFINITY))


def repeat(target: Target, path: Path) -> Sequence[str]:
    """Try one input that is kept; return what is wrong, as lines."""
    trial = Trial(target)
    try:
        trial(path.read_bytes())
    except Exception as error:  # noqa: BLE001  # whatever it is, that is what was asked for
        return traceback.format_exception(error)
    return []
