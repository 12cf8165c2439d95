"""How much of each device adapters may take, and what happens to those for which that is not enough.

Adapters that were placed stay while the budget lasts. One that would exceed it takes the room of stale ones: layers
that were not called since it was called last, nor for as long as it takes to call every layer twice, such as a text
encoder's while the UNet runs. If that is not enough, it streams: it is placed for its call and dropped after it. The
layers of a model are called in the same order again and again, and the least recently used one is then the one that is
needed next; so no layer that is still called makes room, and as many as fit stay where they are.

The peak is the budget plus the largest layer that streams. The CPU has no budget. The budget counts the tensors that
are placed. It counts neither scratch memory nor strengths; a plan has one small vector of strengths per device.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..compiler import compiling

logger = logging.getLogger(__name__)

OUT_OF_MEMORY: type[RuntimeError] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
"""The first name came with torch 2.5."""

_OUT_OF_MEMORY = re.compile(r"out of memory|not enough GPU video memory|STATUS_ALLOC_FAILED")
"""The errors of MPS, DirectML and CUDA's libraries are plain RuntimeErrors."""

_RESERVE = 1 << 30
"""Bytes of a device's memory that adapters leave to the host, where the engine was given no limit."""
_RESERVE_AT_REST = 2 << 30
"""Likewise, before adapters stay on a device that are not in force."""
UNLIMITED = "cpu"  # the computer's own memory
Evict = Callable[[str], None]
"""Drops the placed tensors of an executor; the argument is for the trace."""
_GIVEN_BACK = 8  # one part of so many, when memory ran out: computing needs room, too


@dataclass(slots=True, eq=False)
class Account:
    """The memory that the adapters of one layer take; their executor keeps it."""

    device: torch.device | None = None
    nbytes: int = 0
    """Placed now."""
    known: int = 0
    """Placed the last time."""
    host: int = 0
    """Bytes in the computer's memory, from which it is placed again."""
    used: float = 0.0
    """When it was called last."""
    before: float = 0.0
    """When it was called the time before."""
    streams: bool = False


def is_out_of_memory(error: BaseException | None) -> bool:
    """Tell whether an error says that a device has run out of memory."""
    is_plain = isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
    return is_plain or isinstance(error, OUT_OF_MEMORY)


