"""What the clients of a soak saw: what must be kept, which pictures must come again, which faults explain an error."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Span: TypeAlias = tuple[float, float]
"""When something began and when it had ended, by the monotonic clock."""
NEVER, EVER = float("-inf"), float("inf")
_LONGEST = 180.0  # seconds that a request may take
_REMEMBERED = 400  # changes of one collection


@dataclass(eq=False)
class Write:
    """One change of one value; None is its removal."""

    value: Any
    began: float
    ended: float = EVER
    """When its answer came, or its server was dead; until then it may be made at any time."""
    acknowledged: bool = False


class Register:
    """What one value may be, by the changes that were asked for: the last acknowledged one, or one beside it in time.

    A change whose answer was lost, as its server was killed, may have been made or not.
    """

    def __init__(self) -> None:
        self._writes = [Write(None, NEVER, NEVER, acknowledged=True)]

    def add(self, write: Write) -> None:
        """Note that a change is being asked for."""
        self._writes.append(write)
        self._writes = self._possible((write.began - _LONGEST, EVER))

    def drop(self, write: Write) -> None:
        """Note that it was refused."""
        self._writes.remove(write)

    def values(self, span: Span) -> list[Any]:
        """Return all that may have been read in a span."""
        return [write.value for write in self._possible(span)]

    def _possible(self, span: Span) -> list[Write]:
        """Return the changes that no acknowledged one had surely replaced when the span began."""
        over = [one.began for one in self._writes if one.acknowledged and one.ended <= span[0]]
        latest = max(over, default=NEVER)
        return [one for one in self._writes if one.ended >= latest and one.began <= span[1]]


class Pending:
    """Changes of values of one collection, made at once, of which nobody knows yet what became."""

    def __init__(
        self, ledger: Ledger, registers: Mapping[Hashable, Register], writes: Mapping[Hashable, Write]
    ) -> None:
        self._ledger, self._registers, self._writes = ledger, registers, writes
        self.mark = Write(None, time.monotonic())
        """Of all of them."""

    def kept(self) -> None:
        """They were acknowledged."""
        self._over(acknowledged=True)

    def refused(self) -> None:
        """They were refused, so nothing was changed."""
        with self._ledger.lock:
            for key, write in self._writes.items():
                self._registers[key].drop(write)
            self.mark.ended = NEVER

    def lost(self) -> None:
        """Return whether the server had died before it answered."""
        with self._ledger.lock:
            self._ledger.lost += 1
        self._over(acknowledged=False)

    def _over(self, *, acknowledged: bool) -> None:
        with self._ledger.lock:
            for write in (self.mark, *self._writes.values()):
                write.ended, write.acknowledged = time.monotonic(), acknowledged


@dataclass
class Fault:
    """Something bad that was done to the servers."""

    name: str
    server: str
    """Which one it was done to; empty is all."""
    began: float
    ended: float | None = None


class Ledger:
    """Counts and judges; used by all threads.

    Args:
        folder: where wrong answers are written down.
    """

    def __init__(self, folder: Path) -> None:
        self.lock = threading.RLock()
        self._log = folder / "wrong.jsonl"
        self._registers: dict[str, dict[Hashable, Register]] = defaultdict(lambda: defaultdict(Register))
        self._changes: dict[str, deque[Write]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
        self._faults: list[Fault] = []
        self._pictures: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self._unfinished: set[str] = set()
        """Digests of pictures that were interrupted; they have the parameters of finished ones."""
        self._interrupts: dict[str, deque[Write]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
        self.requests: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.wrong: list[str] = []
        self.injected: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        """Faults that were told in an answer, by the sentence's beginning."""
        self.saved = self.pictures = self.pictures_again = self.cancelled = self.conflicts = self.lost = 0

    def went_wrong(self, kind: str, text: str, **more: Any) -> None:
        """Count something wrong and write it down."""
        with self.lock:
            self.wrong.append(f"{kind}: {text}")
            with self._log.open("a", encoding="utf-8") as stream:
                when = time.strftime("%H:%M:%S")
                stream.write(json.dumps({"at": when, "kind": kind, "text": text, **more}, default=repr) + "\n")

    @contextmanager
    def fault(self, name: str, server: str = "") -> Iterator[None]:
        """Note that a fault is injected as long as a `with` statement lasts."""
        fault = Fault(name, server, time.monotonic())
        with self.lock:
            self.injected[name] += 1
            self._faults.append(fault)
        try:
            yield
        finally:
            fault.ended = time.monotonic()

    def explained(self, server: str, span: Span) -> list[str]:
        """Return the faults that a server suffered in a span."""
        with self.lock:
            return [
                fault.name
                for fault in self._faults
                if fault.server in ("", server)
                and fault.began <= span[1]
                and (fault.ended is None or fault.ended >= span[0])
            ]

    # what is kept

    def writing(self, what: str, values: Mapping[Hashable, Any]) -> Pending:
        """Note that values of one collection are about to be changed, all at once."""
        with self.lock:
            registers, now = self._registers[what], time.monotonic()
            writes = {key: Write(value, now) for key, value in values.items()}
            for key, write in writes.items():
                registers[key].add(write)
            pending = Pending(self, registers, writes)
            self._changes[what].append(pending.mark)
            return pending

    def read(self, what: str, found: Mapping[Hashable, Any], span: Span, *, whole: bool = True) -> list[str]:
        """Return what is wrong with values that were read; with `whole`, those that are not there were removed."""
        with self.lock:
            registers = self._registers[what]
            allowed = {key: registers[key].values(span) for key in found.keys() | (set(registers) if whole else set())}
        return [
            f"{what} {key!r} is {found.get(key)!r:.300}, and should be one of {values!r:.600}"
            for key, values in allowed.items()
            if found.get(key) not in values
        ]

    def possible(self, what: str, key: Hashable, span: Span) -> list[Any]:
        """Return all that a value may have been in a span."""
        with self.lock:
            return self._registers[what][key].values(span)

    def changed(self, what: str, span: Span) -> bool:
        """Tell whether a collection may have changed in a span."""
        with self.lock:
            return any(one.began <= span[1] and one.ended >= span[0] for one in self._changes[what])

    # pictures

    @contextmanager
    def interrupting(self, server: str) -> Iterator[None]:
        """Note that a server's jobs may be cancelled as long as a `with` statement lasts."""
        write = Write(None, time.monotonic())
        with self.lock:
            self._interrupts[server].append(write)
        try:
            yield
        finally:
            write.ended = time.monotonic()

    def may_be_cancelled(self, server: str, span: Span) -> bool:
        """Tell whether somebody interrupted a server in a span."""
        with self.lock:
            return any(one.began <= span[1] and one.ended >= span[0] for one in self._interrupts[server])

    def picture(self, infotext: str, pixels: bytes) -> str | None:
        """Note a picture; return what is wrong where another one came of the same parameters before."""
        digest = hashlib.sha256(pixels).hexdigest()
        with self.lock:
            self.pictures += 1
            known = self._pictures.setdefault(infotext, digest)
            self.pictures_again += known is not digest
            return None if known == digest else f"was {known[:12]} before, and is {digest[:12]} now: {infotext}"

    def is_known(self, infotext: str, pixels: bytes) -> bool | None:
        """Tell whether these are the bits that came of these parameters; None where none came, or an unfinished one."""
        digest = hashlib.sha256(pixels).hexdigest()
        with self.lock:
            known = None if digest in self._unfinished else self._pictures.get(infotext)
        return None if known is None else known == digest

    def note_unfinished(self, pixels: bytes) -> None:
        """Note a picture that was interrupted."""
        with self.lock:
            self._unfinished.add(hashlib.sha256(pixels).hexdigest())

    def parameters(self, request: str, infotext: str) -> str | None:
        """Note what a picture says of itself; return what is wrong where it said something else before."""
        with self.lock:
            known = self._texts.setdefault(request, infotext)
            return None if known == infotext else f"said {known!r} before, and {infotext!r} now"


@dataclass
class Sample:
    """What a server's process has when nothing is asked of it."""

    at: float
    rss: int
    files: int
    threads: int
    pictures: int = 0
    counted: dict[str, int] = field(default_factory=dict)