class Budget:
    """The memory of all layers of an engine.

    Args:
        limit: bytes for each device but the CPU; None for what is free on a device, less a reserve for the host.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.contended = False
        """Whether something streams, so that it matters who is called when."""
        self.relief: list[Callable[[], None]] = []
        """Called first where a device has run out of memory: gives back memory that is not in use."""
        self.leave_at_rest: Callable[[], None] = lambda: None
        """Has adapters leave their devices that are not in force."""
        self._limit = limit
        self._fitted: dict[torch.device, int] = {}
        """Lower limits, found by running out of memory."""
        self._measured: dict[torch.device, int] = {}
        """Limits from the free memory of devices without any other."""
        self._lock = threading.RLock()
        self._accounts: dict[Account, weakref.WeakMethod[Evict]] = {}
        self._gone: deque[Account] = deque()
        self._placed: Counter[torch.device] = Counter()
        self.full: set[torch.device] = set()
        """Where nothing can be placed before its layer is called."""
        self._clock = 0
        self._latest: Account | None = None
        self._scan_at: dict[torch.device, float] = {}

    def join(self, evict: Evict) -> Account:
        """Make an account for a new executor, whose method `evict` is held weakly."""
        account, gone = Account(), self._gone
        # only noted: a finalizer may run anywhere, in the middle of a sum of ours too
        with self._lock:
            self._accounts[account] = weakref.WeakMethod(evict, lambda _: gone.append(account))
        return account

    def note(self, account: Account) -> None:
        """Note that the layer is being called; needed only while something streams."""
        if compiling():
            account.used = math.inf  # a compiled layer cannot tell later when it was called, so it is never stale
            return
        if account is not self._latest:  # called again and again is called once
            self._latest = account
            self._clock += 1
            account.before, account.used = account.used, self._clock

    def room(self, device: torch.device) -> float:
        """Return how many more bytes may be placed on a device."""
        if device.type == UNLIMITED:
            return math.inf
        limit = self._fitted.get(device, self._limit)
        if limit is None and device not in self._measured:
            free = _free_memory(device)
            if free is None:
                return math.inf
            self._measured[device] = self._placed[device] + max(0, free - _RESERVE)
        return (self._measured[device] if limit is None else limit) - self._placed[device]

    def has_headroom(self, device: torch.device) -> bool:
        """Tell whether a device has so much free memory that plans may stay there which are not in force."""
        is_limited = device.type == UNLIMITED or self._fitted.get(device, self._limit) is not None
        free = None if is_limited else _free_memory(device)
        return free is not None and free > _RESERVE_AT_REST

    def make_room(self, account: Account, device: torch.device) -> None:
        """Drop stale layers of a device with a limit as far as this one needs their room."""
        with self._lock:
            self._count_gone()
            self._fits(account, device, account.known)

    def charge(self, account: Account, device: torch.device, nbytes: int) -> bool:
        """Count placed tensors of a layer, and tell whether they may stay after the call."""
        with self._lock:
            if self._gone:
                self._count_gone()
            stays = device.type == UNLIMITED or self._fits(account, device, nbytes)
            account.device, account.nbytes, account.known, account.streams = device, nbytes, nbytes, not stays
            account.used = max(account.used, self._clock)
            self._placed[device] += nbytes
            if not stays:
                self.full.add(device)
                self.contended = True
            return stays

    def free(self, account: Account) -> None:
        """Count that the placed tensors are gone."""
        with self._lock:
            if account.device is None:
                return
            self._placed[account.device] -= account.nbytes
            if not account.streams:
                self.full.discard(account.device)
            account.device, account.nbytes = None, 0

    def attempt(self, device: torch.device, place: Callable[[], object]) -> None:
        """Call `place`, and give some memory back where the device runs out of it; the CPU has none to give."""
        try:
            place()
            return
        except RuntimeError as error:
            if device.type == UNLIMITED or not is_out_of_memory(error):
                raise
        self.shrink(device)  # only here are the failure and all that it held gone

    def make_way(self) -> None:
        """Give memory back after code of others failed as a device ran out of it, in the middle of a model call."""
        for device in list(self._placed):
            if device.type != UNLIMITED and self._placed[device]:
                self.shrink(device, share=2)

    def shrink(self, device: torch.device, share: int = _GIVEN_BACK) -> bool:
        """Give one part of `share` back after a device ran out of memory; tell whether adapters had any.

        The rest is the limit from then on.
        """
        for relieve in (self.leave_at_rest, *self.relief):
            relieve()
        with self._lock:
            self._count_gone()
            there = sorted(self._residents(device), key=lambda one: one[0].used)
            placed = self._placed[device]
            goal = placed - max([placed // share, *(2 * account.nbytes for account, _ in there)])
            for _, evict in there:
                if self._placed[device] > goal:
                    evict("the device is out of memory")
            if device not in self._fitted:
                text = "%s is out of memory: no more than %d MB of adapters stay there from now on, others are streamed"
                logger.warning(text, device, self._placed[device] >> 20)
            self._fitted[device] = self._placed[device]
            self.full.add(device)
            self.contended = True
        empty_cache = getattr(getattr(torch, device.type, None), "empty_cache", None)
        if empty_cache is not None:
            empty_cache()
        return placed > 0

    def reset(self) -> None:
        """Forget which devices are full, as other adapters come, or none."""
        with self._lock:
            self._count_gone()
            self.full.clear()
            self._scan_at.clear()
            self._measured.clear()
            self.contended = False

    def forget(self) -> None:
        """Forget the limits that were found beside another model."""
        self.reset()
        self._fitted.clear()

    def usage(self) -> tuple[dict[torch.device, int], int, int]:
        """Return the bytes placed on each device, how many layers stream, and the bytes to place them again from."""
        with self._lock:
            self._count_gone()
            placed = {device: nbytes for device, nbytes in self._placed.items() if nbytes}
            accounts = list(self._accounts)
            return placed, sum(one.streams for one in accounts), sum(one.host for one in accounts)

    def _fits(self, account: Account, device: torch.device, nbytes: int) -> bool:
        if nbytes > self.room(device) and self._clock >= self._scan_at.get(device, 0):
            self.leave_at_rest()
            self._measured.pop(device, None)  # others may have given memory back
            self._evict_stale(account, device, nbytes)
        return nbytes <= self.room(device)

    def _evict_stale(self, account: Account, device: torch.device, nbytes: int) -> None:
        """Drop layers that are not called any more, the longest unused first, until there is room for `nbytes`."""
        there = sorted(self._residents(device), key=lambda one: one[0].used)
        turns = self._clock - 2 * len(self._accounts)  # in a pass that calls some layers twice, no layer is stale
        for other, evict in there:
            if nbytes <= self.room(device) or other.used >= min(account.before, turns):
                break
            evict("others need the room")
        oldest = min((other.used for other, _ in there if other.device == device), default=0)
        self._scan_at[device] = oldest + 2 * len(self._accounts) + 1  # before that, no layer can be stale

    def _residents(self, device: torch.device) -> list[tuple[Account, Evict]]:
        there = [(one, ref()) for one, ref in self._accounts.items() if one.device == device and not one.streams]
        return [(account, evict) for account, evict in there if evict is not None]

    def _count_gone(self) -> None:
        """Subtract the accounts of executors that are gone."""
        while self._gone:
            account = self._gone.popleft()
            self.free(account)
            del self._accounts[account]


def _free_memory(device: torch.device) -> int | None:
    """Return the bytes of a device that are free, or that torch keeps unused; None where it does not tell."""
    module: Any = getattr(torch, device.type, None)
    if not hasattr(module, "mem_get_info"):
        return None
    reserved, used = (getattr(module, name, None) for name in ("memory_reserved", "memory_allocated"))
    kept = reserved(device) - used(device) if reserved is not None and used is not None else 0
    return int(module.mem_get_info(device)[0]) + max(0, kept)
